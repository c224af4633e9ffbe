"""The model on clean images, and what small attacks leave of them: what all checks look at."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from mrboost.attacks import PGD, Classifier
from mrboost.losses import Loss, cross_entropy, margin


@dataclass(frozen=True)
class Look:
    """The model on clean images: its logits; of margin and cross-entropy the
    largest slope in any pixel."""

    x: Tensor
    y: Tensor
    logits: Tensor
    slope: Tensor
    ce_slope: Tensor

    @property
    def right(self) -> Tensor:
        return self.logits.argmax(dim=1) == self.y


def look_at(model: Classifier, x: Tensor, y: Tensor) -> Look:
    (logits, slope), (_, ce_slope) = (_slope(model, x, y, loss) for loss in (margin, cross_entropy))
    return Look(x, y, logits, slope, ce_slope)


def _slope(model: Classifier, x: Tensor, y: Tensor, loss: Loss) -> tuple[Tensor, Tensor]:
    """Logits and the largest slope of the loss. A pass each: one of a compiled model can be
    gone back through once."""
    leaf, gradient = x.clone().requires_grad_(True), None
    with torch.enable_grad():
        logits = model(leaf.clone())  # a model may work in place
        values = loss(logits, y, reduction="none")
    if values.requires_grad:
        (gradient,) = torch.autograd.grad(values.sum(), leaf, allow_unused=True)
    return logits.detach(), x.new_zeros(len(x)) if gradient is None else gradient.flatten(
        1
    ).abs().amax(dim=1)


def is_right(model: Classifier, x: Tensor, y: Tensor) -> Tensor:
    with torch.no_grad():
        return model(x.clone()).argmax(dim=1) == y


def still_right(model: Classifier, look: Look, attack: PGD) -> Tensor:
    """Which of the correctly classified images stay so."""
    x, y = look.x[look.right], look.y[look.right]
    return is_right(model, attack(model, x, y), y) if len(x) else look.right[:0]


def difference(logits: Tensor, others: Tensor) -> tuple[float, float]:
    """The largest difference, and the size of the logits that decide: those of
    classes ruled out are huge."""
    change = (logits - others).nan_to_num(nan=0.0, posinf=math.inf, neginf=-math.inf)
    return change.abs().max().item(), logits.topk(
        min(2, logits.shape[1]), dim=1
    ).values.abs().max().item()
