"""Attacks by the names that tables and command lines use: ``autoattack``, ``apgd-t``,
``pgd-20``, ``cw`` and more."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

from mrboost.errors import InputError, unknown_name
from mrboost.losses import Loss, cross_entropy, dlr, margin, margin_cross_entropy

from .apgd import APGD
from .autoattack import AutoAttack
from .base import Attack
from .fab import FAB
from .pgd import CW, FGSM, PGD
from .square import Square

_LOSSES: dict[str, Loss] = {"": cross_entropy, "mce": margin_cross_entropy, "margin": margin}
_NAMES: dict[str, Callable[[float, str], Attack]] = {
    "fgsm": FGSM,
    "cw": CW,
    "apgd-ce": APGD,
    "apgd-dlr": partial(APGD, loss=dlr),
    "apgd-mce": partial(APGD, loss=margin_cross_entropy),
    "apgd-t": partial(APGD, targets=9),
    "fab": FAB,
    "fab-t": partial(FAB, targets=9),
    "square": Square,
    "autoattack": AutoAttack,
    "autoattack-plus": partial(AutoAttack, version="plus"),
    "autoattack-rand": partial(AutoAttack, version="rand"),
}
EXAMPLES = ("pgd-20", "pgd-100", "pgd-mce-20", *_NAMES)


def named(
    name: str, eps: float = 8 / 255, norm: str = "Linf", step_size: float | None = None
) -> Attack:
    """The attack called ``name``: one of ``EXAMPLES``, or any ``pgd[-LOSS]-STEPS`` with
    LOSS one of mce, margin.

    ``step_size`` is that of ``pgd-N``, a quarter of eps if not given.
    """
    if name in _NAMES:
        return _NAMES[name](eps, norm)
    match = re.fullmatch(r"pgd(?:-([a-z]+))?-(\d{1,6})", name)
    if match is None:
        raise unknown_name("attack", name, EXAMPLES, hint="pgd-N takes any number of steps N")
    loss, steps = match[1] or "", int(match[2])
    if loss not in _LOSSES:
        raise unknown_name("attack loss", loss, [key for key in _LOSSES if key])
    if steps < 1:
        raise InputError(f"attack {name!r} has no steps: use pgd-20, say")
    return PGD(eps, norm, steps=steps, step_size=step_size, loss=_LOSSES[loss])
