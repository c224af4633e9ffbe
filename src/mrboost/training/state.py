"""What a fit is made of between two epochs, and how it goes to a file and back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from textwrap import shorten
from typing import Any

import torch
from torch import Tensor, nn

from mrboost.errors import InputError
from mrboost.files import State
from mrboost.recipes.config import Config
from mrboost.runs import Run

from .ema import Average


@dataclass
class FitState:
    """A learner under training, its optimiser, and the best weights so far.

    Attributes:
        average: the average of the weights, where the recipe has one.
        scores: robust accuracy on the held-out images after each epoch.
        best_epoch, best: the epoch chosen so far, and its weights.
    """

    learner: nn.Module
    optimizer: torch.optim.Optimizer
    average: Average | None = None
    scores: list[float] = field(default_factory=list)
    best_epoch: int = 0
    best: State = field(default_factory=dict)

    @property
    def epoch(self) -> int:
        return len(self.scores)

    @property
    def kept(self) -> nn.Module:
        """The model that is scored and kept: the average of the weights where there is one."""
        return self.learner if self.average is None else self.average.module

    def score(self, robust: float, config: Config, images: int) -> None:
        """Close an epoch with its robust accuracy on so many held-out images."""
        self.scores.append(robust)
        if best_epoch(self.scores, config, images) == self.epoch:
            self.best_epoch = self.epoch
            self.best = copy_state(self.kept)

    def save(self, run: Run, round_: int) -> None:
        """Keep everything needed to go on from this epoch."""
        tensors = _named("learner", self.learner.state_dict()) | _named("best", self.best)
        if self.average is not None:
            tensors |= _named("average", self.average.module.state_dict())
            tensors["averaged"] = self.average.steps
        for index, slots in self.optimizer.state_dict()["state"].items():
            there = {slot: value for slot, value in slots.items() if value is not None}
            tensors |= _named(f"optimizer.{index}", there)
        facts = {"round": round_, "epoch": self.epoch, "best_epoch": self.best_epoch}
        run.save_checkpoint(tensors, facts)

    def restore(self, run: Run, round_: int) -> None:
        """Go back to the last saved epoch of this round, or to its beginning if none was saved."""
        checkpoint = run.load_checkpoint()
        if checkpoint is not None and checkpoint[1]["round"] == round_:
            scores = [row["robust"] for row in run.metrics() if row["round"] == round_]
            try:
                self._put_back(*checkpoint, scores)
            except (KeyError, ValueError, TypeError, RuntimeError) as error:
                reason = shorten(str(error), 200)
                problem = f"the checkpoint in {str(run.folder)!r} does not fit this run ({reason})"
                raise InputError(f"{problem}: train anew") from None
        run.rewind_metrics(round_, self.epoch)

    def _put_back(self, tensors: State, facts: dict[str, Any], scores: list[float]) -> None:
        if len(scores) < facts["epoch"]:
            raise ValueError(f"metrics.jsonl has {len(scores)} of its {facts['epoch']} epochs")
        if facts["best_epoch"] > facts["epoch"]:
            raise ValueError(f"epoch {facts['best_epoch']} is not among {facts['epoch']}")
        self.scores = scores[: facts["epoch"]]
        self.best_epoch = facts["best_epoch"]
        self.best = _part(tensors, "best")
        self.learner.load_state_dict(self.best)  # it fits
        self.learner.load_state_dict(_part(tensors, "learner"))
        if self.average is not None:
            self.average.module.load_state_dict(_part(tensors, "average"))
            self.average.steps.copy_(tensors["averaged"])
        slots: dict[int, State] = {}
        for name, value in _part(tensors, "optimizer").items():
            index, _, slot = name.partition(".")
            slots.setdefault(int(index), {})[slot] = value
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": slots})
        for parameter, kept in self.optimizer.state.items():
            for slot, value in kept.items():
                if value.ndim:  # files hold rows; the fused step wants the weights' layout
                    kept[slot] = torch.empty_like(parameter).copy_(value)


def best_epoch(robust: Sequence[float], config: Config, images: int) -> int:
    """The epoch, from 1 on, whose weights are the best, by the robust accuracy after each.

    Only late epochs are eligible (``first_eligible``); before the first of them it is the latest.
    Among these it is the latest, which has learned most, that is as good as the most robust one as
    far as so many held-out images can tell: half the standard error of one accuracy is about the
    noise between two epochs, which meet the same images and are right on mostly the same ones.
    Chosen on the test images, as papers do, it is the most robust itself.
    """
    first = min(first_eligible(config), len(robust))
    top = max(robust[first - 1 :])
    chance = 0.5 * math.sqrt(top * (1 - top) / images) if config.select_on == "validation" else 0.0
    return max(i for i in range(first, len(robust) + 1) if robust[i - 1] >= top - chance)


def first_eligible(config: Config) -> int:
    """The first epoch that may be chosen: before it a network is hardly trained, whatever its
    ensemble's accuracy is.

    With a rate that falls in steps, the first epoch after the first of them; otherwise the first of
    the last third. With averaged weights and a rate that ends at zero, the last epoch: the average
    is at its best there.
    """
    schedule = config.recipe.schedule
    if config.recipe.ema is not None and schedule(1.0) == 0:
        return config.epochs
    return min(config.epochs, math.floor(schedule.settled * config.epochs) + 1)


def copy_state(module: nn.Module) -> State:
    return {name: value.detach().clone() for name, value in module.state_dict().items()}


def _named(prefix: str, tensors: dict[str, Tensor]) -> State:
    return {f"{prefix}.{name}": value for name, value in tensors.items()}


def _part(tensors: State, prefix: str) -> State:
    names = [name for name in tensors if name.startswith(f"{prefix}.")]
    return {name.removeprefix(f"{prefix}."): tensors[name] for name in names}
