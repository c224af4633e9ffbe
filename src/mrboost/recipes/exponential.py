r"""The sampler Exp: draws from the distribution P_t of the paper's Algorithm 3.

    P_t(x, y, y', δ) ∝ exp(η MCE(Σ_j g_j(x + δ), y, y'))

over the examples, the false labels and the perturbations, relative to the uniform distribution on
the feasible perturbations of each example (ball and box). The paper leaves it as future work. In
three steps:

1. **Gaussian coordinates.** The feasible set of an Linf ball is a box, so δ = lo + (hi − lo) Φ(z)
   turns its uniform distribution into a standard normal for z, and there is no boundary left to
   bounce off.
2. **Preconditioned Langevin moves.** With f the log density relative to it, the
   semi-implicit step z' = (1 − h/2)/(1 + h/2) z + h/(1 + h/2) ∇f(z) + noise keeps the normal
   invariant for f = 0 at any step h and in any dimension (Cotter et al. 2013); a Metropolis test
   corrects the rest.
3. **Annealing.** The chain starts at a uniform draw and moves to the target through its powers; the
   products of the density ratios along the way are importance weights that correct for a chain that
   is too short and for the different normalisers of the examples at once (Neal 2001). y' is summed
   out along the chain and drawn exactly at its end.

So the weights estimate P_t's normaliser without bias for any number of steps; more steps lower
their variance. They are normalised over the batch, which biases an example's share by O(1 / batch
size). Acceptance and effective sample size go to the metrics.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from mrboost.attacks import attacked
from mrboost.ensemble import mean_logits
from mrboost.errors import InputError
from mrboost.losses import is_label, margin_cross_entropies
from mrboost.seeds import random_like
from mrboost.threat import wide

from .samplers import Sample, Turn, register

# The step of a move is drawn from [step_size / 100, step_size], since logits differ in scale
_STEP_RANGE = 100.0


class _Chain(NamedTuple):
    """The state of the Markov chains of a batch.

    Attributes:
        z: Gaussian coordinates of the perturbation.
        losses: η MCE of each false label, (N, K), −∞ at the true one.
        density: log of the target's density relative to the uniform one: log Σ_{y'} exp(η MCE).
        gradient: of the density, in z.
    """

    z: Tensor
    losses: Tensor
    density: Tensor
    gradient: Tensor


@register("exp")
@dataclass(frozen=True)
class Exp:
    """Draw (y', δ) and an importance weight for every example of the batch, from P_t.

    Args:
        eta: the inverse temperature η; 0 is the uniform distribution. For large η the distribution
            concentrates on the worst pairs of the worst examples, and needs more steps.
        steps: annealed Langevin moves; each costs a forward and a backward pass of every network
            that is attacked, and so does the start.
        step_size: the largest step h of a move, at most 2; each h is drawn between a hundredth of
            it and all of it.
        aggressive: attack the learner as well as the past members.
        reweight: weight the examples, as P_t does. Without it they count alike, and (y', δ) follow
            P_t given (x, y) as well as a chain of this length can: then η may be large without a
            few examples taking the whole batch.
    """

    joint: ClassVar[bool] = True
    eta: float = 0.5
    steps: int = 10
    step_size: float = 2.0
    aggressive: bool = True
    reweight: bool = True

    def __post_init__(self) -> None:
        if not 0 <= self.eta < float("inf") or self.steps < 1 or not 0 < self.step_size <= 2:
            raise InputError(f"Exp needs eta >= 0, steps >= 1, 0 < step_size <= 2, got {self!r}")

    def check_options(self, recipe: Any, options: Mapping[str, Any]) -> None:
        """Refuse what these draws cannot follow."""
        if options.get("norm", "Linf") != "Linf":
            raise InputError(f"{recipe.name!r} draws from Linf balls: leave norm out")
        if options.get("steps", recipe.steps) != recipe.steps:
            raise InputError(f"{recipe.name!r} has moves of its own: leave steps out")

    def __call__(self, turn: Turn) -> Sample:
        x, y, eps, generator = turn.x, turn.y, turn.attack.eps, turn.generator
        victims = turn.victims(self.aggressive)
        eta = self.eta if victims else 0.0  # with nobody to attack, P_1 is uniform
        networks = victims or [turn.learner]
        low, high = (x - eps).clamp(min=0), (x + eps).clamp(max=1)

        def images(z: Tensor) -> Tensor:
            share: Tensor = torch.special.ndtr(z)
            return low + (high - low) * share

        def chain_at(z: Tensor) -> _Chain:
            z = z.detach().requires_grad_(True)
            with torch.enable_grad():
                summed = mean_logits(networks, images(z)) * len(networks)
                losses = eta * margin_cross_entropies(summed.float(), y)
                losses = losses.masked_fill(is_label(losses, y), -torch.inf)  # also for η = 0
                density = losses.logsumexp(dim=1)
                (gradient,) = torch.autograd.grad(density.sum(), z)
            return _Chain(z.detach(), losses.detach(), density.detach(), gradient)

        with attacked(*networks):
            chain, log_weight, acceptance = self._anneal(chain_at, x, generator)
        weight = log_weight.softmax(dim=0) * len(x)
        facts = {
            "acceptance": acceptance,
            # Of the batch: the effective sample size over its size
            "effective_share": len(x) / weight.square().sum(),
        }
        x_adv = torch.clamp(images(chain.z), low, high)
        other = _draw(chain.losses, generator)
        return Sample(x, x_adv, y, other, weight if self.reweight else None, facts)

    def _anneal(
        self, chain_at: Callable[[Tensor], _Chain], x: Tensor, generator: torch.Generator
    ) -> tuple[_Chain, Tensor, Tensor]:
        """The chains at their ends, their log importance weights, and the share of moves that
        were accepted."""
        chain = chain_at(random_like(torch.randn, x, generator))
        log_weight = torch.zeros_like(chain.density)
        accepted = torch.zeros_like(chain.density)
        shape = (len(x), *[1] * (x.ndim - 1))
        for k in range(1, self.steps + 1):
            # The power rises from (k − 1)/steps to k/steps
            log_weight += chain.density / self.steps
            # Of each chain its own; it does not depend on the state, so that the moves leave the
            # distribution invariant
            exponent = torch.rand(shape, generator=generator, device=x.device, dtype=x.dtype)
            step = self.step_size * _STEP_RANGE**-exponent
            chain, moved = _move(chain, chain_at, k / self.steps, step, generator)
            accepted += moved
        return chain, log_weight, accepted.mean() / self.steps


def _move(
    chain: _Chain,
    chain_at: Callable[[Tensor], _Chain],
    power: float,
    h: Tensor,
    generator: torch.Generator,
) -> tuple[_Chain, Tensor]:
    """One Metropolis-corrected Langevin move of step h that leaves exp(power · density) N(z; 0, 1)
    invariant; and whether each chain moved."""
    keep = (1 - h / 2) / (1 + h / 2)
    drift = power * h / (1 + h / 2)
    variance = 2 * h / (1 + h / 2) ** 2
    noise = random_like(torch.randn, chain.z, generator)
    new = chain_at(keep * chain.z + drift * chain.gradient + variance.sqrt() * noise)

    def excess(start: _Chain, end: _Chain) -> Tensor:
        """log q(start → end) without the part that the normal distribution balances by itself."""
        towards = (
            2 * drift * start.gradient * (end.z - keep * start.z) - (drift * start.gradient) ** 2
        )
        return (towards / (2 * variance)).flatten(1).sum(dim=1)

    log_ratio = power * (new.density - chain.density) + excess(new, chain) - excess(chain, new)
    uniform = torch.rand(len(h), generator=generator, device=h.device, dtype=h.dtype)
    moved = uniform.log() < log_ratio
    chosen = (torch.where(wide(moved, b), b, a) for a, b in zip(chain, new, strict=True))
    return _Chain(*chosen), moved.to(chain.density.dtype)


def _draw(log_weights: Tensor, generator: torch.Generator) -> Tensor:
    """An index of each row, with these unnormalised log probabilities."""
    # torch.multinomial does the same, and waits for the device
    weights = log_weights.softmax(dim=1)
    return (weights / torch.empty_like(weights).exponential_(generator=generator)).argmax(dim=1)
