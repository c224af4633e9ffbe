r"""Auto-PGD: projected gradient ascent with momentum that chooses its own step size.

With Π the projection onto ball and box, s the steepest step and α = 3/4 (1 in
the first iteration)::

    z       = Π(x_k + η s(∇loss(x_k)))
    x_{k+1} = Π(x_k + α (z − x_k) + (1 − α) (x_k − x_{k−1}))

η starts at 2 eps. At checkpoints, after 22 % of the iterations and then at distances that shrink by
3 % down to 6 %, η is halved and the search goes back to the best point if the loss rose in at most
ρ = 75 % of the iterations since the last checkpoint, or if η was kept there and the best loss has
not improved since.

Croce & Hein, "Reliable evaluation of adversarial robustness with an ensemble of diverse
parameter-free attacks", 2020.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

import torch
from torch import Tensor

from mrboost.errors import InputError
from mrboost.losses import Loss, cross_entropy, dlr, targeted_dlr
from mrboost.speed.graphs import State
from mrboost.threat import wide

from . import apgd_l1
from .base import check_loss, loss_suffix
from .model import Classifier, finite, input_gradient
from .survivors import Aimed, mistaken


@dataclass(frozen=True)
class APGD(Aimed):
    """Auto-PGD on any loss of logits and labels.

    Args:
        eps, norm: the ball, "Linf", "L2" or "L1", where a run has three phases (``apgd_l1``).
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
        return apgd_l1.evaluations(self.steps) if self.norm == "L1" else self.steps + 1

    def begin(self, x: Tensor, y: Tensor, ranking: Tensor, keys: Tensor, job: Tensor) -> State:
        zero = x.new_zeros(len(x))
        state = {
            "target": self.target(ranking, job),
            "best": x,
            "best_gradient": torch.zeros_like(x),
            "best_loss": zero - torch.inf,
        }
        if self.norm == "L1":
            return state | apgd_l1.begin(x, keys, self.eps)
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
        if self.norm == "L1":
            return apgd_l1.advance(state, wrong, losses, gradient, self.steps, self.eps)
        return _advance(self, state, wrong, losses, gradient)

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
    better = losses > s["best_loss"]
    best = torch.where(wide(better, adv), adv, s["best"])
    best_gradient = torch.where(wide(better, adv), gradient, s["best_gradient"])
    best_loss = torch.where(better, losses, s["best_loss"])
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
        # The last image that was misclassified, or else the one of highest loss.
        "found": torch.where(
            wide(wrong, adv), s["adv"], torch.where(wide(s["hit"], best), s["found"], best)
        ),
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
