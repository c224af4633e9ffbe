"""How robust is a classifier? Accuracy and margins, clean and under attack, of any model on any number of images.

``evaluate`` gives an ``Evaluation``. Images are taken chunk by chunk, so memory does not grow with their number; what
is finished of a long evaluation can be kept in a folder and gone on with. All figures are computed in the model's own
precision, image by image.
"""

from __future__ import annotations

import io
import time
import zipfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from .attacks import Attack, AutoAttack, Classifier, Search, attacked, named
from .attacks.base import Untouched, check_logits, keep_random_state
from .attacks.points import Points
from .attacks.queue import check as check_searches
from .attacks.queue import run
from .attacks.search import seed_of
from .batches import attacked_batches, fitted, is_correct
from .devices import device_of, exact_float32
from .doubts import Doubt
from .ensemble import Mixture
from .errors import InputError, UnfitError
from .intake import Images, chunks, count
from .losses import margin
from .measured import Measured, UnfinishedError
from .meter import Meter
from .outcomes import Evaluation
from .parts import Parts, digest
from .probing import probe
from .seeds import global_stream
from .storage import State, replace_file, write_tensors
from .threat import radius

Attacks = str | Attack | Sequence[str | Attack] | Mapping[str, Attack]
DEFAULT_ATTACKS = ("fgsm", "pgd-20", "pgd-100", "cw")
SAVE_EVERY = 20.0
"""Seconds between two savings inside a stage."""


def evaluate(
    model: Classifier,
    x: Images,
    y: Tensor | None = None,
    attack: Attacks = DEFAULT_ATTACKS,
    *,
    eps: float = 8 / 255,
    norm: str = "Linf",
    batch_size: int | None = None,
    progress: bool = False,
    check: bool = True,
    keep: str | Path | None = None,
    resume: bool = False,
    examples: str | Path | None = None,
) -> Evaluation:
    """Accuracy of ``model`` on images ``x`` in [0, 1] with labels ``y``, clean and under each attack.

    Args:
        model: an ``nn.Module`` on any device, or a differentiable function, that returns logits.
        x, y: tensors (or arrays) of images and integer or one-hot labels; they are moved to the model batch by batch.
            Without ``y``, a ``Split`` or any iterable of pairs (images, labels), such as a ``DataLoader``.
        attack: a name (``autoattack``, ``apgd-ce``, ``square``, ``fgsm``, ``pgd-20``, ``pgd-mce-20``, ``cw``), an
            attack, several of them, or a mapping from labels to attacks. Clean accuracy is always reported.
        eps, norm: the ball of attacks given by name; with eps 0 every attack leaves the images as they are.
        batch_size: images at a time; chosen, and halved when memory runs out, if not given.
        progress: show a progress bar on standard error; where that is no terminal, a line for each attack and stage.
        check: look for reasons to doubt the figures.
        keep: a folder for what is finished; ``resume`` goes on with what it holds. Remove it when you are done.
        examples: a file, .safetensors or .npz, for the adversarial images of each attack, beside the clean ones.

    Example:
        >>> print(evaluate(model, x, y, ["autoattack", "pgd-20"], eps=0.1))  # doctest: +SKIP
    """
    if resume and keep is None:
        raise InputError("resume=True has nothing to go on with: name the folder with keep=, from the first time on")
    eps = radius(eps)
    return measure(
        model, x, y, resolve_attacks(attack, eps, norm), eps=eps, norm=norm, batch_size=batch_size, progress=progress,
        check=check, keep=keep, resume=resume, examples=examples,
    ).evaluation()  # fmt: skip


