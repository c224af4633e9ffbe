"""Soft labels from a robust classifier: a sampler and a loss of one's own.

    MRBOOST_TEACHER=runs/ensemble mrboost train taught --import examples/_soft_labels.py \
        --data cifar10 --first runs/one --lr 0.1 --epochs 24 --out runs/taught

The learner is attacked as in adversarial training, and its loss is the mean over all labels, each
with the weight that the classifier in ``MRBOOST_TEACHER`` gives it on the clean image, and the true
one with the rest (after Zi et al., "Revisiting adversarial robustness distillation", ICCV 2021).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import mrboost
from mrboost import losses, recipes, samplers
from mrboost.recipes.samplers import Sample, Turn
from mrboost.speed.copies import quick


@dataclass(frozen=True)
class SoftSample(Sample):
    """A batch whose images have all labels, each with its weight ``(N, K)``."""

    weights: Tensor = torch.empty(0)

    def over_labels(self, loss_of: Callable[[Tensor], Tensor]) -> Tensor:
        columns = enumerate(self.weights.unbind(dim=1))
        return torch.stack(
            [weight * loss_of(torch.full_like(self.y, label)) for label, weight in columns]
        ).sum(dim=0)


@cache
def teacher(path: str, x_shape: tuple[int, ...], device: torch.device) -> nn.Module:
    """The classifier in a run folder, as a copy that answers fast."""
    model = mrboost.load(path, which="last").to(device)
    copy = quick(model, torch.rand(8, *x_shape, device=device))
    return copy if isinstance(copy, nn.Module) else model


@samplers.register("taught")
@dataclass(frozen=True)
class Taught:
    """Attack the learner; labels are the teacher's answers on the clean images, by ``share``."""

    joint: ClassVar[bool] = False
    loss: losses.Loss = losses.margin_cross_entropy
    share: float = 0.7
    path: str = os.environ.get("MRBOOST_TEACHER", "")

    def __call__(self, turn: Turn) -> Sample:
        x_adv = turn.ascend([turn.learner], self.loss)
        with torch.no_grad():
            logits = teacher(self.path, tuple(turn.x.shape[1:]), turn.x.device)(turn.x).float()
            hard = F.one_hot(turn.y, logits.shape[1])
            weights = self.share * logits.softmax(dim=1) + (1 - self.share) * hard
        return SoftSample(clean=turn.x, x=x_adv, y=turn.y, weights=weights)


recipes.register(
    replace(
        recipes.AT_MCE,
        name="taught",
        summary="at-mce with soft labels from a classifier that is trained already",
        formula="min_θ Σ_i Σ_j q_j(x_i) max_δ MCE-A(g(x_i + δ), j)",
        reference="after Zi et al., Revisiting Adversarial Robustness Distillation, ICCV 2021",
        sampler=Taught(),
    )
)
