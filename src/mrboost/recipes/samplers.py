"""Samplers: the adversary's move. Given a batch, which perturbed batch does the learner train on?

A sampler decides who is attacked and what the attack raises; the ball comes from the run, and (but
for Exp, which has moves of its own) steps and start from the recipe. It sees the learner in eval
mode on its current weights, and the frozen past members. With g the mean logits of the past members
and the learner, y' a false label:

========  ==========================================================================================
Learner   plain adversarial training: the learner alone is attacked
Diverge   TRADES: the perturbed logits are driven away from the clean ones, whatever the label
Geometry  GAIR: plain adversarial training, examples weighted by how long they withstand the attack
Past      the past members alone are attacked (Pinot et al. 2020); the first learner attacks itself
All       one δ that maximises Σ_{y'} MCE(g(x + δ), y, y')
Drawn     as All, each image against the learner and one of the past members, which
          stands for all of them
Rnd       a random y', then its δ
Max       the worst pair (y', δ)
Exp       a draw from P_t ∝ exp(η MCE(Σ_j g_j(x + δ), y, y')), see ``exponential.py``
========  ==========================================================================================

``Diverge`` and ``Geometry`` attack the learner alone, or with ``joint`` the ensemble that it
completes. "Aggressive defense" (the default) attacks past members and learner together; without it
the learner is left out, as in the paper's Algorithm 2, and the first learner trains on random draws
from the ball, clipped to valid images.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import ClassVar, Protocol

import torch
from torch import Tensor, nn

from mrboost.attacks import PGD, attacked
from mrboost.data import Mixed
from mrboost.ensemble import mean_logits
from mrboost.losses import (
    Divergence,
    Loss,
    cross_entropy,
    kl_divergence,
    margin_cross_entropy,
    most_likely_other,
)
from mrboost.seeds import Randomness

Answer = Callable[[Sequence[Callable[[Tensor], Tensor]], Tensor], Tensor]
"""What several networks say of a batch together."""


def over_labels(of: Callable[[Tensor], Tensor], y: Tensor, mixed: Mixed | None) -> Tensor:
    """What ``of`` says of the labels, per example; of images that are made of two, its
    mean over both labels."""
    if mixed is None:
        return of(y)
    return mixed.share * of(y) + (1 - mixed.share) * of(mixed.second)


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
    mixed: Mixed | None = None

    def over_labels(self, of: Callable[[Tensor], Tensor]) -> Tensor:
        return over_labels(of, self.y, self.mixed)

    def mean(self, losses: Tensor) -> Tensor:
        """The mean of one loss per example, each with its weight."""
        return (losses if self.weight is None else losses * self.weight).mean()


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
    mixed: Mixed | None = None
    starts: Randomness = None
    """Where ascents draw their starts from, if not from the generator."""

    def victims(self, aggressive: bool) -> list[nn.Module]:
        return [*self.past, self.learner] if aggressive else list(self.past)

    def ascend(self, who: Sequence[nn.Module], loss: Loss, answer: Answer = mean_logits) -> Tensor:
        """Raise the loss of what the victims answer together; with nobody to attack, draw
        uniformly from the ball."""
        if not who:
            threat = self.attack.threat
            return threat.project(
                self.x + threat.uniform(self.x, self.starts or self.generator), self.x
            )
        with attacked(*who):
            return self.attack.ascend(
                lambda images: self._raised(loss, answer(who, images)),
                self.x,
                self.starts or self.generator,
            )

    def _raised(self, loss: Loss, logits: Tensor) -> Tensor:
        return over_labels(lambda label: loss(logits, label, reduction="none"), self.y, self.mixed)

    def sample(
        self, x_adv: Tensor, other: Tensor | None = None, weight: Tensor | None = None
    ) -> Sample:
        return Sample(clean=self.x, x=x_adv, y=self.y, other=other, weight=weight, mixed=self.mixed)


class Sampler(Protocol):
    @property
    def joint(self) -> bool:
        """Whether learners train as parts of an ensemble, and so are judged by
        it, or each for itself."""

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
class Diverge:
    """TRADES: raise the divergence of the perturbed images' logits from the clean ones' (start
    beside x, not at it)."""

    divergence: Divergence = kl_divergence
    joint: bool = False

    def __call__(self, turn: Turn) -> Sample:
        who = turn.victims(True) if self.joint else [turn.learner]
        with attacked(*who), torch.no_grad():
            clean = mean_logits(who, turn.x)

        def drift(logits: Tensor, target: Tensor, *, reduction: str = "mean") -> Tensor:  # noqa: ARG001
            return self.divergence(clean, logits, reduction=reduction)  # type: ignore[arg-type]

        return turn.sample(turn.ascend(who, drift))


@dataclass(frozen=True)
class Geometry:
    """GAIR (Zhang et al. 2021): weights that fall with the geometry value κ of an example.

    κ is the number of the attack's K steps before which the example was still classified correctly,
    the weight ``sigmoid(bias + 5 (1 − 2 κ / K))``, scaled to mean one over the batch. Until the
    share ``begin`` of the training is done all examples count alike. ``bias`` is the method's λ.
    """

    loss: Loss = cross_entropy
    bias: float = 0.0
    begin: float = 0.5
    joint: bool = False

    def __call__(self, turn: Turn) -> Sample:
        kappa = torch.zeros_like(turn.y, dtype=torch.float32)

        def counting(logits: Tensor, target: Tensor, *, reduction: str = "mean") -> Tensor:
            if target is turn.y:  # of two labels the first is the image's own
                kappa.add_(logits.detach().argmax(dim=1) == target)
            return self.loss(logits, target, reduction=reduction)  # type: ignore[arg-type]

        x_adv = turn.ascend(turn.victims(True) if self.joint else [turn.learner], counting)
        weight = torch.sigmoid(self.bias + 5 * (1 - 2 * kappa / turn.attack.steps))
        weight = torch.where(turn.progress >= self.begin, weight / weight.mean(), 1.0)
        return turn.sample(x_adv, weight=weight)


@dataclass(frozen=True)
class All:
    """One perturbation against all false labels at once; with the cross-entropy,
    RobBoost's adversary."""

    joint: ClassVar[bool] = True
    loss: Loss = margin_cross_entropy
    aggressive: bool = True

    def __call__(self, turn: Turn) -> Sample:
        return turn.sample(turn.ascend(turn.victims(self.aggressive), self.loss))


