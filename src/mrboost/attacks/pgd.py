r"""Projected gradient ascent and the attacks that are values of it: FGSM, PGD, CW.

An attack is a loss, a start, a step and a projection::

    x_0     = Π(x + start)
    x_{k+1} = Π(x_k + steepest step of length α along ∇ Σ_i loss_i(x_k))

where Π projects onto the eps-ball around x and the box [0, 1]. ``ascend`` is that loop for any
per-example objective of the images; ``PGD`` is the objective ``loss(model(x'), y)``. The model is
an argument, never owned: an attack sees it in eval mode without gradients to its weights, and
leaves it as it was found.

References: Goodfellow et al. 2015 (FGSM); Madry et al. 2018 (PGD); Carlini & Wagner
2017 (CW's margin loss).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from mrboost.ensemble import Classifier, Mixture
from mrboost.losses import Loss, cross_entropy, margin
from mrboost.seeds import ImageStreams, Randomness, random_like
from mrboost.threat import Threat, wide

from .base import InBall, check_loss, check_step_size, loss_suffix, takes_arrays
from .model import check_targets, checked, input_gradient

# Images ``(N, …)`` to one value per example, which the attack raises.
Objective = Callable[[Tensor], Tensor]


class Start(Protocol):
    """The perturbation that the ascent starts from, before projection."""

    def __call__(self, x: Tensor, threat: Threat, source: Randomness) -> Tensor: ...


@dataclass(frozen=True)
class FromClean:
    """Start at the clean image (FGSM)."""

    def __call__(self, x: Tensor, threat: Threat, source: Randomness) -> Tensor:
        return torch.zeros_like(x)


@dataclass(frozen=True)
class Uniform:
    """Start uniformly in the ball of radius ``scale · eps`` (Madry: 1; the
    release of the paper: 1/2)."""

    scale: float = 1.0

    def __call__(self, x: Tensor, threat: Threat, source: Randomness) -> Tensor:
        return threat.uniform(x, source) * self.scale


@dataclass(frozen=True)
class Gaussian:
    """Start at a tiny normal perturbation (TRADES and MART: 0.001)."""

    std: float = 0.001

    def __call__(self, x: Tensor, threat: Threat, source: Randomness) -> Tensor:
        return random_like(torch.randn, x, source) * self.std


# Starts by the names that the command line uses.
STARTS: dict[str, Start] = {
    "uniform": Uniform(),
    "half": Uniform(0.5),
    "gaussian": Gaussian(),
    "clean": FromClean(),
}


def ascend(
    objective: Objective,
    x: Tensor,
    threat: Threat,
    *,
    steps: int,
    step_size: float,
    start: Start,
    source: Randomness = None,
) -> Tensor:
    """Projected steepest ascent on any objective of the images.

    Args:
        objective: images ``(N, …)`` to one value per example, which the ascent raises.
        x: the clean images.
        threat: what the adversary may do to them.
        steps, step_size: number and length of the steps.
        start: the perturbation that it starts from.
        source: of the start's random numbers.

    Returns:
        The last iterate.
    """
    x_adv = threat.project(x + start(x, threat, source), x)
    for _ in range(steps):
        x_adv.requires_grad_(True)
        with torch.enable_grad():
            gradient = input_gradient(objective(x_adv).sum(), x_adv)
        x_adv = threat.project(x_adv.detach() + threat.step(gradient, step_size), x)
    return x_adv


@dataclass(frozen=True)
class PGD(InBall):
    """Projected gradient ascent on a loss of the model's logits.

    Args:
        eps: radius of the ball, in units of images in [0, 1].
        norm: "Linf", "L2" or "L1".
        steps: number of gradient steps of each restart.
        step_size: length of a step in the norm; a quarter of eps if not given.
        loss: what to raise, any ``loss(logits, target, reduction="none")`` of ``mrboost.losses``.
        start: where a restart begins; uniform in the ball by default.
        restarts: independent starts. With more than one, each example keeps the result that is
            misclassified (by a ``Mixture``: with the highest probability), among equals the one of
            highest loss.
        seed: of the random starts. Each image has its own stream, so that neither the batch it
            comes in nor the device changes its start. None draws a seed.

    Example:
        >>> x_adv = PGD(eps=8 / 255, steps=20)(model, x, y)  # doctest: +SKIP
    """

    steps: int = field(default=20, kw_only=True)
    step_size: float | None = field(default=None, kw_only=True)
    loss: Loss = field(default=cross_entropy, kw_only=True)
    start: Start = field(default=Uniform(), kw_only=True)
    restarts: int = field(default=1, kw_only=True)
    seed: int | None = field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_loss(self.loss)
        self.check_at_least_one("steps", "restarts")
        check_step_size(self.step_size)

    @property
    def name(self) -> str:
        """The name that tables use, as ``named`` reads it: fgsm, cw, pgd-20, pgd-mce-20."""
        if self == FGSM(self.eps, self.norm):
            return "fgsm"
        if self == CW(self.eps, self.norm):
            return "cw"
        return f"pgd{loss_suffix(self.loss, plain='cross_entropy')}-{self.steps}"

    def work(self, classes: int) -> int:
        return self.steps * self.restarts

    def ascend(self, objective: Objective, x: Tensor, source: Randomness = None) -> Tensor:
        """One ascent with this attack's threat, steps and start on any objective of the images."""
        size = self.eps / 4 if self.step_size is None else self.step_size
        how: Any = {"steps": self.steps, "step_size": size, "start": self.start}
        return ascend(objective, x, self.threat, **how, source=source)

    @takes_arrays
    def __call__(
        self,
        model: Classifier,
        x: Tensor,
        y: Tensor,
        *,
        generator: torch.Generator | None = None,
        targets: Tensor | None = None,
    ) -> Tensor:
        """Adversarial versions of images ``x`` in [0, 1] with labels ``y``: same shape and dtype.

        With ``targets``, a label for each image, the attack lowers the loss of that label, so that
        the model may take the image for it.
        """
        with checked(model, x, y) as (x, y, classes):
            if targets is not None:
                y = check_targets(targets, y, classes)
            aimed = targets is not None
            source = ImageStreams(self.seed, x) if generator is None else generator

            def objective(images: Tensor) -> Tensor:
                loss = self.loss(model(images.clone()), y, reduction="none")
                return -loss if aimed else loss

            best = self.ascend(objective, x, source)
            if self.restarts == 1:
                return best
            wrong, loss = self._score(model, best, y, aimed)
            for _ in range(self.restarts - 1):
                trial = self.ascend(objective, x, source)
                trial_wrong, trial_loss = self._score(model, trial, y, aimed)
                better = (trial_wrong > wrong) | ((trial_wrong == wrong) & (trial_loss > loss))
                wrong = torch.where(better, trial_wrong, wrong)
                loss = torch.where(better, trial_loss, loss)
                best = torch.where(wide(better, x), trial, best)
        return best

    def _score(self, model: Classifier, x: Tensor, y: Tensor, aimed: bool) -> tuple[Tensor, Tensor]:
        """Whether each example is misclassified, or with which probability, and its loss; aimed,
        whether it gets the label, and the loss below zero."""
        with torch.no_grad():
            logits = model(x.clone())
            right = (logits.argmax(dim=1) == y).float()
            if isinstance(model, Mixture):
                right = model.expected_correct(x, y).float()
            loss = self.loss(logits, y, reduction="none").float()
            return (right, -loss) if aimed else (1 - right, loss)


def FGSM(eps: float = 8 / 255, norm: str = "Linf", *, loss: Loss = cross_entropy) -> PGD:
    """Fast gradient sign method: one step of length eps from the clean image."""
    return PGD(eps, norm, steps=1, step_size=eps, loss=loss, start=FromClean())


def CW(eps: float = 8 / 255, norm: str = "Linf", *, steps: int = 30, **options: Any) -> PGD:
    """Carlini–Wagner's margin loss inside PGD, as adversarial-training papers use it; ``options``
    are those of ``PGD``."""
    return PGD(eps, norm, steps=steps, loss=margin, **options)
