"""What a search is: an attack as a machine that moves many images at once, each at its own iteration.

Its state is a dictionary of tensors whose first dimension counts lanes, and ``step`` maps a state to the next. The
queue (``queue.py``) decides what runs in the lanes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

import torch
from torch import Tensor

from mrboost.errors import InputError
from mrboost.seeds import hashed_uniform
from mrboost.threat import Threat, ball, wide

from .base import Classifier, warn_of_probabilities
from .points import State


@dataclass(frozen=True)
class Search(ABC):
    """An attack as a machine that moves many points at once."""

    eps: float = 8 / 255
    norm: str = "Linf"
    steps: int = field(default=100, kw_only=True)
    seed: int | None = field(default=0, kw_only=True)

    patient = False
    """Whether a hit must wait for the job's end (a randomised model may answer otherwise the next time)."""
    strides = (5, 10)
    """Steps between two looks at the lanes: on the CPU, and where looking means waiting for a device."""

    def __post_init__(self) -> None:
        ball(self.norm, self.eps)
        if self.steps < 1:
            raise InputError(f"{self.name} needs at least 1 step, got {self.steps}")

    @property
    @abstractmethod
    def name(self) -> str:
        """The name that tables use."""

    @property
    def threat(self) -> Threat:
        return ball(self.norm, self.eps)

    def jobs(self, classes: int) -> int:  # noqa: ARG002 — some have one for each target
        """How many runs a point gets: restarts and targets."""
        return 1

    def check(self, x: Tensor, classes: int) -> None:  # noqa: B027 — most searches work on anything
        """Refuse images or models that this search cannot work on, before anything is computed."""

    def within(self, lanes: int) -> Search:  # noqa: ARG002
        """The same search, that evaluates no more than so many images at a time."""
        return self

    def evaluations(self) -> int:
        """Evaluations of the model in one job."""
        return self.steps

    def work(self, classes: int) -> int:
        """Evaluations of the model for one image that withstands."""
        return self.jobs(classes) * self.evaluations()

    @abstractmethod
    def begin(self, x: Tensor, y: Tensor, ranking: Tensor, keys: Tensor, job: Tensor) -> State:
        """Fresh lanes for points ``x``, each about to run its job number ``job``; ``keys`` belong to point and job."""

    @abstractmethod
    def step(self, model: Classifier, state: State) -> State:
        """One evaluation of every lane, or several; waits for nothing on the device."""

    def advance(self, model: Classifier, state: State) -> State:
        """A step of the lanes that have evaluations left; the others keep what they found."""
        over, new = state["t"] >= self.evaluations(), self.step(model, state)
        return new | {key: torch.where(wide(over, new[key]), state[key], new[key]) for key in ("t", "hit", "found")}

    def refute(self, state: State, lanes: Tensor) -> None:
        """The model itself does not agree that these lanes were hits: go on."""
        state["hit"][lanes] = False

    def __call__(self, model: Classifier, x: Tensor, y: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """The worst images found: of highest margin, misclassified where it succeeded."""
        from .queue import run

        found = run(model, x, y, [self], seed_of(self.seed, generator)).adv.to(x.dtype)
        warn_of_probabilities(model, x)
        return found


@dataclass(frozen=True)
class Aimed(Search):
    """A search whose runs are aimed at the ``targets`` most likely false labels in turn, with ``restarts`` each."""

    targets: int = field(default=0, kw_only=True)
    restarts: int = field(default=1, kw_only=True)

    def jobs(self, classes: int) -> int:
        return self.restarts * (min(self.targets, classes - 1) or 1)

    def target(self, ranking: Tensor, job: Tensor) -> Tensor:
        return ranking.gather(1, (job // self.restarts + 1)[:, None]).squeeze(1)

    def start(self, x: Tensor, keys: Tensor, radius: Tensor | float) -> Tensor:
        """Images at distance ``radius`` in a random direction, but for the box."""
        noise = 2 * hashed_uniform(keys, x.shape[1:]).to(x.dtype) - 1
        if self.norm == "L2":
            noise = torch.erfinv(noise)  # normal, up to a factor
        length = self.threat.distance(noise, torch.zeros_like(noise))
        return (x + noise * wide(radius / length, x)).clamp(0, 1)


def seed_of(seed: int | None, generator: torch.Generator | None) -> int:
    if generator is not None:
        return int(torch.randint(2**62, (1,), generator=generator, device=generator.device))
    return torch.Generator().seed() if seed is None else seed
