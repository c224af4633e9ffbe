"""Samplers: the adversary's move. Given a batch, which perturbed batch does the learner train on?

A sampler decides who is attacked and what the attack raises; the ball comes from the run, and (but for Exp, which has
moves of its own) steps and start from the recipe. It sees the learner in eval mode on its current weights, and the
frozen past members. With g the mean logits of the past members and the learner, y' a false label:

========  =================================================================================================
Learner   plain adversarial training: the learner alone is attacked
Past      the past members alone are attacked (Pinot et al. 2020); the first learner attacks itself
All       one δ that maximises Σ_{y'} MCE(g(x + δ), y, y')
Rnd       a random y', then its δ
Max       the worst pair (y', δ)
Exp       a draw from P_t ∝ exp(η MCE(Σ_j g_j(x + δ), y, y')), see ``exponential.py``
========  =================================================================================================

"Aggressive defense" (the default) attacks past members and learner together; without it the learner is left out,
as in the paper's Algorithm 2, and the first learner trains on random draws from the ball, clipped to valid images.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import ClassVar, Protocol

import torch
from torch import Tensor, nn

from .attacks import PGD, attacked
from .ensemble import mean_logits
from .losses import Loss, cross_entropy, margin_cross_entropy, most_likely_other
from .seeds import Randomness


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


@dataclass(frozen=True)
class Turn:
    """What the adversary has before it when it moves."""

    attack: PGD
    """The ball, the steps and the start of an ascent; its loss is the sampler's choice."""
    learner: nn.Module
    past: Sequence[nn.Module]
    """The frozen members of earlier rounds."""
    x: Tensor
    y: Tensor
    generator: torch.Generator
    progress: Tensor = field(default_factory=lambda: torch.zeros(()))
    """The share of the training that lies behind, in [0, 1), on the device."""
    starts: Randomness = None
    """Where ascents draw their starts from, if not from the generator."""

    def victims(self, aggressive: bool) -> list[nn.Module]:
        return [*self.past, self.learner] if aggressive else list(self.past)

    def ascend(self, who: Sequence[nn.Module], loss: Loss) -> Tensor:
        """Raise the loss of the victims' mean logits; with nobody to attack, draw uniformly from the ball."""
        if not who:
            threat = self.attack.threat
            return threat.project(self.x + threat.uniform(self.x, self.starts or self.generator), self.x)
        with attacked(*who):
            return self.attack.ascend(
                lambda images: loss(mean_logits(who, images), self.y, reduction="none"),
                self.x,
                self.starts or self.generator,
            )

    def sample(self, x_adv: Tensor, other: Tensor | None = None) -> Sample:
        return Sample(clean=self.x, x=x_adv, y=self.y, other=other)


class Sampler(Protocol):
    joint: ClassVar[bool]
    """Whether learners train as parts of an ensemble, and so are judged by it, or each for itself."""

    def __call__(self, turn: Turn) -> Sample: ...


def false_labels(y: Tensor, classes: int, generator: torch.Generator) -> Tensor:
    """Labels drawn uniformly from all but the true ones."""
    shift = torch.randint(1, classes, y.shape, generator=generator, device=y.device)
    return (y + shift) % classes


@dataclass(frozen=True)
class Learner:
    """Plain adversarial training: raise ``loss`` of the learner alone, whatever came before it."""

    joint: ClassVar[bool] = False
    loss: Loss = cross_entropy

    def __call__(self, turn: Turn) -> Sample:
        return turn.sample(turn.ascend([turn.learner], self.loss))


@dataclass(frozen=True)
class Past:
    """Pinot et al. 2020: the learner trains on the adversarial examples of its predecessors."""

    joint: ClassVar[bool] = True
    loss: Loss = cross_entropy

    def __call__(self, turn: Turn) -> Sample:
        return turn.sample(turn.ascend(turn.past or [turn.learner], self.loss))


@dataclass(frozen=True)
class All:
    """One perturbation against all false labels at once; with the cross-entropy, RobBoost's adversary."""

    joint: ClassVar[bool] = True
    loss: Loss = margin_cross_entropy
    aggressive: bool = True

    def __call__(self, turn: Turn) -> Sample:
        return turn.sample(turn.ascend(turn.victims(self.aggressive), self.loss))


@dataclass(frozen=True)
class Rnd:
    """A uniformly random false label, and the perturbation that is worst for it."""

    joint: ClassVar[bool] = True
    aggressive: bool = True

    def __call__(self, turn: Turn) -> Sample:
        with attacked(turn.learner), torch.no_grad():
            classes = turn.learner(turn.x[:1]).shape[1]
        other = false_labels(turn.y, classes, turn.generator)

        def pairwise(logits: Tensor, target: Tensor, *, reduction: str = "mean") -> Tensor:
            return margin_cross_entropy(logits, target, other, reduction)  # type: ignore[arg-type]

        return turn.sample(turn.ascend(turn.victims(self.aggressive), pairwise), other)


@dataclass(frozen=True)
class Max:
    """The worst pair of false label and perturbation.

    For given logits the worst y' is the largest false logit, since MCE(g, y, y') = CE(g, y) + g_{y'} +
    log Σ_j exp(−g_j) grows with g_{y'}: the ascent follows the maximum over y' without trying the labels one by one. It
    is a local ascent like PGD; an ascent for each label, K − 1 times dearer, finds somewhat worse pairs.
    """

    joint: ClassVar[bool] = True
    aggressive: bool = True

    def __call__(self, turn: Turn) -> Sample:
        def worst_pair(logits: Tensor, target: Tensor, *, reduction: str = "mean") -> Tensor:
            other = most_likely_other(logits.detach(), target)
            return margin_cross_entropy(logits, target, other, reduction)  # type: ignore[arg-type]

        who = turn.victims(self.aggressive)
        x_adv = turn.ascend(who, worst_pair)
        with attacked(turn.learner), torch.no_grad():
            other = most_likely_other(mean_logits(who or [turn.learner], x_adv), turn.y)
        return turn.sample(x_adv, other)
