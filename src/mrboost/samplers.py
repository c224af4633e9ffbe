"""Samplers: the adversary's move. Given a batch, which perturbed batch does the learner train on?

A sampler decides who is attacked and what the attack raises; how the attack moves (ball, steps, start) comes
from the recipe's ``PGD``. With g the mean logits of the past members and the learner, y' a false label:

========  =================================================================================================
Learner   plain adversarial training: the learner alone is attacked
Past      the past members alone are attacked (Pinot et al. 2020); the first learner attacks itself
All       one δ that maximises Σ_{y'} MCE(g(x + δ), y, y')
Rnd       a random y', then its δ
Max       the worst pair (y', δ)
Exp       a draw from P_t ∝ exp(η MCE(Σ_j g_j(x + δ), y, y')), see ``exponential.py``
========  =================================================================================================

"Aggressive defense" (the default) attacks past members and learner together; without it the learner is left out,
as in the paper's Algorithm 2, and the first learner trains on uniform draws from the ball, which are P_1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import ClassVar, Protocol

import torch
from torch import Tensor, nn

from .attacks import PGD, Classifier, attacked
from .ensemble import mean_logits
from .losses import Loss, cross_entropy, margin_cross_entropy, most_likely_other


@dataclass(frozen=True)
class Sample:
    """A batch that the adversary has touched."""

    clean: Tensor
    x: Tensor
    """The perturbed images."""
    y: Tensor
    other: Tensor | None = None
    """The false label y' of each example, where the sampler chose one."""
    weight: Tensor | None = None
    """Importance of each example, of mean one; None means that all count alike."""
    facts: Mapping[str, Tensor] = field(default_factory=lambda: MappingProxyType({}))
    """Figures about the draw for the metrics, scalars on the device."""


class Sampler(Protocol):
    joint: ClassVar[bool]
    """Whether learners train as parts of an ensemble, and so are judged by it, or each for itself."""

    def __call__(
        self,
        attack: PGD,
        learner: nn.Module,
        past: Sequence[nn.Module],
        x: Tensor,
        y: Tensor,
        generator: torch.Generator,
    ) -> Sample: ...


def victims(learner: nn.Module, past: Sequence[nn.Module], aggressive: bool) -> list[nn.Module]:
    return [*past, learner] if aggressive else list(past)


def false_labels(y: Tensor, classes: int, generator: torch.Generator) -> Tensor:
    """Labels drawn uniformly from all but the true ones."""
    shift = torch.randint(1, classes, y.shape, generator=generator, device=y.device)
    return (y + shift) % classes


@dataclass(frozen=True)
class Learner:
    """Plain adversarial training: raise ``loss`` of the learner alone, whatever came before it."""

    joint: ClassVar[bool] = False
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
        return Sample(clean=x, x=_ascend(attack, [learner], self.loss, x, y, generator), y=y)


@dataclass(frozen=True)
class Past:
    """Pinot et al. 2020: the learner trains on the adversarial examples of its predecessors."""

    joint: ClassVar[bool] = True
    loss: Loss = cross_entropy

    def __call__(
        self,
        attack: PGD,
        learner: nn.Module,
        past: Sequence[nn.Module],
        x: Tensor,
        y: Tensor,
        generator: torch.Generator,
    ) -> Sample:
        return Sample(clean=x, x=_ascend(attack, past or [learner], self.loss, x, y, generator), y=y)


@dataclass(frozen=True)
class All:
    """One perturbation against all false labels at once; with the cross-entropy, RobBoost's adversary."""

    joint: ClassVar[bool] = True
    loss: Loss = margin_cross_entropy
    aggressive: bool = True

    def __call__(
        self,
        attack: PGD,
        learner: nn.Module,
        past: Sequence[nn.Module],
        x: Tensor,
        y: Tensor,
        generator: torch.Generator,
    ) -> Sample:
        who = victims(learner, past, self.aggressive)
        return Sample(clean=x, x=_ascend(attack, who, self.loss, x, y, generator), y=y)


@dataclass(frozen=True)
class Rnd:
    """A uniformly random false label, and the perturbation that is worst for it."""

    joint: ClassVar[bool] = True
    aggressive: bool = True

    def __call__(
        self,
        attack: PGD,
        learner: nn.Module,
        past: Sequence[nn.Module],
        x: Tensor,
        y: Tensor,
        generator: torch.Generator,
    ) -> Sample:
        with attacked(learner), torch.no_grad():
            classes = learner(x[:1]).shape[1]
        other = false_labels(y, classes, generator)

        def pairwise(logits: Tensor, target: Tensor, *, reduction: str = "mean") -> Tensor:
            return margin_cross_entropy(logits, target, other, reduction)  # type: ignore[arg-type]

        who = victims(learner, past, self.aggressive)
        return Sample(clean=x, x=_ascend(attack, who, pairwise, x, y, generator), y=y, other=other)


@dataclass(frozen=True)
class Max:
    """The worst pair of false label and perturbation.

    For given logits the worst y' is the largest false logit, since MCE(g, y, y') = CE(g, y) + g_{y'} +
    log Σ_j exp(−g_j) grows with g_{y'}: the ascent follows the maximum over y' without trying the labels one by one.
    """

    joint: ClassVar[bool] = True
    aggressive: bool = True

    def __call__(
        self,
        attack: PGD,
        learner: nn.Module,
        past: Sequence[nn.Module],
        x: Tensor,
        y: Tensor,
        generator: torch.Generator,
    ) -> Sample:
        def worst_pair(logits: Tensor, target: Tensor, *, reduction: str = "mean") -> Tensor:
            other = most_likely_other(logits.detach(), target)
            return margin_cross_entropy(logits, target, other, reduction)  # type: ignore[arg-type]

        who = victims(learner, past, self.aggressive)
        x_adv = _ascend(attack, who, worst_pair, x, y, generator)
        with attacked(learner), torch.no_grad():
            other = most_likely_other(mean_logits(who or [learner], x_adv), y)
        return Sample(clean=x, x=x_adv, y=y, other=other)


def _ascend(
    attack: PGD, who: Sequence[Classifier], loss: Loss, x: Tensor, y: Tensor, generator: torch.Generator
) -> Tensor:
    """Raise the loss of the victims' mean logits; with nobody to attack, draw uniformly from the ball."""
    if not who:
        return attack.threat.project(x + attack.threat.uniform(x, generator), x)
    with attacked(*who):
        return attack.ascend(lambda images: loss(mean_logits(who, images), y, reduction="none"), x, generator)
