"""One attack on one chunk of the images: what it leaves of them, point by point."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import Tensor

from mrboost.attacks import PGD, Attack
from mrboost.attacks.survivors import Hooks, InTurn, Points, run, seed_of
from mrboost.attacks.survivors import check as check_searches
from mrboost.errors import InputError, NanLogitsError, UnfitError
from mrboost.files import State
from mrboost.losses import margin
from mrboost.models import BlackBox
from mrboost.progress import Meter
from mrboost.seeds import derive, global_stream, random_state, set_random_state

from .batches import attacked_batches, is_correct
from .inputs import Chunk
from .resume import Saved

SAVE_EVERY = 20.0
"""Seconds between two savings inside a stage."""


def check_attacks(attacks: Collection[Attack], chunk: Chunk) -> None:
    """Refuse before anything runs what one of the attacks cannot do."""
    for attack in attacks:
        if isinstance(chunk.model, BlackBox) and _needs_gradients(attack):
            problem = f"{attack.name} needs gradients, and the model only answers"
            raise InputError(f"{problem}: use square or rays, or name a differentiable surrogate")
        if isinstance(attack, InTurn):
            check_searches(attack.searches, chunk.model, chunk.x, chunk.classes)


def _needs_gradients(attack: Attack) -> bool:
    return attack.uses_gradients and isinstance(attack, InTurn | PGD)


@dataclass(frozen=True)
class Runner:
    """Runs attacks on chunks, or finds what an earlier evaluation saved of them.

    Attributes:
        saved: where finished parts are kept.
        meter: counts evaluations of the model.
        batch_size: images at a time; chosen if not given.
        images: whether the adversarial images are asked for.
    """

    saved: Saved
    meter: Meter
    batch_size: int | None
    images: bool

    def run(
        self,
        attack: Attack | None,
        chunk: Chunk,
        label: str,
        name: str,
        smaller: State | None = None,
    ) -> State:
        """Of each image whether it is ``correct`` and its ``margin``; the ``seconds``; of several
        attacks in turn the ``stage`` that broke it; the images as ``adv`` if they are asked for.

        Args:
            attack: the attack, or None for the clean images.
            chunk: the images.
            label: names the random stream of a model that draws random numbers, so that what it
                draws does not depend on what was done before.
            name: what a saved part is called.
            smaller: what the same attack left within a smaller ball; what fell there has fallen.
        """
        self.meter.doing(label)
        fallen = torch.zeros(0) if smaller is None else smaller["correct"] == 0
        key = self.saved.key(attack, chunk, fallen)
        found = self.saved.get(name, key)
        if found is not None and ("adv" in found or not self.images):
            self.meter.skip(len(chunk.x) * work_of(attack, chunk.classes))
            return found
        unfinished = f"{name}-unfinished"
        seed = 0 if attack is None else attack.seed or 0
        with global_stream(derive(seed, chunk.number, label), chunk.device):
            if smaller is None:
                found = self._run(attack, chunk, unfinished, key)
            else:
                found = self._on_survivors(attack, chunk, unfinished, key, smaller)
        if not self.images:
            found.pop("adv", None)
        self.saved.put(name, key, found)
        self.saved.drop(unfinished)
        return found

    def _run(self, attack: Attack | None, chunk: Chunk, unfinished: str, key: str | None) -> State:
        try:
            if isinstance(attack, InTurn):
                return self._search(attack, chunk, unfinished, key)
            return self._attack(attack, chunk)
        except UnfitError as error:  # the model took the first image: a fault of its own
            raise error.fault from error.fault.__cause__

    def _on_survivors(
        self, attack: Attack | None, chunk: Chunk, unfinished: str, key: str | None, smaller: State
    ) -> State:
        """What fell in a smaller ball stays as it was found there; clean images stay at all."""
        merged = smaller | {"seconds": torch.zeros_like(smaller["seconds"])}
        stand = smaller["correct"] > 0
        rows = stand.nonzero().squeeze(1) if attack is not None else torch.zeros(0).long()
        self.meter.skip((len(stand) - len(rows)) * work_of(attack, chunk.classes))
        if len(rows) == 0:
            return merged
        found = self._run(attack, chunk.part(rows), unfinished, key)
        found.pop("adv")
        merged["seconds"] = found.pop("seconds")
        # Of a randomised classifier, the image of the smaller ball may be the worse one
        worse = found["correct"] <= smaller["correct"][rows]
        for name, value in found.items():
            merged[name] = merged[name].index_copy(0, rows[worse], value[worse])
        return merged

    def _attack(self, attack: Attack | None, chunk: Chunk) -> State:
        """Batch by batch."""
        began, work = time.perf_counter(), work_of(attack, chunk.classes)
        found: dict[str, list[Tensor]] = {"correct": [], "margin": [], "adv": []}
        for images, logits, labels in attacked_batches(
            chunk.model, chunk.x, chunk.y, attack, self.batch_size, chunk.numbers
        ):
            found["correct"].append(is_correct(chunk.model, images, logits, labels))
            found["margin"].append(-margin(logits, labels, reduction="none").cpu().double())
            found["adv"].append(images.cpu())
            self.meter(len(labels) * work)
        seconds = torch.tensor([[time.perf_counter() - began]])
        return {"seconds": seconds} | {key: torch.cat(parts) for key, parts in found.items()}

    def _search(self, attack: InTurn, chunk: Chunk, unfinished: str, key: str | None) -> State:
        """Stage by stage, each on the points that stand; saved after each and now and then."""
        searches = attack.searches
        seconds = torch.zeros(len(searches), dtype=torch.float64)
        current = 0
        looked = saved = time.perf_counter()

        def resume(points: Points) -> int:
            nonlocal current
            if earlier := self.saved.get(unfinished, key):
                seconds.copy_(earlier["seconds"])
                current = int(earlier["stage"])
                points.restore(earlier)
                set_random_state(earlier, chunk.device)
            return current

        def watch(points: Points, stage: int) -> None:
            nonlocal current, looked, saved
            now, ended = time.perf_counter(), stage > current
            seconds[current] += now - looked
            looked = now
            if ended and stage < len(searches):
                stand = f"{int(points.alive.sum())} of {len(chunk.x)} stand"
                self.meter.say(f"stage {searches[stage - 1].stage}: {stand}")
            current = min(stage, len(searches) - 1)
            if ended or now - saved >= SAVE_EVERY:
                saved = now
                times = {"seconds": seconds, "stage": torch.tensor(current)}
                state = points.saved() | times | random_state(chunk.device)
                self.saved.put(unfinished, key, state)

        x, y = chunk.x.to(chunk.device), chunk.y.to(chunk.device)
        hooks = Hooks(resume, watch, self.meter)
        seed = seed_of(attack.seed, None)
        try:
            points = run(chunk.model, x, y, searches, seed, lanes=self.batch_size, hooks=hooks)
        except NanLogitsError as error:
            raise NanLogitsError(int(chunk.numbers[error.image]), error.attack) from None
        return {
            "correct": points.alive,
            "margin": -points.margin.cpu().double(),
            "adv": points.adv.cpu(),
            "stage": points.broken_by,
            "seconds": seconds[None],
        }


def work_of(attack: Attack | None, classes: int) -> int:
    """Evaluations of the model that an attack may take for one image; None is no attack."""
    return 1 if attack is None else attack.work(classes)
