"""Attacks: ``attack(model, x, y) -> x_adv``, inside the ball and [0, 1], the
model left as found."""

from .apgd import APGD
from .autoattack import AutoAttack
from .base import Attack, Classifier, as_attack, attacked
from .fab import FAB
from .pgd import CW, FGSM, PGD, FromClean, Gaussian, Start, Uniform, ascend
from .registry import named
from .search import Search
from .square import Square
from .transfer import Transfer

__all__ = [
    "APGD",
    "CW",
    "FAB",
    "FGSM",
    "PGD",
    "Attack",
    "AutoAttack",
    "Classifier",
    "FromClean",
    "Gaussian",
    "Search",
    "Square",
    "Start",
    "Transfer",
    "Uniform",
    "as_attack",
    "ascend",
    "attacked",
    "named",
]
