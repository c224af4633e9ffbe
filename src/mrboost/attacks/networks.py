"""The networks that a model uses, where the model may be any function.

Attacks run in eval mode. Of a function, the networks that it holds or names are put into it too.
"""

from __future__ import annotations

import dis
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from types import CellType, CodeType, FunctionType, MethodType

from torch import nn

_MOST_ITEMS = 32
"""Containers of more items are taken for data, and not searched."""


def networks(model: object, depth: int = 4) -> list[nn.Module]:
    """The model itself, or the networks that a function uses: those bound to it, in its closure
    or defaults, or named as globals.

    Args:
        model: a module, or any callable.
        depth: how many functions and containers deep to look.
    """
    if isinstance(model, nn.Module):
        return [model]
    found: dict[int, nn.Module] = {}
    with suppress(Exception):  # a user's object may refuse to be looked at
        for part in _parts(model) if depth else ():
            found |= {id(network): network for network in networks(part, depth - 1)}
    return list(found.values())


def _parts(value: object) -> Iterable[object]:
    """What a function, a callable object or a small container holds."""
    if isinstance(value, partial):
        return (value.func, *value.args, *value.keywords.values())
    if isinstance(value, MethodType):
        owner = value.__self__
        held = [owner] if isinstance(owner, nn.Module) else vars(owner).values()
        return (value.__func__, *held)
    if isinstance(value, FunctionType):
        cells = value.__closure__ or ()
        captured = [cell.cell_contents for cell in cells if cell != CellType()]  # which is empty
        names = _global_names(value.__code__) & value.__globals__.keys()
        named = [value.__globals__[name] for name in sorted(names)]
        return (*captured, *named, *(value.__defaults__ or ()))
    if isinstance(value, list | tuple | dict) and len(value) <= _MOST_ITEMS:
        return value.values() if isinstance(value, dict) else value
    if callable(value) and not isinstance(value, type):
        return vars(value).values()
    return ()


def _global_names(code: CodeType) -> set[str]:
    """The globals that code and the functions inside it read.

    ``inspect.getclosurevars`` takes attributes for globals too, and leaves out inner functions.
    """
    loads = ("LOAD_GLOBAL", "LOAD_NAME")
    names = {step.argval for step in dis.get_instructions(code) if step.opname in loads}
    for part in code.co_consts:
        if isinstance(part, CodeType):
            names |= _global_names(part)
    return names
