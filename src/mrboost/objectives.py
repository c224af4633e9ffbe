"""Objectives: what the learner minimises on the batch that the sampler prepared.

An objective returns one loss per example, so that weights apply before the mean, and the logits of the perturbed
images, so that the loop can count how many of them were classified correctly. Its scope says whose logits the loss
sees: the learner's own (``Ind``) or those of the ensemble that it completes (``Whole``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from .attacks import Classifier
from .ensemble import mean_logits
from .losses import Loss, cross_entropy, margin_cross_entropy
from .samplers import Sample


class Scope(Protocol):
    def __call__(self, model: Classifier, past: Sequence[Classifier]) -> Classifier:
        """The classifier whose logits the loss sees, given the learner and the frozen members before it."""


@dataclass(frozen=True)
class Ind:
    """The learner's own logits."""

    def __call__(self, model: Classifier, past: Sequence[Classifier]) -> Classifier:  # noqa: ARG002
        return model


@dataclass(frozen=True)
class Whole:
    """The mean logits of the ensemble; gradients reach the learner alone."""

    def __call__(self, model: Classifier, past: Sequence[Classifier]) -> Classifier:
        def whole(x: Tensor) -> Tensor:
            with torch.no_grad():
                frozen = mean_logits(past, x) * (len(past) / (len(past) + 1))
            return frozen + model(x) / (len(past) + 1)

        return whole if past else model


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


@dataclass(frozen=True)
class OnPairs:
    """``MCE(model(x + δ), y, y')`` with the false label that the sampler chose."""

    def __call__(self, model: Classifier, sample: Sample) -> tuple[Tensor, Tensor]:
        assert sample.other is not None, "this objective needs a sampler that chooses a false label"
        logits = model(sample.x)
        return margin_cross_entropy(logits, sample.y, sample.other, reduction="none"), logits
