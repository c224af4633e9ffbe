"""Objectives: the loss that the learner minimises on the batch of its sampler.

An objective returns one loss per example, so that a sampler's weights apply before the mean, and
the logits of the perturbed images, so that the training loop can count the correct ones. The scope
says whose logits the loss sees: the learner's (``Ind``) or the mean logits of the ensemble with the
learner in it (``Whole``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from mrboost import losses
from mrboost.attacks import Classifier
from mrboost.ensemble import mean_logits
from mrboost.errors import InputError

from .samplers import Sample


class Scope(Protocol):
    """What every scope has."""

    def __call__(self, model: Classifier, past: Sequence[Classifier]) -> Classifier:
        """The classifier whose logits the loss sees, given the learner and the past members."""


@dataclass(frozen=True)
class Ind:
    """The loss sees the learner's logits."""

    def __call__(self, model: Classifier, past: Sequence[Classifier]) -> Classifier:  # noqa: ARG002
        return model


@dataclass(frozen=True)
class Whole:
    """The loss sees the mean logits of past members and learner; only the learner has gradients."""

    def __call__(self, model: Classifier, past: Sequence[Classifier]) -> Classifier:
        def whole(x: Tensor) -> Tensor:
            with torch.no_grad():
                frozen = mean_logits(past, x) * (len(past) / (len(past) + 1))
            return frozen + model(x) / (len(past) + 1)

        return whole if past else model


class Objective(Protocol):
    """What every objective has."""

    def __call__(self, model: Classifier, sample: Sample) -> tuple[Tensor, Tensor]:
        """Losses ``(N,)`` and logits ``(N, K)`` of the perturbed images."""


@dataclass(frozen=True)
class OnPerturbed:
    """``scale · loss(model(x + δ), y)``: adversarial training (Madry et al. 2018)."""

    loss: losses.Loss = losses.cross_entropy
    scale: float = 1.0

    def __call__(self, model: Classifier, sample: Sample) -> tuple[Tensor, Tensor]:
        logits = model(sample.x)
        per_example = sample.over_labels(partial(self.loss, logits, reduction="none"))
        return self.scale * per_example, logits


@dataclass(frozen=True)
class Trades:
    """``loss(model(x), y) + weight · divergence(model(x), model(x + δ))`` (Zhang et al. 2019)."""

    loss: losses.Loss = losses.cross_entropy
    divergence: losses.Divergence = losses.kl_divergence
    weight: float = 6.0

    def __call__(self, model: Classifier, sample: Sample) -> tuple[Tensor, Tensor]:
        clean, logits = model(sample.clean), model(sample.x)
        fit = sample.over_labels(partial(self.loss, clean, reduction="none"))
        return fit + self.weight * self.divergence(clean, logits, reduction="none"), logits


@dataclass(frozen=True)
class Mart:
    """``loss(model(x + δ), y) + weight · KL(p(x) ‖ p(x + δ)) · (1 − p(x)_y)`` with p the softmax of
    the logits (Wang et al. 2020).

    Args:
        loss: of the labels; MART's own is the boosted cross-entropy.
        weight: the λ of the divergence.
        mirrored: add the second term again with the softmax of the negative logits.
        on_clean: take ``loss(model(x), y)``. With both, this is MART with MCE in the appendix of
            Zhang et al. 2022.
    """

    loss: losses.Loss = losses.boosted_cross_entropy
    weight: float = 5.0
    mirrored: bool = False
    on_clean: bool = False

    def __call__(self, model: Classifier, sample: Sample) -> tuple[Tensor, Tensor]:
        clean, logits = model(sample.clean), model(sample.x)
        fitted = clean if self.on_clean else logits

        def loss_of(y: Tensor) -> Tensor:
            total = self.loss(fitted, y, reduction="none")
            for sign in (1, -1) if self.mirrored else (1,):
                doubt = 1 - losses.probability(sign * clean, y)
                divergence = losses.kl_divergence(sign * clean, sign * logits, reduction="none")
                total = total + self.weight * doubt * divergence
            return total

        return sample.over_labels(loss_of), logits


@dataclass(frozen=True)
class OnPairs:
    """``MCE(model(x + δ), y, y')`` with the false label that the sampler chose."""

    def check_options(self, recipe: Any, options: Mapping[str, Any]) -> None:
        """Refuse images with two labels."""
        if options.get("cutmix", recipe.cutmix):
            chooses = f"recipe {recipe.name!r} chooses one false label for each"
            raise InputError(f"cutmix gives images two labels, and {chooses}: leave it out")

    def __call__(self, model: Classifier, sample: Sample) -> tuple[Tensor, Tensor]:
        if sample.other is None:
            problem = "this objective needs a sampler that chooses a false label"
            raise InputError(f"{problem}: take rnd, max or exp, or another objective")
        assert sample.mixed is None, "a false label of an image with two true ones is not defined"
        logits = model(sample.x)
        return losses.margin_cross_entropy(logits, sample.y, sample.other, reduction="none"), logits
