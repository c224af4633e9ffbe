"""Reasons to doubt a figure: what outcomes say against each other, and what
the model itself shows."""

from .outcomes import AMONG_OUTCOMES, Doubt, contradictions, doubts_of, left
from .probing import probe

__all__ = [
    "AMONG_OUTCOMES",
    "Doubt",
    "contradictions",
    "doubts_of",
    "left",
    "probe",
]
