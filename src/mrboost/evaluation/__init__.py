"""Accuracy under attack of any model, with reasons to doubt the figures.

``evaluate(model, x, y, "autoattack", eps=8 / 255)`` gives an ``Evaluation``, which prints as a
table and dumps as JSON. On the way,

- ``inputs`` turns arrays, loaders and splits into chunks, checked together with the model, and
  chooses images where the time is limited;
- ``evaluate.measure`` is the loop: for each chunk, for each attack, ``batches.Runner.run``;
- ``batches`` runs an attack on a chunk, and asks the model batch by batch;
- ``resume`` keeps what is finished, so that an interrupted evaluation can go on;
- ``observers`` are told what is found: progress, doubts about the model, adversarial images, and
  ``Measurements``, which puts chunks and processes together and sums up;
- ``result`` and ``statistics`` are the figures: outcomes, intervals, comparisons;
- ``doubts`` are the reasons not to believe them; ``probe`` looks for some in the model;
- ``curve`` is accuracy against eps;
- ``page`` shows them in HTML.
"""

from .curve import robustness_curve
from .evaluate import DEFAULT_ATTACKS, EvaluationOptions, evaluate, measure, resolve_attacks
from .result import Evaluation, Outcome, Stage, UnfinishedError, compare

__all__ = [
    "DEFAULT_ATTACKS",
    "Evaluation",
    "EvaluationOptions",
    "Outcome",
    "Stage",
    "UnfinishedError",
    "compare",
    "evaluate",
    "measure",
    "resolve_attacks",
    "robustness_curve",
]
