"""One attack on one chunk of the images: the model's answers batch by batch, and what is left of
the chunk point by point, saved so that an interrupted evaluation can go on."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass

import torch
from torch import Tensor

from mrboost.attacks import PGD, Attack, attacked
from mrboost.attacks.base import ball_of
from mrboost.attacks.survivors import Hooks, InTurn, Points, run, seed_of
from mrboost.attacks.survivors import check as check_searches
from mrboost.data import Split
from mrboost.devices import device_of, exact_float32, in_batches
from mrboost.ensemble import Classifier, Mixture
from mrboost.errors import InputError, NanLogitsError, UnfitError
from mrboost.files import State
from mrboost.losses import margin
from mrboost.models import BlackBox
from mrboost.progress import Meter
from mrboost.seeds import derive, global_stream, random_state, set_random_state
from mrboost.speed.copies import quick
from mrboost.threat import ball

from .inputs import Chunk, fitted
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


def accuracies(model: Classifier, split: Split, attack: Attack) -> tuple[float, float]:
    """Clean and attacked accuracy on a split that was checked when it was loaded."""
    clean, robust = (scores(model, split, one)[0].mean().item() for one in (None, attack))
    return clean, robust


def scores(model: Classifier, split: Split, attack: Attack | None) -> tuple[Tensor, Tensor]:
    """Of each image of a split that was checked when it was loaded, after the attack: whether it is
    classified correctly, as ``is_correct`` says, and its margin."""
    correct: list[Tensor] = []
    margins: list[Tensor] = []
    for part in split.parts():
        fits, x = fitted(model, part.images())
        for images, logits, labels in attacked_batches(fits, x, part.y, attack):
            correct.append(is_correct(fits, images, logits, labels))
            margins.append(-margin(logits, labels, reduction="none").cpu().double())
    return torch.cat(correct).double(), torch.cat(margins)


def is_correct(model: Classifier, images: Tensor, logits: Tensor, labels: Tensor) -> Tensor:
    """Whether each image is classified correctly; for a randomised classifier,
    with which probability."""
    if isinstance(model, Mixture):
        with attacked(model), torch.no_grad():
            return model.expected_correct(images, labels).cpu().double()
    return (logits.argmax(dim=1) == labels).cpu()


def attacked_batches(
    model: Classifier,
    x: Tensor,
    y: Tensor,
    attack: Attack | None,
    batch_size: int | None = None,
    numbers: Tensor | None = None,
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Batch by batch on the model's device: the attacked images, the model's logits
    on them, the labels.

    Args:
        model: gives the logits. PGD runs on a quick copy; what it finds is the model's to judge.
        x, y: images that fit the model (``fitted``), and labels.
        attack: what is done to the images; nothing if None.
        batch_size: images at a time; chosen, and halved when memory runs out, if not given.
        numbers: those that messages give to the images; from 0 on if not given.
    """
    device = device_of(model, otherwise=x.device)
    numbers = torch.arange(len(x)) if numbers is None else numbers
    size = min(len(x), batch_size or _usual_batch_size(x, device))
    victim = _victim(model, attack, x, device)
    name = "" if attack is None else attack.name

    def answered(rows: slice) -> tuple[Tensor, Tensor, Tensor]:
        images, labels, number = x[rows].to(device), y[rows].to(device), numbers[rows]
        if attack is not None:
            try:
                with nullcontext() if victim is model else torch.autocast("cuda", enabled=False):
                    found = attack(victim, images, labels)
            except NanLogitsError as error:  # of an attack that numbers the images of a batch
                raise NanLogitsError(int(number[error.image]), error.attack or name) from None
            _check_found(attack, found, images, number)
            images = found
        with attacked(model), torch.no_grad(), exact_float32():
            logits = model(images.clone())  # a model may work in place
        bad = logits.isnan().any(dim=1)
        if bad.any():
            raise NanLogitsError(int(number[bad.cpu()][0]), name)
        return images, logits, labels

    return in_batches(answered, len(x), size, fixed=batch_size is not None)


def _usual_batch_size(x: Tensor, device: torch.device) -> int:
    numbers = 2**22 if device.type == "cuda" else 2**18
    return max(16, min(1024, numbers // x[0].numel()))


def _victim(
    model: Classifier, attack: Attack | None, x: Tensor, device: torch.device
) -> Classifier:
    """What the attack runs on: a quick copy for PGD, elsewhere the model itself.

    Among restarts only the model itself may choose.
    """
    if type(attack) is not PGD or attack.restarts > 1:
        return model
    few = x[:: max(1, len(x) // 8)].to(device)
    full = torch.autocast("cuda", enabled=False)
    with attacked(model), torch.inference_mode(False), full, suppress(torch.OutOfMemoryError):
        return quick(model, few.clone())
    return model  # there is no room for a copy


def _check_found(attack: Attack, found: object, x: Tensor, numbers: Tensor) -> None:
    """Refuse an attack whose images are of another shape or type, or outside the box or the ball
    that it says it keeps to."""
    if not isinstance(found, Tensor) or found.shape != x.shape or found.dtype != x.dtype:
        got = type(found).__name__
        if isinstance(found, Tensor):
            got = f"{tuple(found.shape)} of {found.dtype}"
        given = f"images of shape {tuple(x.shape)} of {x.dtype}"
        raise InputError(f"{attack.name} was given {given} and returned {got}")
    rounding = 4 * torch.finfo(x.dtype).eps
    # NaN is outside too
    outside = ~((found >= -rounding) & (found <= 1 + rounding)).flatten(1).all(dim=1)
    did = "made NaN of {}" if found.isnan().any() else "moved {} out of [0, 1]"
    eps, norm = ball_of(attack)
    if not outside.any() and eps is not None and norm is not None:
        outside = ball(norm, eps or 1.0).distance(found, x) > eps * (1 + 1e-5) + rounding
        did = f"moved {{}} out of its {norm} ball of {eps:g}"
    if outside.any():
        image = f"image {int(numbers[outside.cpu()][0])}"
        raise InputError(f"{attack.name} {did.format(image)}: the attack is at fault")
