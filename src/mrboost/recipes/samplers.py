"""Samplers: the adversary in training. Which perturbed batch does the learner train on?

A sampler decides which networks are attacked and which loss the attack raises. The ball comes from
the run, the number of steps and the start from the recipe (``Exp`` alone has steps of its own). The
networks are in eval mode, the past members frozen. With g the mean logits of past members and
learner, g_t the learner's, y the label, y' a false label and MCE-A the mean of MCE over all y':

========  ==========================================================================================
Learner   max_δ CE(g_t(x + δ), y): adversarial training (Madry et al. 2018)
Diverge   max_δ KL(p_t(x) ‖ p_t(x + δ)): TRADES (Zhang et al. 2019)
Geometry  as Learner, each example weighted by how long it withstands the attack: GAIR (Zhang et
          al. 2021)
Past      as Learner, the mean logits of the past members in place of g_t (Pinot et al. 2020)
All       max_δ MCE-A(g(x + δ), y); with the cross-entropy RobBoost (Abernethy et al. 2021)
Drawn     an estimate of All: each image is attacked on the learner and one past member
Rnd       a random y', then max_δ MCE(g(x + δ), y, y')
Max       max_{y', δ} MCE(g(x + δ), y, y')
Exp       (y', δ) ~ P_t ∝ exp(η MCE(Σ_j g_j(x + δ), y, y')), with importance weights: see
          ``exponential.py``
========  ==========================================================================================

``All``, ``Rnd``, ``Max`` and ``Exp`` are the samplers of Zhang et al., "Building Robust Ensembles
via Margin Boosting", ICML 2022. With ``aggressive``, the default, they attack the past members and
the learner together. Without it the learner is left out, as in the paper's Algorithm 2; the first
learner then trains on uniform draws from the ball.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar, Protocol, TypeVar

import torch
from torch import Tensor, nn

from mrboost import losses
from mrboost.attacks import PGD, attacked
from mrboost.data import Mixed
from mrboost.ensemble import mean_logits
from mrboost.errors import check_new_name, check_part
from mrboost.seeds import Randomness

# Networks and a batch to the logits that they give together
Combine = Callable[[Sequence[Callable[[Tensor], Tensor]], Tensor], Tensor]


def over_labels(
    loss_of: Callable[[Tensor], Tensor], y: Tensor, mixed: Mixed | None = None
) -> Tensor:
    """The loss of each example for its label; of an image cut from two, the mean over both
    labels, weighted by area."""
    if mixed is None:
        return loss_of(y)
    return mixed.share * loss_of(y) + (1 - mixed.share) * loss_of(mixed.second)


@dataclass(frozen=True)
class Sample:
    """A batch for the learner to train on.

    Attributes:
        clean, x: the images before the attack, and the perturbed ones.
        y: their labels.
        other: the false label y' of each example, where the sampler chose one.
        weight: of each example, of mean one; None means that all count alike.
        facts: figures for the metrics, scalars on the device.
        mixed: the second labels of images that CutMix made of two.
    """

    clean: Tensor
    x: Tensor
    y: Tensor
    other: Tensor | None = None
    weight: Tensor | None = None
    facts: Mapping[str, Tensor] = field(default_factory=lambda: MappingProxyType({}))
    mixed: Mixed | None = None

    def over_labels(self, loss_of: Callable[[Tensor], Tensor]) -> Tensor:
        """The loss of each example for its label, or for both labels of a mixed image."""
        return over_labels(loss_of, self.y, self.mixed)

    def mean(self, losses: Tensor) -> Tensor:
        """The weighted mean of one loss per example."""
        return (losses if self.weight is None else losses * self.weight).mean()


@dataclass(frozen=True)
class Turn:
    """What a sampler gets: the attack, the networks and a batch.

    Attributes:
        attack: the ball, the steps and the start; the sampler chooses the loss.
        learner, past: the network under training, and the frozen members of earlier rounds.
        x, y: images and labels.
        generator: of the sampler's own draws.
        progress: the share of the training that is done, in [0, 1), as a tensor on the device.
        mixed: the second labels of images that CutMix made of two.
        starts: where the starts of attacks are drawn from, if not from ``generator``.
    """

    attack: PGD
    learner: nn.Module
    past: Sequence[nn.Module]
    x: Tensor
    y: Tensor
    generator: torch.Generator
    progress: Tensor = field(default_factory=lambda: torch.zeros(()))
    mixed: Mixed | None = None
    starts: Randomness = None

    @property
    def ensemble(self) -> list[nn.Module]:
        """The past members and the learner."""
        return [*self.past, self.learner]

    def victims(self, aggressive: bool) -> list[nn.Module]:
        """The networks to attack: with or without the learner."""
        return self.ensemble if aggressive else list(self.past)

    def ascend(
        self, networks: Sequence[nn.Module], loss: losses.Loss, combine: Combine = mean_logits
    ) -> Tensor:
        """Perturbed images that raise a loss of the networks' combined logits.

        Args:
            networks: those to attack; without any, the perturbation is a uniform draw.
            loss: ``loss(logits, target, reduction="none")``.
            combine: the logits that the networks give together, their mean by default.
        """
        source = self.starts or self.generator
        if not networks:
            threat = self.attack.threat
            return threat.project(self.x + threat.uniform(self.x, source), self.x)

        def objective(images: Tensor) -> Tensor:
            logits = combine(networks, images)
            return over_labels(partial(loss, logits, reduction="none"), self.y, self.mixed)

        with attacked(*networks):
            return self.attack.ascend(objective, self.x, source)

    def sample(
        self, x_adv: Tensor, other: Tensor | None = None, weight: Tensor | None = None
    ) -> Sample:
        """The batch of this turn with these perturbed images."""
        return Sample(clean=self.x, x=x_adv, y=self.y, other=other, weight=weight, mixed=self.mixed)


class Sampler(Protocol):
    """What every sampler has."""

    @property
    def joint(self) -> bool:
        """Whether learners are trained as parts of an ensemble, and so judged by the
        ensemble's accuracy, or each for itself."""

    def __call__(self, turn: Turn) -> Sample: ...


