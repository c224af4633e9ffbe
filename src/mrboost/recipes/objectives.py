"""Objectives: what the learner minimises on the batch that the sampler prepared.

An objective returns one loss per example, so that weights apply before the mean, and the logits of
the perturbed images, so that the loop can count how many of them were classified correctly. Its
scope says whose logits the loss sees: the learner's own (``Ind``) or those of the ensemble that it
completes (``Whole``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from mrboost.attacks import Classifier
from mrboost.ensemble import mean_logits
from mrboost.losses import (
    Divergence,
    Loss,
    boosted_cross_entropy,
    cross_entropy,
    kl_divergence,
    margin_cross_entropy,
    probability,
)

from .samplers import Sample


class Scope(Protocol):
    def __call__(self, model: Classifier, past: Sequence[Classifier]) -> Classifier:
        """The classifier whose logits the loss sees, given the learner and the
        frozen members before it."""


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
        return self.scale * sample.over_labels(
            lambda y: self.loss(logits, y, reduction="none")
        ), logits


@dataclass(frozen=True)
class Trades:
    """``loss(model(x), y) + weight · divergence(model(x), model(x + δ))`` (Zhang et al. 2019)."""

    loss: Loss = cross_entropy
    divergence: Divergence = kl_divergence
    weight: float = 6.0

    def __call__(self, model: Classifier, sample: Sample) -> tuple[Tensor, Tensor]:
        clean, logits = model(sample.clean), model(sample.x)
        fit = sample.over_labels(lambda y: self.loss(clean, y, reduction="none"))
        return fit + self.weight * self.divergence(clean, logits, reduction="none"), logits


@dataclass(frozen=True)
class Mart:
    """``loss + weight · KL(p(x) ‖ p(x + δ)) · (1 − p(x)_y)``, the loss of ``model(x +
    δ)`` (Wang et al. 2020).

    ``mirrored`` adds the second term once more with the probabilities softmax(−g), and ``on_clean``
    takes the loss of ``model(x)``: so the paper's appendix writes MART with MCE.
    """

    loss: Loss = boosted_cross_entropy
    weight: float = 5.0
    mirrored: bool = False
    on_clean: bool = False

    def __call__(self, model: Classifier, sample: Sample) -> tuple[Tensor, Tensor]:
        clean, logits = model(sample.clean), model(sample.x)
        fitted = clean if self.on_clean else logits

        def of(y: Tensor) -> Tensor:
            total = self.loss(fitted, y, reduction="none")
            for sign in (1, -1) if self.mirrored else (1,):
                doubt = 1 - probability(sign * clean, y)
                total = total + self.weight * doubt * kl_divergence(
                    sign * clean, sign * logits, reduction="none"
                )
            return total

        return sample.over_labels(of), logits


@dataclass(frozen=True)
class OnPairs:
    """``MCE(model(x + δ), y, y')`` with the false label that the sampler chose."""

    def __call__(self, model: Classifier, sample: Sample) -> tuple[Tensor, Tensor]:
        assert sample.other is not None, "this objective needs a sampler that chooses a false label"
        assert sample.mixed is None, "a false label of an image with two true ones is not defined"
        logits = model(sample.x)
        return margin_cross_entropy(logits, sample.y, sample.other, reduction="none"), logits
