"""Samplers: the adversary's move. Given a batch, which perturbed batch does the learner train on?

A sampler decides who is attacked and what the attack raises; how the attack moves (ball, steps, start) comes
from the recipe's ``PGD``. It sees the learner in eval mode on its current weights, and the frozen past members.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from .attacks import PGD, attacked
from .losses import Loss, cross_entropy


@dataclass(frozen=True)
class Sample:
    """A batch that the adversary has touched."""

    clean: Tensor
    x: Tensor
    """The perturbed images."""
    y: Tensor
    weight: Tensor | None = None
    """Importance of each example; None means that all count alike."""


class Sampler(Protocol):
    def __call__(
        self,
        attack: PGD,
        learner: nn.Module,
        past: Sequence[nn.Module],
        x: Tensor,
        y: Tensor,
        generator: torch.Generator,
    ) -> Sample: ...


@dataclass(frozen=True)
class Learner:
    """Plain adversarial training: raise ``loss`` of the learner alone, whatever came before it."""

    loss: Loss = cross_entropy

    def __call__(
        self,
        attack: PGD,
        learner: nn.Module,
        past: Sequence[nn.Module],  # noqa: ARG002 — part of the protocol
        x: Tensor,
        y: Tensor,
        generator: torch.Generator,
    ) -> Sample:
        with attacked(learner):
            x_adv = attack.ascend(lambda images: self.loss(learner(images), y, reduction="none"), x, generator)
        return Sample(clean=x, x=x_adv, y=y)