def measure(
    model: Classifier,
    x: Images,
    y: Tensor | None,
    attacks: Mapping[str, Attack],
    *,
    eps: float,
    norm: str,
    batch_size: int | None,
    progress: bool,
    check: bool,
    keep: str | Path | None,
    resume: bool,
    examples: str | Path | None,
) -> Measured:
    """What ``evaluate`` sums up."""
    if batch_size is not None and (not isinstance(batch_size, int | np.integer) or batch_size < 1):
        raise InputError(f"batch_size must be at least 1, and whole, got {batch_size}: leave it out to have it chosen")
    if keep is not None and Path(keep).exists() and not Path(keep).is_dir():
        raise InputError(f"keep names a folder for what is finished, and {str(keep)!r} is a file")
    if examples is not None and Path(examples).suffix not in (".safetensors", ".npz"):
        raise InputError(f"examples are written as .safetensors or .npz, got {str(examples)!r}")
    if examples is not None and (Path(examples).is_dir() or not Path(examples).parent.is_dir()):
        problem = "it is a folder" if Path(examples).is_dir() else "there is no such folder: make it first"
        raise InputError(f"cannot write examples to {str(examples)!r}: {problem}")
    balls = {(getattr(one, "eps", None), getattr(one, "norm", None)) for one in attacks.values()} or {(eps, norm)}
    common = balls.pop() if len(balls) == 1 else (None, None)
    parts = Parts(None if keep is None else Path(keep), resume=resume)
    found: dict[str, list[State]] = {label: [] for label in ("clean", *attacks)}
    doubts: list[Doubt] = []
    labels: list[Tensor] = []
    going: dict[str, Attack | None] = {"clean": None, **attacks}
    stopped: InputError | None = None

    def measured() -> Measured:
        known = {label: _joined(found[label]) for label in going}
        return Measured(common[0], common[1], attacks, torch.cat(labels), known, tuple(doubts), check)

    device = device_of(model, otherwise=x.device if isinstance(x, Tensor) else torch.device("cpu"))
    with torch.inference_mode(False), keep_random_state(device), Meter(progress) as meter:
        for number, (images, targets) in enumerate(chunks(x, y)):
            chunk = _Chunk(model, images, targets, sum(map(len, labels)), batch_size)
            if number == 0:
                chunk.check(attacks.values())
                images_in_all = count(x)
                each = sum(chunk.work(one) for one in (None, *attacks.values()))
                meter.begin(None if images_in_all is None else images_in_all * each)
                if check:
                    meter.doing("looking for doubts")
                    meter.say("looking for doubts")
                    doubts = chunk.probe(common[0] or eps, common[1] or norm)
            labels.append(targets)
            last = sum(map(len, labels)) == images_in_all
            chunk_is = "" if keep is None else chunk.fingerprint()
            for label, one in going.items():
                meter.doing(label)
                of = "" if keep is None else digest(chunk_is, one)
                place = _Place(parts, f"{number}-{list(found).index(label)}", of)
                part = place.get()
                if part is None or (examples is not None and "adv" not in part):
                    try:
                        part = chunk.attack(one, meter, place)
                    except UnfitError as error:  # it took the first image: a fault of its own
                        raise error.fault from error.fault.__cause__
                    except InputError as error:
                        meter.say(f"{label} came to nothing")
                        stopped, going = error, dict(islice(going.items(), list(going).index(label)))
                        break
                    if examples is None:
                        part.pop("adv", None)  # large, and not asked for
                    place.put(part)
                else:
                    meter.skip(len(images) * chunk.work(one))
                found[label].append(part)
                if last:
                    _say_done(meter, label, found[label])
            if not going:
                break
        if not last:  # their number was not known before
            for label in going:
                _say_done(meter, label, found[label])
    if stopped is not None:
        raise UnfinishedError(str(stopped), measured())
    if examples is not None:
        try:
            _write_examples(Path(examples), found, torch.cat(labels), {"eps": common[0], "norm": common[1]})
        except OSError as error:
            problem = f"cannot write examples to {str(examples)!r}: {error.strerror}"
            raise UnfinishedError(problem, measured()) from None
    return measured()


def resolve_attacks(attack: Attacks, eps: float, norm: str) -> dict[str, Attack]:
    """Attacks by label, whatever form they were given in; ``clean`` is left out, it is always there."""
    found: dict[str, Attack] = dict(attack) if isinstance(attack, Mapping) else {}
    if not isinstance(attack, Mapping):
        for item in [attack] if isinstance(attack, str) or not isinstance(attack, Sequence) else attack:
            if item == "clean":
                continue
            one = named(item, eps or 0.1, norm) if isinstance(item, str) else item
            if isinstance(item, str) and eps == 0:
                one = Untouched(item, norm)
            if isinstance(item, type):
                raise InputError(f"an attack is made first: {item.__name__}(eps, ...) in the place of {item.__name__}")
            label = item if isinstance(item, str) else str(getattr(one, "name", type(one).__name__))
            if label in found and found[label] != one:
                label = f"{label} ({len(found) + 1})"
            found[label] = one
    for label, one in found.items():
        if label in ("clean", "y"):
            raise InputError(f"an attack cannot be called {label!r}: that is the name of something else in the result")
        if not callable(one) or isinstance(one, type):
            raise InputError(f"an attack is a name or a callable attack(model, x, y), got {one!r} as {label!r}")
    return found


@dataclass(frozen=True)
class _Place:
    """Where a part of the evaluation is kept."""

    parts: Parts
    name: str
    of: str

    def get(self, stage: str = "") -> State | None:
        return self.parts.get(self.name + stage, self.of)

    def put(self, tensors: State, stage: str = "") -> None:
        self.parts.put(self.name + stage, self.of, tensors)


