"""What every part of a recipe must be: a frozen dataclass with ``__call__``."""

from __future__ import annotations

from mrboost.errors import InputError


def check_part(what: str, part: object, *needed: str) -> None:
    """Refuse a part of which config.json could not tell what it is, or without an attribute that
    training asks for.

    Args:
        what: how messages call it, as "sampler of recipe 'at'".
        part: a value of the part's class.
        needed: names of attributes.
    """
    if isinstance(part, type):
        raise InputError(f"{what} is a class: give a value of it, {part.__name__}()")
    settings = getattr(part, "__dataclass_params__", None)
    if settings is None or not settings.frozen:
        kind = type(part).__name__
        problem = f"{what} is no frozen dataclass, and a run folder could not say how it is set"
        raise InputError(f"{problem}: put @dataclass(frozen=True) above the class of this {kind}")
    for name in ("__call__", *needed):
        if not hasattr(part, name):
            raise InputError(f"{what} has no attribute {name!r}: give it one")
