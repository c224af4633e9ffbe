r"""Auto-PGD: projected gradient ascent with momentum that chooses its own step size.

With Π the projection onto ball and box, s the steepest step and α = 3/4 (1 in
the first iteration)::

    z       = Π(x_k + η s(∇loss(x_k)))
    x_{k+1} = Π(x_k + α (z − x_k) + (1 − α) (x_k − x_{k−1}))

η starts at 2 eps. At checkpoints, after 22 % of the iterations and then at distances that shrink by
3 % down to 6 %, η is halved and the search goes back to the best point if the loss rose in at most
ρ = 75 % of the iterations since the last checkpoint, or if η was kept there and the best loss has
not improved since.

In L1 a step moves the share k of the pixels with the largest gradients, each by the same amount.
After every few iterations k is set to 2/3 of the share of pixels that the best point changes; where
that fell below 95 % of what it was, the step size goes back to the radius and the search to the
best point, elsewhere the step size is divided by 1.5, down to a tenth of the radius. A run has
three phases, with 3, 2 and 1 times eps and 30, 30 and 40 % of the iterations. Each begins at the
best point of the last one, projected; only what is found in the third lies in the ball.

Croce & Hein, "Reliable evaluation of adversarial robustness with an ensemble of diverse
parameter-free attacks", 2020; "Mind the box: l1-APGD for sparse adversarial attacks on image
classifiers", 2021.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import lru_cache

import torch
from torch import Tensor

from mrboost.ensemble import Classifier
from mrboost.errors import InputError
from mrboost.files import State
from mrboost.losses import Loss, cross_entropy, dlr, targeted_dlr
from mrboost.seeds import uniform_from_keys
from mrboost.threat import project_l1, sparse_step, wide

from .base import check_loss, loss_suffix
from .model import finite, input_gradient
from .survivors import Aimed, mistaken

_L1_RADII = (3.0, 2.0, 1.0)
_L1_SHARES = (0.3, 0.3)  # of the iterations; the last phase has the rest
_L1_SMALLEST_STEP = 10
_L1_SLOWER = 1.5


@dataclass(frozen=True)
class APGD(Aimed):
    """Auto-PGD on any loss of logits and labels.

    Args:
        eps, norm: the ball, "Linf", "L2" or "L1", where a run has three phases.
        steps: iterations of each run.
        loss: what to raise; the cross-entropy, or with ``targets`` the targeted DLR. A targeted
            loss is called with ``other=`` the label aimed at.
        targets: runs aimed at the most likely false labels, this many of them; 0 for an untargeted
            attack. A targeted run succeeds with any misclassification.
        restarts: runs from other starts (for each target).
        eot: gradients averaged in each step, for models with random numbers in the forward pass.
            With more than one, a run goes on to its end and its last misclassified image is tried
            once more.
        rho: share of rising iterations below which the step is halved.
        seed: of the starts. Each image has its own stream.
    """

    loss: Loss | None = field(default=None, kw_only=True)
    eot: int = field(default=1, kw_only=True)
    rho: float = field(default=0.75, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_at_least_one("eot")
        if self.loss is not None:
            check_loss(self.loss, aimed=self.targets > 0)

    cpu_stride = 6  # both end next to 101 evaluations
    cuda_stride = 17

    @property
    def name(self) -> str:
        if self.targets:
            return f"apgd{loss_suffix(self.loss or targeted_dlr, plain='targeted_dlr')}-t"
        return f"apgd{loss_suffix(self.loss or cross_entropy)}"

    @property
    def patient(self) -> bool:
        return self.eot > 1

    def check(self, x: Tensor, classes: int) -> None:
        if self.loss is dlr and classes < 3:
            needs = f"apgd-dlr needs at least 3 classes, the model has {classes}"
            raise InputError(f"{needs}: use apgd-ce, apgd-t or autoattack")

    def evaluations(self) -> int:
        if self.norm == "L1":
            return len(_l1_phases(self.steps, torch.device("cpu"))[0])
        return self.steps + 1

    def begin(self, x: Tensor, y: Tensor, ranking: Tensor, keys: Tensor, job: Tensor) -> State:
        zero = x.new_zeros(len(x))
        state = {
            "target": self.target(ranking, job),
            "best": x,
            "best_gradient": torch.zeros_like(x),
            "best_loss": zero - torch.inf,
        }
        if self.norm == "L1":
            noise = uniform_from_keys(keys, x.shape[1:]).to(x.dtype)
            noise = torch.erfinv(2 * noise - 1) * math.sqrt(2)  # normal
            adv = project_l1(x + noise, x, zero + _L1_RADII[0] * self.eps)
            return state | {"found": x, "adv": adv, "size": zero, "share": zero, "changed": zero}
        adv = self.start(x, keys, self.eps)
        return state | {
            "found": adv,
            "adv": adv,
            "old": adv,
            "size": zero + 2 * self.eps,
            "last_loss": zero,
            "rises": zero,
            "reduced": torch.ones_like(y, dtype=torch.bool),
            "loss_at_check": zero - torch.inf,
        }

    def step(self, model: Classifier, state: State) -> State:
        logits, losses, gradient = self._evaluate(model, state)
        wrong = mistaken(logits, state)
        advance = _advance_l1 if self.norm == "L1" else _advance
        return advance(self, state, wrong, losses, gradient)

    def _evaluate(self, model: Classifier, state: State) -> tuple[Tensor, Tensor, Tensor]:
        """Logits and losses of the last pass, and the mean gradient over ``eot`` passes."""
        adv = state["adv"].detach().requires_grad_(True)
        total = torch.zeros_like(adv)
        for _ in range(self.eot):
            with torch.enable_grad():
                logits = model(adv.clone())
                losses = self._losses(logits, state)
                total = finite(input_gradient(losses.sum(), adv), adv) + total
        return logits.detach(), losses.detach(), total / self.eot

    def _losses(self, logits: Tensor, state: State) -> Tensor:
        if "aim" in state:
            return -(self.loss or cross_entropy)(logits, state["aim"], reduction="none")
        if self.targets == 0:
            return (self.loss or cross_entropy)(logits, state["y"], reduction="none")
        loss = self.loss or targeted_dlr
        return loss(logits, state["y"], other=state["target"], reduction="none")  # type: ignore[call-arg]


def _advance(attack: APGD, state: State, wrong: Tensor, losses: Tensor, gradient: Tensor) -> State:
    """The next iterate of each lane, from the evaluation of the last one."""
    s = state
    adv, t = s["adv"], s["t"]
    best, best_gradient, best_loss = _best(s, losses, gradient, losses > s["best_loss"])
    # The start, t = 0, is no iteration: it sets the best loss and counts for nothing else.
    moved = t > 0
    rises = s["rises"] + (moved & (losses > s["last_loss"]))
    window = _checkpoints(attack.steps, t.device)[t.clamp(max=attack.steps)]
    check = window > 0
    halve = check & (
        (rises <= window * attack.rho) | (~s["reduced"] & (s["loss_at_check"] >= best_loss))
    )
    adv = torch.where(wide(halve, adv), best, adv)
    gradient = torch.where(wide(halve, adv), best_gradient, gradient)
    size = torch.where(halve, s["size"] / 2, s["size"])
    x, threat = s["x"], attack.threat
    full = threat.project(adv + threat.step(gradient, 1.0) * wide(size, adv), x)
    pull = wide(torch.where(moved, 0.75, 1.0).to(adv.dtype), adv)
    return s | {
        "t": t + 1,
        "hit": s["hit"] | wrong,
        "found": _found(s, wrong, best),
        "adv": threat.project(adv + pull * (full - adv) + (1 - pull) * (adv - s["old"]), x),
        "old": adv,
        "size": size,
        "best": best,
        "best_gradient": best_gradient,
        "best_loss": best_loss,
        "last_loss": torch.where(moved, losses, s["last_loss"]),
        "rises": torch.where(check, 0, rises),
        "reduced": torch.where(check, halve, s["reduced"]),
        "loss_at_check": torch.where(check | ~moved, best_loss, s["loss_at_check"]),
    }


def _advance_l1(
    attack: APGD, state: State, wrong: Tensor, losses: Tensor, gradient: Tensor
) -> State:
    """The same in an L1 ball."""
    s, eps = state, attack.eps
    x, adv, t = s["x"], s["adv"], s["t"]
    radii, starting, checking = _l1_phases(attack.steps, t.device)
    now, then = (turn.clamp(max=len(radii) - 1) for turn in (t, t + 1))
    starts, checks = starting[now], checking[now]
    radius, next_radius = (radii[turn].to(x.dtype) * eps for turn in (now, then))
    better = starts | (losses > s["best_loss"])
    best, best_gradient, best_loss = _best(s, losses, gradient, better)
    changed = (best != x).flatten(1).sum(dim=1).to(x.dtype)
    fewer = ~starts & (changed < 0.95 * s["changed"])
    slower = torch.maximum(s["size"] / _L1_SLOWER, radius / _L1_SMALLEST_STEP)
    check = checks | starts
    size = torch.where(check, torch.where(fewer | starts, radius, slower), s["size"])
    share = torch.where(check, changed / x[0].numel() / _L1_SLOWER, s["share"])
    back = wide(checks & fewer, adv)
    point = torch.where(back, best, adv)
    uphill = torch.where(back, best_gradient, gradient)
    stepped = point + sparse_step(uphill, share) * wide(size, adv)
    stepped = torch.where(wide(starting[then], adv), best, stepped)
    inside = radius <= eps
    return s | {
        "t": t + 1,
        "hit": s["hit"] | (wrong & inside),
        "found": torch.where(wide(inside, adv), _found(s, wrong, best), x),
        "adv": project_l1(stepped, x, next_radius),
        "size": size,
        "share": share,
        "changed": torch.where(check, changed, s["changed"]),
        "best": best,
        "best_gradient": best_gradient,
        "best_loss": best_loss,
    }


def _best(
    state: State, losses: Tensor, gradient: Tensor, better: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The point of highest loss, the gradient there and the loss, where the last one is better."""
    adv, changed = state["adv"], wide(better, state["adv"])
    best = torch.where(changed, adv, state["best"])
    best_gradient = torch.where(changed, gradient, state["best_gradient"])
    return best, best_gradient, torch.where(better, losses, state["best_loss"])