class _Chunk:
    """Some of the images, on their way through the attacks."""

    def __init__(self, model: Classifier, x: Tensor, y: Tensor, first: int, batch_size: int | None) -> None:
        Mixture.check_outermost(model)
        self.model, self.x = fitted(model, x)
        self.y, self.first, self.batch_size = y, first, batch_size
        self.device = device_of(model, otherwise=x.device)
        with attacked(model):
            self.classes = check_logits(self.model, self.x[:1].to(self.device), y)

    def check(self, attacks: Collection[Attack]) -> None:
        """Refuse before anything runs what one of the attacks cannot do."""
        for attack in attacks:
            if isinstance(attack, Search | AutoAttack):
                check_searches(_searches(attack), self.model, self.x, self.classes)

    def fingerprint(self) -> str:
        """Of images, labels, the model's weights and some of its answers: a function has no weights to go by."""
        with attacked(self.model), torch.no_grad(), exact_float32(), global_stream(0, self.device):
            answers = self.model(self.x[:8].to(self.device, copy=True)).float().cpu()
        size = answers.abs().amax().clamp(min=1e-12)
        return digest(self.x, self.y, (answers / size * 1e4).round(), (size.log2() * 1e3).round(), self.model)

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

    def attack(self, attack: Attack | None, tell: Meter, place: _Place) -> State:
        """Of each image: whether it is ``correct``, its ``margin`` and ``adv``; the ``stage`` that broke it."""
        if isinstance(attack, Search | AutoAttack):
            return self._search(attack, tell, place)
        began, work = time.perf_counter(), self.work(attack)
        found: dict[str, list[Tensor]] = {"correct": [], "margin": [], "adv": []}
        for images, logits, labels in attacked_batches(self.model, self.x, self.y, attack, self.batch_size, self.first):
            found["correct"].append(is_correct(self.model, images, logits, labels))
            found["margin"].append(-margin(logits, labels, reduction="none").cpu().double())
            found["adv"].append(images.cpu())
            tell(len(labels) * work)
        seconds = torch.tensor([[time.perf_counter() - began]])
        return {key: torch.cat(values) for key, values in found.items() if values} | {"seconds": seconds}

    def _search(self, attack: Search | AutoAttack, tell: Meter, place: _Place) -> State:
        searches = _searches(attack)
        clock = _Clock(len(searches))
        earlier = place.get("-unfinished")

        def resume(points: Points) -> int:
            if earlier is None:
                return 0
            clock.seconds, clock.stage = earlier["seconds"], int(earlier["stage"])
            points.restore(earlier)
            return clock.stage

        def hear(points: Points, stage: int) -> None:
            if clock.stage < stage < len(searches):
                tell.say(f"stage {searches[stage - 1].name} is done, {int(points.alive.sum())} of {len(self.x)} stand")
            if clock.tick(stage):
                place.put(points.saved() | {"seconds": clock.seconds, "stage": torch.tensor(stage)}, "-unfinished")

        points = run(
            self.model, self.x.to(self.device), self.y.to(self.device), searches, seed_of(attack.seed, None),
            lanes=self.batch_size, first=self.first, resume=resume, tell=hear, work=tell,
        )  # fmt: skip
        place.parts.drop(place.name + "-unfinished")
        return {
            "correct": points.alive, "margin": -points.margin.cpu().double(), "adv": points.adv.cpu(),
            "stage": points.broken_by, "seconds": clock.seconds[None],
        }  # fmt: skip


def _searches(attack: Search | AutoAttack) -> Sequence[Search]:
    return attack.searches if isinstance(attack, AutoAttack) else (attack,)


class _Clock:
    """Seconds spent in each stage, and when to save."""

    def __init__(self, stages: int) -> None:
        self.seconds, self.stage = torch.zeros(stages, dtype=torch.float64), 0
        self._last = self._saved = time.perf_counter()

    def tick(self, stage: int) -> bool:
        """Count the time since the last tick for the stage that ran; True when it is time to save."""
        now, ended = time.perf_counter(), stage > self.stage
        self.seconds[self.stage] += now - self._last
        self._last, self.stage = now, min(stage, len(self.seconds) - 1)
        if not ended and now - self._saved < SAVE_EVERY:
            return False
        self._saved = now
        return True


def _say_done(meter: Meter, label: str, parts: Sequence[State]) -> None:
    stand = torch.cat([part["correct"] for part in parts]).double().mean()
    meter.say(f"{label} is done, {stand:.2%} stand")


def _joined(parts: Sequence[State]) -> State:
    return {key: torch.cat([part[key] for part in parts]) for key in parts[0] if key != "adv"}


def _write_examples(path: Path, found: Mapping[str, list[State]], y: Tensor, ball: Mapping[str, object]) -> None:
    tensors = {label: torch.cat([part["adv"] for part in parts]) for label, parts in found.items()} | {"y": y}
    if path.suffix == ".npz":
        with io.BytesIO() as buffer:
            with zipfile.ZipFile(buffer, "w") as archive:  # an attack may be called as an argument of np.savez is
                for name, tensor in tensors.items():
                    with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                        np.lib.format.write_array(member, tensor.numpy())
            replace_file(path, buffer.getvalue())
    else:
        attacks = sorted(tensors.keys() - {"clean", "y"})
        write_tensors(path, tensors, {"images": "clean and adversarial, in [0, 1]", "attacks": attacks, **ball})