SAMPLERS: dict[str, Sampler] = {}
"""Samplers by the names that ``--sampler`` uses."""
S = TypeVar("S", bound=Sampler | type[Sampler])


def register(name: str) -> Callable[[S], S]:
    """Make a sampler available to ``train --sampler`` under ``name``: a class that needs no
    arguments, or a value of it::

        @mrboost.samplers.register("half-clean")
        @dataclass(frozen=True)
        class HalfClean: ...
    """

    def decorate(sampler: S) -> S:
        check_new_name("sampler", name, SAMPLERS)
        made: Any = sampler() if isinstance(sampler, type) else sampler
        check_part(f"sampler {name!r}", made, "joint")
        SAMPLERS[name] = made
        return sampler

    return decorate


def false_labels(y: Tensor, classes: int, generator: torch.Generator) -> Tensor:
    """Labels drawn uniformly from all but the true ones.

    Example:
        >>> y = torch.tensor([0, 1, 1])
        >>> (false_labels(y, 10, torch.Generator()) == y).any()
        tensor(False)
    """
    shift = torch.randint(1, classes, y.shape, generator=generator, device=y.device)
    return (y + shift) % classes


@register("learner")
@dataclass(frozen=True)
class Learner:
    """Adversarial training: attack the learner alone (Madry et al. 2018)."""

    joint: ClassVar[bool] = False
    loss: losses.Loss = losses.cross_entropy

    def __call__(self, turn: Turn) -> Sample:
        return turn.sample(turn.ascend([turn.learner], self.loss))


@register("past")
@dataclass(frozen=True)
class Past:
    """Attack the past members; the first learner itself (Pinot et al. 2020)."""

    joint: ClassVar[bool] = True
    loss: losses.Loss = losses.cross_entropy

    def __call__(self, turn: Turn) -> Sample:
        return turn.sample(turn.ascend(turn.past or [turn.learner], self.loss))


@register("diverge")
@dataclass(frozen=True)
class Diverge:
    """TRADES: drive the perturbed logits away from the clean ones, ``max_δ divergence(g(x), g(x +
    δ))`` (Zhang et al. 2019).

    The gradient vanishes at the clean image: use a start beside it. With ``joint`` the ensemble is
    attacked, not the learner alone.
    """

    divergence: losses.Divergence = losses.kl_divergence
    joint: bool = False

    def __call__(self, turn: Turn) -> Sample:
        networks = turn.ensemble if self.joint else [turn.learner]
        with attacked(*networks), torch.no_grad():
            clean = mean_logits(networks, turn.x)

        def drift(logits: Tensor, target: Tensor, *, reduction: str = "mean") -> Tensor:  # noqa: ARG001
            return self.divergence(clean, logits, reduction=reduction)  # type: ignore[arg-type]

        return turn.sample(turn.ascend(networks, drift))


