r"""Fast adaptive boundary attack: walks along the decision boundary towards the clean image.

In each iteration the boundary between the true label and a false one is taken for the hyperplane of
its linearisation at x_k. With d_1 and d_2 the smallest moves onto it inside the box, from x_k and
from the clean image x,

    x_{k+1} = (1 − α) (x_k + η d_1) + α (x + η d_2),   α = min(‖d_1‖ / (‖d_1‖ + ‖d_2‖), 0.1),
    η = 1.05,

and a point beyond the boundary goes back a tenth of the way to x. A misclassified point
within eps is a success.

Croce & Hein, "Minimally distorted adversarial examples with a fast adaptive boundary attack", 2020.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from mrboost.ensemble import Classifier
from mrboost.files import State
from mrboost.losses import is_label, margin
from mrboost.threat import wide

from .model import check_gradient, column_gradients, finite, input_gradient
from .survivors import Aimed, mistaken


@dataclass(frozen=True)
class FAB(Aimed):
    """FAB, untargeted (the nearest boundary each time) or aimed at the ``targets`` most likely
    false labels in turn.

    The first run of a point starts at the clean image, ``restarts`` beyond it within half of eps.
    Images on which it fails are returned as they came.
    """

    alpha: float = field(default=0.1, kw_only=True)
    overshoot: float = field(default=1.05, kw_only=True)
    back: float = field(default=0.9, kw_only=True)

    @property
    def name(self) -> str:
        return "fab-t" if self.targets else "fab"

    def begin(self, x: Tensor, y: Tensor, ranking: Tensor, keys: Tensor, job: Tensor) -> State:
        radius = torch.where(job % self.restarts > 0, self.eps / 2, 0.0).to(x.dtype)
        adv = self.start(x, keys, radius)
        return {"target": self.target(ranking, job), "found": x, "adv": adv}

    def step(self, model: Classifier, state: State) -> State:
        x, adv = state["x"], state["adv"]
        gap, slope = self._boundary(model, state)
        gap_clean = gap + (slope * (x - adv)).flatten(1).sum(dim=1)
        changes = -torch.cat([gap, gap_clean])
        moves = self.threat.shortest(torch.cat([adv, x]), torch.cat([slope, slope]), changes)
        lengths = self.threat.distance(moves, moves.new_zeros(())).clamp(min=1e-8)
        move, clean_move = moves.chunk(2)
        length, clean_length = lengths.chunk(2)
        alpha = wide((length / (length + clean_length)).clamp(max=self.alpha), x)
        beyond = torch.add(adv, move, alpha=self.overshoot)
        clean_beyond = torch.add(x, clean_move, alpha=self.overshoot)
        new = beyond.lerp_(clean_beyond, alpha).clamp_(0, 1)
        with torch.no_grad():
            wrong = mistaken(model(new.clone()), state)
        success = wrong & (self.threat.distance(new, x) <= self.eps)
        return state | {
            "t": state["t"] + 1,
            "hit": state["hit"] | success,
            "found": torch.where(wide(success, x), new, state["found"]),
            "adv": torch.where(wide(wrong, x), x + self.back * (new - x), new),
        }

    def _boundary(self, model: Classifier, state: State) -> tuple[Tensor, Tensor]:
        """A false label's logit minus the true one's, and its gradient in the images; with an aim,
        that label's logit minus the largest other one."""
        adv, y = state["adv"].detach().requires_grad_(True), state["y"]

        def gaps_of(images: Tensor) -> Tensor:
            logits = model(images).to(adv.dtype)
            return logits - logits.gather(1, y[:, None])

        if self.targets or "aim" in state:
            with torch.enable_grad():
                if "aim" in state:
                    gap = -margin(model(adv.clone()).to(adv.dtype), state["aim"], "none")
                else:
                    gap = gaps_of(adv.clone()).gather(1, state["target"][:, None]).squeeze(1)
                return gap.detach(), finite(input_gradient(gap.sum(), adv), adv)
        gaps, gradients = column_gradients(gaps_of, adv)
        columns = [finite(check_gradient(gradient), adv) for gradient in gradients]
        steepness = torch.stack([self.threat.slope(column) for column in columns], dim=1)
        distances = (gaps.abs() / (steepness + 1e-12)).masked_fill(is_label(gaps, y), torch.inf)
        label = distances.argmin(dim=1)
        gap = gaps.gather(1, label[:, None]).squeeze(1)
        return gap, torch.stack(columns)[label, torch.arange(len(y), device=y.device)]