@dataclass(frozen=True)
class Drawn:
    """``All`` at the cost of two members, however many there are: of the past, each
    image meets one member.

    It counts as often as there are past members, and which one an image meets changes with the
    shuffled batches. With one past member that is ``All`` itself.
    """

    joint: ClassVar[bool] = True
    loss: Loss = margin_cross_entropy

    def __call__(self, turn: Turn) -> Sample:
        return turn.sample(turn.ascend(turn.victims(True), self.loss, _with_one))


def _with_one(who: Sequence[Callable[[Tensor], Tensor]], x: Tensor) -> Tensor:
    *past, learner = who
    if not past:
        return learner(x)
    parts = [
        member(part)
        for member, part in zip(past, x.tensor_split(len(past)), strict=True)
        if len(part)
    ]
    return (learner(x) + len(past) * torch.cat(parts)) / len(who)


@dataclass(frozen=True)
class Rnd:
    """A uniformly random false label, and the perturbation that is worst for it."""

    joint: ClassVar[bool] = True
    aggressive: bool = True

    def __call__(self, turn: Turn) -> Sample:
        with attacked(turn.learner), torch.no_grad():
            classes = turn.learner(turn.x[:1]).shape[1]
        other = false_labels(turn.y, classes, turn.generator)
        pairwise = partial(margin_cross_entropy, other=other)
        return turn.sample(turn.ascend(turn.victims(self.aggressive), pairwise), other)


@dataclass(frozen=True)
class Max:
    """The worst pair of false label and perturbation.

    For given logits the worst y' is the largest false logit, since MCE(g, y, y') = CE(g, y) +
    g_{y'} + log Σ_j exp(−g_j) grows with g_{y'}: the ascent follows the maximum over y' without
    trying the labels one by one. It is a local ascent like PGD; an ascent for each label, K − 1
    times dearer, finds somewhat worse pairs.
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
