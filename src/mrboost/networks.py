"""What a function uses that is not its own code: globals by name, and networks.

A model may be any function. Its networks are still to be attacked in eval mode, and what it depends
on still counts when an interrupted evaluation goes on.
"""

from __future__ import annotations

import dis
from collections.abc import Iterable
from contextlib import suppress
from functools import lru_cache, partial
from types import CellType, CodeType, FunctionType, MethodType

from torch import nn


@lru_cache
def _global_names(code: CodeType) -> frozenset[str]:
    """The names that code, and the functions inside it, take from the globals;
    ``co_names`` has attributes too."""
    inner = (_global_names(part) for part in code.co_consts if isinstance(part, CodeType))
    own = (i.argval for i in dis.get_instructions(code) if i.opname in ("LOAD_GLOBAL", "LOAD_NAME"))
    return frozenset(own).union(*inner)


def used_globals(function: FunctionType) -> dict[str, object]:
    names = sorted(_global_names(function.__code__) & function.__globals__.keys())
    return {name: function.__globals__[name] for name in names}


def networks(model: object, depth: int = 4) -> list[nn.Module]:
    """The model, or the networks that a function is seen to use: bound to it, in its closure,
    or by a global name."""
    if isinstance(model, nn.Module):
        return [model]
    found: dict[int, nn.Module] = {}
    with suppress(Exception):  # things of strangers need not bear being looked at
        for part in _held(model) if depth else ():
            found |= {id(network): network for network in networks(part, depth - 1)}
    return list(found.values())


def _held(value: object) -> Iterable[object]:
    """What a function, or a container of few things, holds."""
    if isinstance(value, partial):
        return (value.func, *value.args, *value.keywords.values())
    if isinstance(value, MethodType):
        bound = value.__self__
        return (
            value.__func__,
            *([bound] if isinstance(bound, nn.Module) else vars(bound).values()),
        )
    if isinstance(value, FunctionType):
        # Which is empty
        cells = [cell.cell_contents for cell in value.__closure__ or () if cell != CellType()]
        return (*cells, *used_globals(value).values(), *(value.__defaults__ or ()))
    if isinstance(value, list | tuple | dict) and len(value) <= 32:  # more are data
        return value.values() if isinstance(value, dict) else value
    if callable(value) and not isinstance(value, type):
        return vars(value).values()
    return ()
