"""How a round goes about its training: the weights that it starts from, and its learning rate.

``RndInit`` starts from fresh weights, ``PerInit`` from those of the last member. A schedule has no
state: it maps the share of the training that is done, in [0, 1), to a factor of the base rate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from torch import nn


class Init(Protocol):
    """What every initialisation has."""

    def __call__(self, learner: nn.Module, past: Sequence[nn.Module]) -> None:
        """Set the weights of a freshly initialised learner, given the earlier members."""


@dataclass(frozen=True)
class RndInit:
    """Random initialisation: each round's fresh weights, drawn from a random stream of its own."""

    def __call__(self, learner: nn.Module, past: Sequence[nn.Module]) -> None: ...


@dataclass(frozen=True)
class PerInit:
    """Persistent initialisation: the weights of the previous member."""

    def __call__(self, learner: nn.Module, past: Sequence[nn.Module]) -> None:
        if past:
            learner.load_state_dict(past[-1].state_dict())


class Schedule(Protocol):
    """What every schedule has."""

    @property
    def settled(self) -> float:
        """The share of the training after which an epoch may be chosen as the best."""

    def __call__(self, progress: float) -> float:
        """The factor of the base rate."""


@dataclass(frozen=True)
class Piecewise:
    """Multiply the rate by ``factor`` at each milestone, a share of the training (the paper: by
    1/10 at 1/2 and 3/4).

    Example:
        >>> [Piecewise()(progress) for progress in (0.0, 0.5, 0.75)]
        [1.0, 0.1, 0.010000000000000002]
    """

    milestones: tuple[float, ...] = (0.5, 0.75)
    factor: float = 0.1

    @property
    def settled(self) -> float:
        return self.milestones[0] if self.milestones else 2 / 3

    def __call__(self, progress: float) -> float:
        return self.factor ** sum(progress >= milestone for milestone in self.milestones)


@dataclass(frozen=True)
class OneCycle:
    """Rise linearly to the base rate over the share ``warmup`` of the training, then fall linearly
    to zero."""

    settled: ClassVar[float] = 2 / 3
    warmup: float = 0.3

    def __call__(self, progress: float) -> float:
        if progress < self.warmup:
            return progress / self.warmup
        return (1 - progress) / (1 - self.warmup)


# By the names that the command line uses
SCHEDULES: dict[str, Schedule] = {"piecewise": Piecewise(), "one-cycle": OneCycle()}
