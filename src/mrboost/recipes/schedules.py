"""Learning-rate schedules: progress in [0, 1) to a factor of the base rate. No
state, so nothing to save."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol


class Schedule(Protocol):
    @property
    def settled(self) -> float:
        """The share of the training after which an epoch may be chosen as the best."""

    def __call__(self, progress: float) -> float: ...


@dataclass(frozen=True)
class Piecewise:
    """Multiply by ``factor`` at each milestone, a fraction of the training (the paper: at
    1/2 and 3/4, by 1/10)."""

    milestones: tuple[float, ...] = (0.5, 0.75)
    factor: float = 0.1

    @property
    def settled(self) -> float:
        return self.milestones[0] if self.milestones else 2 / 3

    def __call__(self, progress: float) -> float:
        return self.factor ** sum(progress >= milestone for milestone in self.milestones)


@dataclass(frozen=True)
class OneCycle:
    """Rise linearly to the base rate over the first ``warmup`` of the training, then
    fall linearly to zero."""

    settled: ClassVar[float] = 2 / 3
    warmup: float = 0.3

    def __call__(self, progress: float) -> float:
        return (
            progress / self.warmup if progress < self.warmup else (1 - progress) / (1 - self.warmup)
        )


SCHEDULES: dict[str, Schedule] = {"piecewise": Piecewise(), "one-cycle": OneCycle()}
