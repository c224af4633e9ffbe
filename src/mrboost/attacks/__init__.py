"""Attacks: ``attack(model, x, y) -> x_adv``, inside the ball and [0, 1], the model left as found."""

from .base import Attack, Classifier, attacked
from .named import named
from .pgd import CW, FGSM, PGD, FromClean, Gaussian, Start, Uniform, ascend
from .transfer import Transfer

__all__ = [
    "CW",
    "FGSM",
    "PGD",
    "Attack",
    "Classifier",
    "FromClean",
    "Gaussian",
    "Start",
    "Transfer",
    "Uniform",
    "ascend",
    "attacked",
    "named",
]
