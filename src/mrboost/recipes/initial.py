"""The weights a round starts from: fresh ones (RndInit) or those of the last member (PerInit)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import nn


class Init(Protocol):
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
