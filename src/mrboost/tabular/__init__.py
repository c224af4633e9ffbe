"""Robust classifiers for tables, with certificates: ``MRBoostClassifier``."""

from .cells import column_eps
from .certificate import Certificate
from .classifier import MRBoostClassifier, RobustnessWarning
from .matching import attainable_accuracy

__all__ = [
    "Certificate",
    "MRBoostClassifier",
    "RobustnessWarning",
    "attainable_accuracy",
    "column_eps",
]
