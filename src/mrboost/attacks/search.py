"""What a search is: an attack as a machine that moves many images at once, each
at its own iteration.

Its state is a dictionary of tensors whose first dimension counts lanes, and ``step`` maps a state
to the next. The queue (``survivors.py``) decides what runs in the lanes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from mrboost.seeds import uniform_from_keys
from mrboost.threat import wide

from .base import BatchedSearch, Classifier
from .checks import warn_of_probabilities
from .survivors import run


@dataclass(frozen=True)
class Search(BatchedSearch):
    """A batched search that is an attack by itself."""

    def __call__(
        self, model: Classifier, x: Tensor, y: Tensor, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """The worst images found: of highest margin, misclassified where it succeeded."""
        found = run(model, x, y, [self], seed_of(self.seed, generator)).adv.to(x.dtype)
        warn_of_probabilities(model, x)
        return found


@dataclass(frozen=True)
class Aimed(Search):
    """A search whose runs are aimed at the ``targets`` most likely false labels in turn,
    with ``restarts`` each."""

    targets: int = field(default=0, kw_only=True)
    restarts: int = field(default=1, kw_only=True)

    def jobs(self, classes: int) -> int:
        return self.restarts * (min(self.targets, classes - 1) or 1)

    def target(self, ranking: Tensor, job: Tensor) -> Tensor:
        return ranking.gather(1, (job // self.restarts + 1)[:, None]).squeeze(1)

    def start(self, x: Tensor, keys: Tensor, radius: Tensor | float) -> Tensor:
        """Images at distance ``radius`` in a random direction, but for the box."""
        noise = 2 * uniform_from_keys(keys, x.shape[1:]).to(x.dtype) - 1
        if self.norm == "L2":
            noise = torch.erfinv(noise)  # normal, up to a factor
        length = self.threat.distance(noise, torch.zeros_like(noise))
        return (x + noise * wide(radius / length, x)).clamp(0, 1)


def seed_of(seed: int | None, generator: torch.Generator | None) -> int:
    if generator is not None:
        return int(torch.randint(2**62, (1,), generator=generator, device=generator.device))
    return torch.Generator().seed() if seed is None else seed
