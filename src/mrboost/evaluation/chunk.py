"""One attack on one chunk of the images: what it leaves of them, point by point."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mrboost.attacks import Attack, AutoAttack, Search
from mrboost.attacks.survivors import Hooks, Points, run, seed_of
from mrboost.attacks.survivors import check as check_searches
from mrboost.errors import UnfitError
from mrboost.files import State
from mrboost.losses import margin
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
        if isinstance(attack, Search | AutoAttack):
            check_searches(searches_of(attack), chunk.model, chunk.x, chunk.classes)


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

    def run(self, attack: Attack | None, chunk: Chunk, label: str, name: str) -> State:
        """Of each image whether it is ``correct`` and its ``margin``; the ``seconds``; of several
        attacks in turn the ``stage`` that broke it; the images as ``adv`` if they are asked for.

        Args:
            attack: the attack, or None for the clean images.
            chunk: the images.
            label: names the random stream of a model that draws random numbers, so that what it
                draws does not depend on what was done before.
            name: what a saved part is called.
        """
        self.meter.doing(label)
        key = self.saved.key(attack, chunk)
        found = self.saved.get(name, key)
        if found is not None and ("adv" in found or not self.images):
            self.meter.skip(len(chunk.x) * work_of(attack, chunk.classes))
            return found
        seed = 0 if attack is None else attack.seed or 0
        try:
            with global_stream(derive(seed, chunk.number, label), chunk.device):
                if isinstance(attack, Search | AutoAttack):
                    found = self._search(attack, chunk, f"{name}-unfinished", key)
                else:
                    found = self._attack(attack, chunk)
        except UnfitError as error:  # the model took the first image: a fault of its own
            raise error.fault from error.fault.__cause__
        if not self.images:
            del found["adv"]
        self.saved.put(name, key, found)
        self.saved.drop(f"{name}-unfinished")
        return found

    def _attack(self, attack: Attack | None, chunk: Chunk) -> State:
        """Batch by batch."""
        began, work = time.perf_counter(), work_of(attack, chunk.classes)
        found: dict[str, list[Tensor]] = {"correct": [], "margin": [], "adv": []}
        for images, logits, labels in attacked_batches(
            chunk.model, chunk.x, chunk.y, attack, self.batch_size, chunk.first
        ):
            found["correct"].append(is_correct(chunk.model, images, logits, labels))
            found["margin"].append(-margin(logits, labels, reduction="none").cpu().double())
            found["adv"].append(images.cpu())
            self.meter(len(labels) * work)
        seconds = torch.tensor([[time.perf_counter() - began]])
        return {"seconds": seconds} | {key: torch.cat(parts) for key, parts in found.items()}

    def _search(
        self, attack: Search | AutoAttack, chunk: Chunk, unfinished: str, key: str | None
    ) -> State:
        """Stage by stage, each on the points that stand; saved after each and now and then."""
        searches = searches_of(attack)
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
                self.meter.say(f"stage {searches[stage - 1].name}: {stand}")
            current = min(stage, len(searches) - 1)
            if ended or now - saved >= SAVE_EVERY:
                saved = now
                times = {"seconds": seconds, "stage": torch.tensor(current)}
                state = points.saved() | times | random_state(chunk.device)
                self.saved.put(unfinished, key, state)

        x, y = chunk.x.to(chunk.device), chunk.y.to(chunk.device)
        hooks = Hooks(resume, watch, self.meter)
        seed = seed_of(attack.seed, None)
        points = run(
            chunk.model, x, y, searches, seed, lanes=self.batch_size, first=chunk.first, hooks=hooks
        )
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


def searches_of(attack: Search | AutoAttack) -> Sequence[Search]:
    return attack.searches if isinstance(attack, AutoAttack) else (attack,)
