"""What a fit is made of between two epochs, and how it goes to a file and back."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from .average import Average
from .errors import InputError
from .runs import Run
from .storage import State


@dataclass
class Progress:
    """A learner under training: its weights, its optimiser's, and the best so far."""

    learner: nn.Module
    optimizer: torch.optim.Optimizer
    average: Average | None = None
    epoch: int = 0
    best_epoch: int = 0
    best_robust: float = -1.0
    top_robust: float = -1.0
    """Of any epoch; the best one may be a little below it, see ``good_enough``."""
    best: State = field(default_factory=dict)

    @property
    def kept(self) -> nn.Module:
        """The model that is scored and kept: the average of the weights where there is one."""
        return self.learner if self.average is None else self.average.module

    def score(self, robust: float, images: float) -> None:
        """Close an epoch with its robust accuracy on so many held-out images."""
        self.epoch += 1
        self.top_robust = max(self.top_robust, robust)
        if robust >= good_enough(self.top_robust, images):
            self.best_epoch, self.best_robust, self.best = self.epoch, robust, copy_state(self.kept)

    def save(self, run: Run, round_: int) -> None:
        tensors = _named("learner", self.learner.state_dict()) | _named("best", self.best)
        if self.average is not None:
            tensors |= _named("average", self.average.module.state_dict()) | {"averaged": self.average.steps}
        for index, slots in self.optimizer.state_dict()["state"].items():
            tensors |= _named(f"optimizer.{index}", {slot: v for slot, v in slots.items() if v is not None})
        facts = {
            "round": round_,
            "epoch": self.epoch,
            "best_epoch": self.best_epoch,
            "best_robust": self.best_robust,
            "top_robust": self.top_robust,
        }
        run.save_checkpoint(tensors, facts)

    def restore(self, run: Run, round_: int) -> None:
        """Go back to the last saved epoch of this round, or to its beginning if none was saved."""
        checkpoint = run.load_checkpoint()
        if checkpoint is None or checkpoint[1].get("round") != round_:
            run.rewind_metrics(round_, 0)
            return
        tensors, facts = checkpoint
        try:
            self._put_back(tensors, facts)
        except (KeyError, ValueError, TypeError, RuntimeError) as error:
            reason = " ".join(str(error).split())[:200]
            raise InputError(
                f"the checkpoint in {str(run.folder)!r} does not fit this run ({reason}): train anew"
            ) from None
        run.rewind_metrics(round_, self.epoch)

    def _put_back(self, tensors: State, facts: dict[str, Any]) -> None:
        self.epoch, self.best_epoch, self.best_robust = facts["epoch"], facts["best_epoch"], facts["best_robust"]
        self.top_robust = facts.get("top_robust", self.best_robust)
        self.learner.load_state_dict(_part(tensors, "learner"))
        if self.average is not None:
            self.average.module.load_state_dict(_part(tensors, "average"))
            self.average.steps.copy_(tensors["averaged"])
        slots: dict[int, State] = {}
        for name, value in _part(tensors, "optimizer").items():
            index, _, slot = name.partition(".")
            slots.setdefault(int(index), {})[slot] = value
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": slots})
        for (
            parameter,
            kept,
        ) in self.optimizer.state.items():  # files hold rows; the fused step wants the weights' layout
            kept.update({slot: torch.empty_like(parameter).copy_(v) for slot, v in kept.items() if v.ndim})
        self.best = _part(tensors, "best")


def good_enough(top: float, images: float) -> float:
    """The accuracy from which on an epoch is as good as one with ``top``, as far as so many images can tell.

    Of such epochs the latest counts as the best: it has learned most. Half the standard error of one accuracy is about
    the noise between two epochs, which meet the same images and are right on mostly the same ones.
    """
    return top - 0.5 * math.sqrt(top * (1 - top) / images)


def copy_state(module: nn.Module) -> State:
    return {name: value.detach().clone() for name, value in module.state_dict().items()}


def _named(prefix: str, tensors: dict[str, Tensor]) -> State:
    return {f"{prefix}.{name}": value for name, value in tensors.items()}


def _part(tensors: State, prefix: str) -> State:
    return {name.removeprefix(f"{prefix}."): value for name, value in tensors.items() if name.startswith(f"{prefix}.")}
