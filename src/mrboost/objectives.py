"""Objectives: what the learner minimises on the batch that the sampler prepared.

An objective returns one loss per example, so that weights apply before the mean, and the logits of the perturbed
images, so that the loop can count how many of them were classified correctly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from .attacks import Classifier
from .losses import Loss, cross_entropy
from .samplers import Sample


class Objective(Protocol):
    def __call__(self, model: Classifier, sample: Sample) -> tuple[Tensor, Tensor]:
        """Losses ``(N,)`` and logits ``(N, K)`` of the perturbed images."""


@dataclass(frozen=True)
class OnPerturbed:
    """``scale · loss(model(x + δ), y)``: adversarial training (Madry et al. 2018)."""

    loss: Loss = cross_entropy
    scale: float = 1.0

    def __call__(self, model: Classifier, sample: Sample) -> tuple[Tensor, Tensor]:
        logits = model(sample.x)
        return self.scale * self.loss(logits, sample.y, reduction="none"), logits
