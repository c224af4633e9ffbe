"""Who watches an evaluation: they are told what happens, and change nothing."""

from __future__ import annotations

from collections.abc import Collection

import torch

from mrboost.attacks import Attack
from mrboost.files import State
from mrboost.progress import Meter
from mrboost.speed.memory import halved

from .chunk import Chunk, work_of
from .doubts import Doubt, probe


class Observer:
    """Is told of each chunk, each attack on it, and what comes of that."""

    def on_chunk(self, chunk: Chunk) -> None:
        """The attacks on this chunk are about to begin."""

    def on_attack(self, label: str) -> None:
        """This one is about to begin."""

    def on_result(self, label: str, chunk: Chunk, found: State) -> None:
        """It left this of the chunk."""

    def on_failure(self, label: str) -> None:
        """It failed, and will not be tried on further chunks."""

    def on_end(self) -> None:
        """Everything is measured."""


class ProgressReport(Observer):
    """Counts evaluations of the model, and has a line for each attack that is done.

    Args:
        meter: what shows them.
        attacks: all that will run.
        images: how many images there are, if that is known.
    """

    def __init__(self, meter: Meter, attacks: Collection[Attack], images: int | None) -> None:
        self._meter = meter
        self._attacks = attacks
        self._images = images
        self._seen: dict[str, int] = {}
        self._correct: dict[str, float] = {}

    def on_chunk(self, chunk: Chunk) -> None:
        if chunk.number == 0:
            each = sum(work_of(attack, chunk.classes) for attack in (None, *self._attacks))
            self._meter.begin(None if self._images is None else self._images * each)

    def on_attack(self, label: str) -> None:
        self._meter.doing(label)

    def on_result(self, label: str, chunk: Chunk, found: State) -> None:
        if chunk.number == 0 and label == "clean":  # clean images say nothing of the pace
            self._meter.skip(0)
        self._seen[label] = self._seen.get(label, 0) + len(chunk.x)
        self._correct[label] = self._correct.get(label, 0) + found["correct"].double().sum().item()
        if self._seen[label] == self._images:
            self._say_done(label)

    def on_failure(self, label: str) -> None:
        self._meter.say(f"{label} failed")
        self._seen.pop(label, None)

    def on_end(self) -> None:
        for label, seen in self._seen.items():
            if seen != self._images:  # their number was not known before
                self._say_done(label)

    def _say_done(self, label: str) -> None:
        self._meter.say(f"{label} is done, {self._correct[label] / self._seen[label]:.2%} stand")


class DoubtFinder(Observer):
    """Looks at the model on the first chunk for reasons to doubt its figures: ``doubts``."""

    def __init__(self, meter: Meter, eps: float, norm: str) -> None:
        self.doubts: list[Doubt] = []
        self._meter = meter
        self._eps = eps
        self._norm = norm

    def on_chunk(self, chunk: Chunk) -> None:
        if chunk.number == 0:
            self._meter.doing("looking for doubts")
            self._meter.say("looking for doubts")
            self.doubts = self._probe(chunk)

    def _probe(self, chunk: Chunk) -> list[Doubt]:
        """On as many images as there is memory for."""
        images = 64
        while True:
            try:
                return probe(
                    chunk.model, chunk.x, chunk.y, eps=self._eps, norm=self._norm, n=images
                )
            except torch.OutOfMemoryError as error:
                if images == 1:
                    return []
                images = halved(images, error)
