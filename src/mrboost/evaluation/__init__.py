"""Accuracy under attack of any model, with reasons to doubt the figures."""

from .curve import robustness_curve
from .evaluate import DEFAULT_ATTACKS, evaluate, measure, resolve_attacks
from .result import Evaluation, Outcome, Stage, compare

__all__ = [
    "DEFAULT_ATTACKS",
    "Evaluation",
    "Outcome",
    "Stage",
    "compare",
    "evaluate",
    "measure",
    "resolve_attacks",
    "robustness_curve",
]
