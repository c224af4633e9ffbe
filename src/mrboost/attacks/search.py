"""What APGD, FAB and Square share: called by itself, a search runs on all images at once.

What a search has to provide is ``base.BatchedSearch``; ``survivors.py`` decides which images it
works on.
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
    """A batched search that can also be called as an attack."""

    def __call__(
        self, model: Classifier, x: Tensor, y: Tensor, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """The worst images found: of highest margin, misclassified where it succeeded."""
        found = run(model, x, y, [self], seed_of(self.seed, generator)).adv.to(x.dtype)
        warn_of_probabilities(model, x)
        return found


@dataclass(frozen=True)
class Aimed(Search):
    """A search with one job for each target and restart.

    The targets are the ``targets`` most likely false labels in turn; with 0 of them the runs are
    untargeted.
    """

    targets: int = field(default=0, kw_only=True)
    restarts: int = field(default=1, kw_only=True)

    def jobs(self, classes: int) -> int:
        return self.restarts * (min(self.targets, classes - 1) or 1)

    def target(self, ranking: Tensor, job: Tensor) -> Tensor:
        """The label that each lane's job is aimed at."""
        return ranking.gather(1, (job // self.restarts + 1)[:, None]).squeeze(1)

    def start(self, x: Tensor, keys: Tensor, radius: Tensor | float) -> Tensor:
        """Images at distance ``radius`` in a random direction, clipped to the box."""
        noise = 2 * uniform_from_keys(keys, x.shape[1:]).to(x.dtype) - 1
        if self.norm == "L2":
            noise = torch.erfinv(noise)  # normal, up to a factor
        length = self.threat.distance(noise, torch.zeros_like(noise))
        return (x + noise * wide(radius / length, x)).clamp(0, 1)


def seed_of(seed: int | None, generator: torch.Generator | None) -> int:
    """The attack's seed, or one drawn from the generator, if there is one, or at random."""
    if generator is not None:
        return int(torch.randint(2**62, (1,), generator=generator, device=generator.device))
    return torch.Generator().seed() if seed is None else seed
