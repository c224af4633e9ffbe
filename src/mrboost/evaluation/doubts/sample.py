"""What all checks of a model look at: some clean images, its logits, and their slopes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from mrboost.attacks import PGD, Classifier
from mrboost.losses import Loss, cross_entropy, margin


@dataclass(frozen=True)
class Sample:
    """A model on clean images, and the ball in which attacks are tried on it.

    ``slope`` and ``ce_slope`` are the largest slopes of the margin and of the cross-entropy in any
    pixel of an image.
    """

    model: Classifier
    x: Tensor
    y: Tensor
    eps: float
    norm: str
    seed: int
    logits: Tensor
    slope: Tensor
    ce_slope: Tensor

    @classmethod
    def of(
        cls, model: Classifier, x: Tensor, y: Tensor, *, eps: float, norm: str, seed: int
    ) -> Sample:
        logits, slope = _slope(model, x, y, margin)
        _, ce_slope = _slope(model, x, y, cross_entropy)
        return cls(model, x, y, eps, norm, seed, logits, slope, ce_slope)

    @property
    def right(self) -> Tensor:
        """Which images are classified correctly."""
        return self.logits.argmax(dim=1) == self.y

    def of_right(self) -> tuple[Tensor, Tensor]:
        """Those images and their labels."""
        return self.x[self.right], self.y[self.right]

    def withstands(self, attack: PGD) -> Tensor:
        """Which of the correctly classified images stay so."""
        x, y = self.of_right()
        return is_right(self.model, attack(self.model, x, y), y) if len(x) else self.right[:0]

    def another(self, model: Classifier) -> Sample:
        """Another model on the same images."""
        return Sample.of(model, self.x, self.y, eps=self.eps, norm=self.norm, seed=self.seed)


def _slope(model: Classifier, x: Tensor, y: Tensor, loss: Loss) -> tuple[Tensor, Tensor]:
    """Logits and the largest slope of the loss. A pass for each loss: one of a compiled model can
    be gone back through once."""
    leaf, gradient = x.clone().requires_grad_(True), None
    with torch.enable_grad():
        logits = model(leaf.clone())  # a model may work in place
        values = loss(logits, y, reduction="none")
    if values.requires_grad:
        (gradient,) = torch.autograd.grad(values.sum(), leaf, allow_unused=True)
    if gradient is None:
        return logits.detach(), x.new_zeros(len(x))
    return logits.detach(), gradient.flatten(1).abs().amax(dim=1)


def is_right(model: Classifier, x: Tensor, y: Tensor) -> Tensor:
    with torch.no_grad():
        return model(x.clone()).argmax(dim=1) == y


def difference(logits: Tensor, others: Tensor) -> tuple[float, float]:
    """The largest difference, and the size of the logits that decide: those of
    classes ruled out are huge."""
    change = (logits - others).nan_to_num(nan=0.0, posinf=math.inf, neginf=-math.inf)
    deciding = logits.topk(min(2, logits.shape[1]), dim=1).values
    return change.abs().max().item(), deciding.abs().max().item()
