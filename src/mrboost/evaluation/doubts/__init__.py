"""Reasons to doubt a figure.

``contradictions`` are what the outcomes of several attacks say against each other; ``probe`` looks
at the model itself. Each check is a function of a small record (``Tried``, ``Sample``) that gives a
message or nothing.
"""

from .checks import probe
from .outcomes import AMONG_OUTCOMES, Doubt, contradictions, left

__all__ = ["AMONG_OUTCOMES", "Doubt", "contradictions", "left", "probe"]
