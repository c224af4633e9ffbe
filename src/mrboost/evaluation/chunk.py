"""Some of the images on their way through the attacks: what is found of each, kept as it goes."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mrboost.attacks import Attack, AutoAttack, Classifier, Search, attacked
from mrboost.attacks.points import Points
from mrboost.attacks.search import seed_of
from mrboost.attacks.survivors import check as check_searches
from mrboost.attacks.survivors import run
from mrboost.devices import device_of, exact_float32
from mrboost.errors import InputError, NanLogitsError, UnfitError
from mrboost.files import State, digest
from mrboost.losses import margin
from mrboost.progress import Meter
from mrboost.seeds import global_stream, random_state, set_random_state
from mrboost.threat import wide

from .batches import admitted, attacked_batches, is_correct
from .doubts import Doubt, left, probe
from .resume import Parts

SAVE_EVERY = 20.0
"""Seconds between two savings inside a stage."""


@dataclass(frozen=True)
class Place:
    """Where a part of the evaluation is kept."""

    parts: Parts
    name: str
    of: str

    def get(self, stage: str = "") -> State | None:
        return self.parts.get(self.name + stage, self.of)

    def put(self, tensors: State, stage: str = "") -> None:
        self.parts.put(self.name + stage, self.of, tensors)


class Chunk:
    """Some of the images, on their way through the attacks."""

    def __init__(
        self, model: Classifier, x: Tensor, y: Tensor, first: int, batch_size: int | None
    ) -> None:
        self.model, self.x, self.classes = admitted(model, x, y)
        self.y, self.first, self.batch_size = y, first, batch_size
        self.device = device_of(model, otherwise=x.device)

    def check(self, attacks: Collection[Attack]) -> None:
        """Refuse before anything runs what one of the attacks cannot do."""
        for attack in attacks:
            if isinstance(attack, Search | AutoAttack):
                check_searches(_searches(attack), self.model, self.x, self.classes)

    def fingerprint(self) -> str:
        """Of images, labels, the model's weights and some of its answers: a function has
        no weights to go by."""
        with attacked(self.model), torch.no_grad(), exact_float32(), global_stream(0, self.device):
            answers = self.model(self.x[:8].to(self.device, copy=True)).float().cpu()
        size = answers.abs().amax().clamp(min=1e-12)
        return digest(
            self.x, self.y, (answers / size * 1e4).round(), (size.log2() * 1e3).round(), self.model
        )

    def work(self, attack: Attack | None) -> int:
        """Evaluations that an attack may take for one image."""
        work = getattr(attack, "work", None)
        return 1 if work is None else int(work(self.classes))

    def probe(self, eps: float, norm: str, n: int = 64) -> list[Doubt]:
        """What the model itself gives to doubt, on as many images as there is memory for."""
        try:
            return probe(self.model, self.x, self.y, eps=eps, norm=norm, n=n)
        except torch.OutOfMemoryError:
            return self.probe(eps, norm, n // 4) if n >= 4 else []

    def found(self, attack: Attack | None, meter: Meter, place: Place, *, images: bool) -> State:
        """What the attack finds, or what is kept of that; the ``images`` themselves only
        if they are asked for."""
        part = place.get()
        if part is not None and (not images or "adv" in part):
            meter.skip(len(self.x) * self.work(attack))
            return part
        try:
            part = self.attack(attack, meter, place)
        except UnfitError as error:  # it took the first image: a fault of its own
            raise error.fault from error.fault.__cause__
        if not images:
            part.pop("adv", None)  # large
        place.put(part)
        return part

    def attack(self, attack: Attack | None, tell: Meter, place: Place) -> State:
        """Of each image: whether it is ``correct``, its ``margin`` and ``adv``; the
        ``stage`` that broke it."""
        if isinstance(attack, Search | AutoAttack):
            return self._search(attack, tell, place)
        began, work = time.perf_counter(), self.work(attack)
        found: dict[str, list[Tensor]] = {"correct": [], "margin": [], "adv": []}
        for images, logits, labels in attacked_batches(
            self.model, self.x, self.y, attack, self.batch_size, self.first
        ):
            found["correct"].append(is_correct(self.model, images, logits, labels))
            found["margin"].append(-margin(logits, labels, reduction="none").cpu().double())
            found["adv"].append(images.cpu())
            tell(len(labels) * work)
        seconds = torch.tensor([[time.perf_counter() - began]])
        return {key: torch.cat(values) for key, values in found.items() if values} | {
            "seconds": seconds
        }

    def _search(self, attack: Search | AutoAttack, tell: Meter, place: Place) -> State:
        searches = _searches(attack)
        clock = _Clock(len(searches))
        earlier = place.get("-unfinished")
        seen: list[Points] = []

        def resume(points: Points) -> int:
            seen.append(points)
            if earlier is None:
                return 0
            clock.seconds, clock.stage = earlier["seconds"], int(earlier["stage"])
            points.restore(earlier)
            set_random_state(earlier, self.device)
            return clock.stage

        def hear(points: Points, stage: int) -> None:
            if clock.stage < stage < len(searches):
                tell.say(
                    f"stage {searches[stage - 1].name} is done, {int(points.alive.sum())} of "
                    f"{len(self.x)} stand"
                )
            if clock.tick(stage):
                known = {"seconds": clock.seconds, "stage": torch.tensor(stage)} | random_state(
                    self.device
                )
                place.put(points.saved() | known, "-unfinished")

        try:
            run(
                self.model,
                self.x.to(self.device),
                self.y.to(self.device),
                searches,
                seed_of(attack.seed, None),
                lanes=self.batch_size,
                first=self.first,
                resume=resume,
                tell=hear,
                work=tell,
            )
        except NanLogitsError as error:
            if clock.stage == 0:
                raise
            raise StageError(error, clock.stage, _part(seen[0], clock)) from None
        place.parts.drop(place.name + "-unfinished")
        return _part(seen[0], clock)


class StageError(InputError):
    """An attack that is several in turn failed after ``stages`` of them; ``part``
    is what it had found."""

    def __init__(self, error: InputError, stages: int, part: State) -> None:
        super().__init__(str(error))
        self.stages, self.part = stages, part


def first_stages(part: State, clean: State, stages: int) -> State:
    """What is known of the images after so many stages: those that a later one broke are clean
    again, and what margins they had is not known."""
    since = part["stage"] > stages
    adv = (
        {"adv": torch.where(wide(since, part["adv"]), clean["adv"], part["adv"])}
        if "adv" in clean
        else {}
    )
    return adv | {
        "correct": left(part["stage"], stages),
        "margin": torch.full_like(part["margin"], torch.nan),
        "stage": part["stage"].masked_fill(since, -1),
        "seconds": part["seconds"][:, :stages],
    }


def _part(points: Points, clock: _Clock) -> State:
    return {
        "correct": points.alive,
        "margin": -points.margin.cpu().double(),
        "adv": points.adv.cpu(),
        "stage": points.broken_by,
        "seconds": clock.seconds[None],
    }


def _searches(attack: Search | AutoAttack) -> Sequence[Search]:
    return attack.searches if isinstance(attack, AutoAttack) else (attack,)


class _Clock:
    """Seconds spent in each stage, and when to save."""

    def __init__(self, stages: int) -> None:
        self.seconds, self.stage = torch.zeros(stages, dtype=torch.float64), 0
        self._last = self._saved = time.perf_counter()

    def tick(self, stage: int) -> bool:
        """Count the time since the last tick for the stage that ran; True
        when it is time to save."""
        now, ended = time.perf_counter(), stage > self.stage
        self.seconds[self.stage] += now - self._last
        self._last, self.stage = now, min(stage, len(self.seconds) - 1)
        if not ended and now - self._saved < SAVE_EVERY:
            return False
        self._saved = now
        return True
