r"""What is different in APGD for the L1 ball: sparse steps, and three radii.

A step moves the share k of the pixels with the largest gradients, each by the same amount. After
every few iterations k is set to 2/3 of the share of pixels that the best point changes; where that
fell below 95 % of what it was, the step size goes back to the radius and the search to the best
point, elsewhere the step size is divided by 1.5, down to a tenth of the radius.

A run has three phases, with 3, 2 and 1 times eps and 30, 30 and 40 % of the iterations. Each begins
at the best point of the last one, projected; only what is found in the third lies in the ball.

Croce & Hein, "Mind the box: l1-APGD for sparse adversarial attacks on image classifiers", 2021.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

from mrboost.seeds import uniform_from_keys
from mrboost.speed.graphs import State
from mrboost.threat import project_l1, sparse_step, wide

_RADII = (3.0, 2.0, 1.0)
_SHARES = (0.3, 0.3)  # of the iterations; the last phase has the rest
_SMALLEST_STEP = 10
_SLOWER = 1.5


def evaluations(steps: int) -> int:
    """Each phase evaluates its start, too."""
    return sum(_lengths(steps)) + len(_RADII)


def begin(x: Tensor, keys: Tensor, eps: float) -> State:
    """A normal draw, projected on the largest ball."""
    noise = torch.erfinv(2 * uniform_from_keys(keys, x.shape[1:]).to(x.dtype) - 1) * math.sqrt(2)
    zero = x.new_zeros(len(x))
    return {
        "found": x,
        "adv": project_l1(x + noise, x, zero + _RADII[0] * eps),
        "size": zero,
        "share": zero,
        "changed": zero,
    }


def advance(
    state: State, wrong: Tensor, losses: Tensor, gradient: Tensor, steps: int, eps: float
) -> State:
    """The next iterate of each lane, from the evaluation of the last one."""
    x, adv, t = state["x"], state["adv"], state["t"]
    radii, starting, checking = _phases(steps, t.device)
    now, then = (turn.clamp(max=len(radii) - 1) for turn in (t, t + 1))
    starts, checks = starting[now], checking[now]
    radius, next_radius = (radii[turn].to(x.dtype) * eps for turn in (now, then))
    better = starts | (losses > state["best_loss"])
    best = torch.where(wide(better, adv), adv, state["best"])
    best_gradient = torch.where(wide(better, adv), gradient, state["best_gradient"])
    best_loss = torch.where(better, losses, state["best_loss"])
    changed = (best != x).flatten(1).sum(dim=1).to(x.dtype)
    fewer = ~starts & (changed < 0.95 * state["changed"])
    slower = torch.maximum(state["size"] / _SLOWER, radius / _SMALLEST_STEP)
    check = checks | starts
    size = torch.where(check, torch.where(fewer | starts, radius, slower), state["size"])
    share = torch.where(check, changed / x[0].numel() / _SLOWER, state["share"])
    back = wide(checks & fewer, adv)
    point = torch.where(back, best, adv)
    uphill = torch.where(back, best_gradient, gradient)
    stepped = point + sparse_step(uphill, share) * wide(size, adv)
    stepped = torch.where(wide(starting[then], adv), best, stepped)
    inside = radius <= eps
    found = torch.where(
        wide(wrong, adv), adv, torch.where(wide(state["hit"], adv), state["found"], best)
    )
    return state | {
        "t": t + 1,
        "hit": state["hit"] | (wrong & inside),
        "found": torch.where(wide(inside, adv), found, x),
        "adv": project_l1(stepped, x, next_radius),
        "size": size,
        "share": share,
        "changed": torch.where(check, changed, state["changed"]),
        "best": best,
        "best_gradient": best_gradient,
        "best_loss": best_loss,
    }


def _lengths(steps: int) -> list[int]:
    """The iterations of each phase."""
    first = [math.ceil(share * steps) for share in _SHARES]
    return [*first, max(steps - sum(first), 0)]


@lru_cache
def _phases(steps: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """For each evaluation the radius, in units of eps; whether a phase starts there; and whether
    the step size and the share are looked at after it."""
    radii: list[float] = []
    starts: list[bool] = []
    checks: list[bool] = []
    for factor, length in zip(_RADII, _lengths(steps), strict=True):
        every = max(int(0.04 * length), 1)
        radii += [factor] * (length + 1)
        starts += [True] + [False] * length
        checks += [False] + [iteration % every == 0 for iteration in range(1, length + 1)]
    return (
        torch.tensor(radii, device=device),
        torch.tensor(starts, device=device),
        torch.tensor(checks, device=device),
    )
