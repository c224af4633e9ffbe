"""Attacks by the names that tables and command lines use: ``fgsm``, ``pgd-20``, ``pgd-mce-20``, ``cw``."""

from __future__ import annotations

import re
from collections.abc import Callable

from mrboost.errors import InputError, unknown_name
from mrboost.losses import Loss, cross_entropy, margin, margin_cross_entropy

from .base import Attack
from .pgd import CW, FGSM, PGD

_LOSSES: dict[str, Loss] = {"": cross_entropy, "mce": margin_cross_entropy, "margin": margin}
_NAMES: dict[str, Callable[[float, str], Attack]] = {"fgsm": FGSM, "cw": CW}
EXAMPLES = ("fgsm", "pgd-20", "pgd-100", "pgd-mce-20", "cw")


def named(name: str, eps: float = 8 / 255, norm: str = "Linf") -> Attack:
    """The attack called ``name``: ``fgsm``, ``cw``, or ``pgd[-LOSS]-STEPS`` with LOSS one of mce, margin."""
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
    return PGD(eps, norm, steps=steps, loss=_LOSSES[loss])
