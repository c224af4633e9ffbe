"""Which images an evaluation of limited time takes: a random sample, as large as the time allows.

Images come in a random order, the same each time, in chunks. The size of a chunk is chosen before
anything is known of its images, and a chunk that was begun is finished. If the last one were
dropped, images that take long, those that withstand, would be missing more often than others.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from mrboost.errors import InputError

_FIRST = 64  # images of the first chunk; the search for doubts takes as many
_GROWTH = 2.0  # what a small chunk says of the pace of a large one is not much
_LEAST = 0.25  # of the last chunk's time: with less than that left, nothing is begun


@dataclass(frozen=True)
class TimeBudget:
    """So many seconds, by a clock that gives seconds too."""

    seconds: float
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        if not 0 < self.seconds < math.inf:
            raise InputError(f"time_budget is in seconds, above 0 and finite, got {self.seconds}")

    def rows(self, count: int, most: int) -> Iterator[Tensor]:
        """The numbers of the images of one chunk after the other, until the time is over.

        Args:
            count: how many images there are.
            most: how many a chunk may have.
        """
        order = torch.randperm(count, generator=torch.Generator().manual_seed(0))
        begun = now = self.clock()
        done, growth, size = 0, 1.0, min(_FIRST, most)
        while done < count and growth >= _LEAST:
            rows = order[done : done + size]
            yield rows
            done += len(rows)
            then, now = now, self.clock()
            growth = min(_GROWTH, (begun + self.seconds - now) / max(now - then, 1e-9))
            size = min(most, max(1, int(growth * len(rows))))
