"""Attacks by the names that tables and command lines use: ``autoattack``, ``apgd-t``,
``pgd-20``, ``cw`` and more; ``register`` adds your own."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from inspect import signature
from typing import Any, TypeVar

from mrboost.errors import InputError, check_new_name, unknown_name
from mrboost.losses import LOSSES, dlr, margin_cross_entropy

from .apgd import APGD
from .autoattack import AutoAttack, Quick
from .base import Attack, as_attack
from .fab import FAB
from .pgd import CW, FGSM, PGD
from .rays import RayS
from .square import Square

Factory = Callable[[float, str], Any]
F = TypeVar("F", bound=Factory)

_NAMES: dict[str, Factory] = {
    "fgsm": FGSM,
    "cw": CW,
    "apgd-ce": APGD,
    "apgd-dlr": partial(APGD, loss=dlr),
    "apgd-mce": partial(APGD, loss=margin_cross_entropy),
    "apgd-t": partial(APGD, targets=9),
    "fab": FAB,
    "fab-t": partial(FAB, targets=9),
    "square": Square,
    "rays": RayS,
    "quick": Quick,
    "autoattack": AutoAttack,
    "autoattack-plus": partial(AutoAttack, version="plus"),
    "autoattack-rand": partial(AutoAttack, version="rand"),
}
EXAMPLES = ("pgd-20", "pgd-100", "pgd-mce-20", *_NAMES)
_OF_LOSS = re.compile(r"(pgd)(?:-(.+))?-(\d{1,6})|(apgd)-(.+)")
_HINT = "pgd-N takes any number of steps N; your own: attacks.register, and --import its module"


def register(name: str) -> Callable[[F], F]:
    """Make an attack of your own available under ``name``, on the command line with ``--import``.

    What is registered makes it for a ball, ``factory(eps, norm)``: a dataclass with these two
    fields first, or a function that returns any ``attack(model, x, y)``.

    Example:
        >>> register("pgd-mce-5-restarts")(partial(PGD, loss=margin_cross_entropy, restarts=5))
        ... # doctest: +SKIP
    """

    def decorate(factory: F) -> F:
        check_new_name("attack", name, _NAMES)
        if _OF_LOSS.fullmatch(name):
            raise InputError(f"{name!r} is the name of an attack with a loss: choose another name")
        try:
            signature(factory).bind(8 / 255, "Linf")
        except TypeError as error:
            remedy = "give a class or function that makes the attack for a ball"
            problem = f"attack {name!r} is made as factory(eps, norm): {error}"
            raise InputError(f"{problem}; {remedy}") from None
        _NAMES[name] = factory
        return factory

    return decorate


def named(
    name: str, eps: float = 8 / 255, norm: str = "Linf", step_size: float | None = None
) -> Attack:
    """The attack called ``name``: one of ``EXAMPLES``, any ``pgd[-LOSS]-STEPS`` or ``apgd-LOSS``
    with a loss of ``mrboost.losses.LOSSES``, or a registered one.

    ``step_size`` is that of ``pgd-N``, a quarter of eps if not given.
    """
    if name in _NAMES:
        return as_attack(_NAMES[name](eps, norm))
    match = _OF_LOSS.fullmatch(name)
    if match is None:
        raise unknown_name("attack", name, [*EXAMPLES, *_NAMES], hint=_HINT)
    loss = match[2] or match[5] or "ce"
    if loss not in LOSSES:
        raise unknown_name("attack loss", loss, LOSSES)
    if match[4]:
        return APGD(eps, norm, loss=LOSSES[loss])
    if int(match[3]) < 1:
        raise InputError(f"attack {name!r} has no steps: use pgd-20, say")
    return PGD(eps, norm, steps=int(match[3]), step_size=step_size, loss=LOSSES[loss])
