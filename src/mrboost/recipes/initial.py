"""Where a round's learner starts: afresh, or where the last one ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import nn


class Init(Protocol):
    def __call__(self, learner: nn.Module, past: Sequence[nn.Module]) -> None:
        """Set the weights of a freshly initialised learner, given the members before it."""


@dataclass(frozen=True)
class RndInit:
    """Keep the random initialisation, which every round draws from a stream of its own."""

    def __call__(self, learner: nn.Module, past: Sequence[nn.Module]) -> None: ...


@dataclass(frozen=True)
class PerInit:
    """Persistent initialisation: stand on the shoulders of the previous member."""

    def __call__(self, learner: nn.Module, past: Sequence[nn.Module]) -> None:
        if past:
            learner.load_state_dict(past[-1].state_dict())