def _found(state: State, wrong: Tensor, best: Tensor) -> Tensor:
    """The last image that was misclassified, or else the one of highest loss."""
    earlier = torch.where(wide(state["hit"], best), state["found"], best)
    return torch.where(wide(wrong, best), state["adv"], earlier)


@lru_cache
def _checkpoints(steps: int, device: torch.device) -> Tensor:
    """For each iteration 0..steps, the length of the window that ends there; 0
    between checkpoints."""
    window, least, shrink = (max(int(share * steps), 1) for share in (0.22, 0.06, 0.03))
    found = [0] * (steps + 1)
    position = 0
    while position + window <= steps:
        position += window
        found[position] = window
        window = max(window - shrink, least)
    return torch.tensor(found, device=device)


@lru_cache
def _l1_phases(steps: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """For each evaluation in L1, of which each phase spends one on its start: the radius, in units
    of eps; whether a phase starts there; and whether step size and share are looked at after it."""
    radii: list[float] = []
    starts: list[bool] = []
    checks: list[bool] = []
    lengths = [math.ceil(share * steps) for share in _L1_SHARES]
    lengths.append(max(steps - sum(lengths), 0))
    for factor, length in zip(_L1_RADII, lengths, strict=True):
        every = max(int(0.04 * length), 1)
        radii += [factor] * (length + 1)
        starts += [True] + [False] * length
        checks += [False] + [iteration % every == 0 for iteration in range(1, length + 1)]
    return (
        torch.tensor(radii, device=device),
        torch.tensor(starts, device=device),
        torch.tensor(checks, device=device),
    )