@register("geometry")
@dataclass(frozen=True)
class Geometry:
    """GAIR: attack the learner, and give examples that fall early a higher weight (Zhang et al.
    2021).

    The weight is ``ω ∝ sigmoid(bias + 5 (1 − 2 κ / K))``, of mean one over the batch, where κ of
    the attack's K steps begin at a point that is classified correctly.

    Args:
        loss: what the attack raises.
        bias: the method's λ.
        begin: until this share of the training is done all examples count alike.
        joint: attack the ensemble, not the learner alone.
    """

    loss: losses.Loss = losses.cross_entropy
    bias: float = 0.0
    begin: float = 0.5
    joint: bool = False

    def __call__(self, turn: Turn) -> Sample:
        kappa = torch.zeros_like(turn.y, dtype=torch.float32)

        def counting(logits: Tensor, target: Tensor, *, reduction: str = "mean") -> Tensor:
            if target is turn.y:  # of two labels the first is the image's own
                kappa.add_(logits.detach().argmax(dim=1) == target)
            return self.loss(logits, target, reduction=reduction)  # type: ignore[arg-type]

        networks = turn.ensemble if self.joint else [turn.learner]
        x_adv = turn.ascend(networks, counting)
        weight = torch.sigmoid(self.bias + 5 * (1 - 2 * kappa / turn.attack.steps))
        weight = torch.where(turn.progress >= self.begin, weight / weight.mean(), 1.0)
        return turn.sample(x_adv, weight=weight)


@register("all")
@dataclass(frozen=True)
class All:
    """Attack the ensemble with one perturbation for all false labels (the paper's Sampler.All).

    With the cross-entropy it is the adversary of RobBoost (Abernethy et al. 2021).
    """

    joint: ClassVar[bool] = True
    loss: losses.Loss = losses.margin_cross_entropy
    aggressive: bool = True

    def __call__(self, turn: Turn) -> Sample:
        return turn.sample(turn.ascend(turn.victims(self.aggressive), self.loss))


@register("drawn")
@dataclass(frozen=True)
class Drawn:
    """``All`` at the cost of two networks: each image meets the learner and one past member.

    Of t − 1 past members, member j stands for all of them on its part of the batch: the attack
    raises the loss of ``(g_t + (t − 1) g_j) / t``. Which one an image meets changes as batches are
    shuffled. With one past member this is ``All``.
    """

    joint: ClassVar[bool] = True
    loss: losses.Loss = losses.margin_cross_entropy

    def __call__(self, turn: Turn) -> Sample:
        return turn.sample(turn.ascend(turn.ensemble, self.loss, _with_one_past_member))


def _with_one_past_member(networks: Sequence[Callable[[Tensor], Tensor]], x: Tensor) -> Tensor:
    *past, learner = networks
    if not past:
        return learner(x)
    parts = zip(past, x.tensor_split(len(past)), strict=True)
    logits = torch.cat([member(part) for member, part in parts if len(part)])
    return (learner(x) + len(past) * logits) / len(networks)


@register("rnd")
@dataclass(frozen=True)
class Rnd:
    """A uniformly random false label, and the perturbation that is worst for it (the paper's
    Sampler.Rnd)."""

    joint: ClassVar[bool] = True
    aggressive: bool = True

    def __call__(self, turn: Turn) -> Sample:
        with attacked(turn.learner), torch.no_grad():
            classes = turn.learner(turn.x[:1]).shape[1]
        other = false_labels(turn.y, classes, turn.generator)
        pairwise = partial(losses.margin_cross_entropy, other=other)
        return turn.sample(turn.ascend(turn.victims(self.aggressive), pairwise), other)


@register("max")
@dataclass(frozen=True)
class Max:
    """The worst pair of false label and perturbation (the paper's Sampler.Max).

    For given logits the worst y' is the false label of the largest logit, since MCE(g, y, y') =
    CE(g, y) + g_{y'} + log Σ_j exp(−g_j) grows with g_{y'}. So one ascent follows the maximum over
    y'. It is local, as PGD is; K − 1 ascents, one for each label, find somewhat worse pairs.
    """

    joint: ClassVar[bool] = True
    aggressive: bool = True

    def __call__(self, turn: Turn) -> Sample:
        def worst_pair(logits: Tensor, target: Tensor, *, reduction: str = "mean") -> Tensor:
            other = losses.most_likely_other(logits.detach(), target)
            return losses.margin_cross_entropy(logits, target, other, reduction)  # type: ignore[arg-type]

        victims = turn.victims(self.aggressive)
        x_adv = turn.ascend(victims, worst_pair)
        with attacked(turn.learner), torch.no_grad():
            other = losses.most_likely_other(mean_logits(victims or [turn.learner], x_adv), turn.y)
        return turn.sample(x_adv, other)
