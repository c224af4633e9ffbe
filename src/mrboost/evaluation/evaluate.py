"""How robust is a classifier? Accuracy and margins, clean and under attack, of any model on
any number of images.

``evaluate`` gives an ``Evaluation``. Images are taken chunk by chunk, so memory does not grow with
their number; what is finished of a long evaluation can be kept in a folder and gone on with. All
figures are computed in the model's own precision, image by image.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from mrboost.attacks import Attack, AutoAttack, Classifier, named
from mrboost.attacks.base import Untouched, ball_of
from mrboost.devices import device_of
from mrboost.errors import InputError
from mrboost.files import State, digest
from mrboost.progress import Meter
from mrboost.seeds import derive, global_stream, keep_random_state
from mrboost.threat import radius

from .chunk import Chunk, Place, StageError, first_stages
from .doubts import Doubt
from .examples import Examples
from .inputs import Images, chunks, count
from .measured import Measured
from .result import Evaluation
from .resume import Parts

Attacks = str | Attack | Sequence[str | Attack] | Mapping[str, Attack]
DEFAULT_ATTACKS = ("fgsm", "pgd-20", "pgd-100", "cw")


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
    """Accuracy of ``model`` on images ``x`` in [0, 1] with labels ``y``, clean
    and under each attack.

    Args:
        model: an ``nn.Module`` on any device, or a differentiable function, that returns logits.
        x, y: tensors (or arrays) of images and integer or one-hot labels; they are moved to the
            model batch by batch. Without ``y``, a ``Split`` or any iterable of pairs (images,
            labels), such as a ``DataLoader``.
        attack: a name (``autoattack``, ``apgd-ce``, ``square``, ``fgsm``, ``pgd-20``,
            ``pgd-mce-20``, ``cw``), an attack, several of them, or a mapping from labels to
            attacks. Clean accuracy is always reported.
        eps, norm: the ball of attacks given by name; with eps 0 every attack leaves
            the images as they are.
        batch_size: images at a time; chosen, and halved when memory runs out, if not given.
        progress: show a progress bar on standard error; where that is no terminal, a line for
            each attack and stage.
        check: look for reasons to doubt the figures.
        keep: a folder for what is finished; ``resume`` goes on with what it holds. Remove
            it when you are done.
        examples: a file, .safetensors or .npz, for the adversarial images of each attack,
            beside the clean ones.

    Example:
        >>> print(evaluate(model, x, y, ["autoattack", "pgd-20"], eps=0.1))  # doctest: +SKIP
    """
    if resume and keep is None:
        raise InputError(
            "resume=True has nothing to go on with: name the folder with keep=, from the first "
            "time on"
        )
    eps = radius(eps)
    return measure(
        model,
        x,
        y,
        resolve_attacks(attack, eps, norm),
        eps=eps,
        norm=norm,
        batch_size=batch_size,
        progress=progress,
        check=check,
        keep=keep,
        resume=resume,
        examples=examples,
    ).result()


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
    """What ``evaluate`` sums up; also where something failed, and then it says what."""
    _check_request(batch_size, keep)
    file = None if examples is None else Examples(examples)
    balls = {ball_of(one) for one in attacks.values()} or {(eps, norm)}
    common = balls.pop() if len(balls) == 1 else (None, None)
    parts = Parts(None if keep is None else Path(keep), resume=resume)
    book, doubts = _Book(attacks, file), list[Doubt]()
    device = device_of(model, otherwise=x.device if isinstance(x, Tensor) else torch.device("cpu"))
    with torch.inference_mode(False), keep_random_state(device), Meter(progress) as meter:
        for number, (images, targets) in enumerate(chunks(x, y)):
            chunk = Chunk(model, images, targets, book.images, batch_size)
            if number == 0:
                chunk.check(attacks.values())
                images_in_all = count(x)
                each = sum(chunk.work(one) for one in (None, *attacks.values()))
                meter.begin(None if images_in_all is None else images_in_all * each)
                if check:
                    meter.doing("looking for doubts")
                    meter.say("looking for doubts")
                    doubts = chunk.probe(common[0] or eps, common[1] or norm)
            book.labels.append(targets)
            chunk_is = "" if keep is None else chunk.fingerprint()
            for label, one in list(book.going.items()):
                meter.doing(label)
                of = "" if keep is None else digest(chunk_is, one)
                place = Place(parts, f"{number}-{list(book.found).index(label)}", of)
                try:
                    # The model's own draws, if it makes any, do not depend on what was done before.
                    with global_stream(
                        derive(getattr(one, "seed", None) or 0, number, label), device
                    ):
                        book.add(label, chunk.found(one, meter, place, images=file is not None))
                except InputError as error:
                    meter.say(f"{label} failed")
                    book.stop(label, error)
                    if not book.going:
                        break
                    continue
                if number == 0 and label == "clean":
                    meter.settle()
                if book.images == images_in_all and label not in book.failed:
                    _say_done(meter, label, book.found[label])
            if not book.going:
                break
        if book.images != images_in_all:  # their number was not known before
            for label in book.going:
                if label not in book.failed:
                    _say_done(meter, label, book.found[label])
    finished = {label: one for label, one in book.going.items() if one is not None}
    known = {label: _joined(book.found[label]) for label in book.going}
    failed = tuple(book.failed)
    measured = Measured(
        *common,
        finished,
        torch.cat(book.labels),
        known,
        tuple(doubts),
        check,
        failed,
        book.problem(),
    )
    return measured if file is None or not known else _with_examples(measured, book.found, file)


def _with_examples(
    measured: Measured, parts: Mapping[str, list[State]], file: Examples
) -> Measured:
    """Writes the images; if that fails, it is said beside what else is."""
    try:
        found = {
            measured.name(label): file.away(*(part.pop("adv") for part in parts[label]))
            for label in measured.known
        }
        file.write(found | {"y": measured.labels}, {"eps": measured.eps, "norm": measured.norm})
    except OSError as error:
        problem = f"cannot write examples to {str(file.path)!r}: {error.strerror}"
        return replace(measured, problem="; ".join(filter(None, (measured.problem, problem))))
    return measured


def _check_request(batch_size: int | None, keep: str | Path | None) -> None:
    if batch_size is not None and (not isinstance(batch_size, int | np.integer) or batch_size < 1):
        raise InputError(
            f"batch_size must be at least 1, and whole, got {batch_size}: leave it out to have "
            "it chosen"
        )
    if keep is not None and Path(keep).exists() and not Path(keep).is_dir():
        raise InputError(f"keep names a folder for what is finished, and {str(keep)!r} is a file")


class _Book:
    """What each attack has found, chunk by chunk. One that fails is struck out;
    with ``clean``, all are."""

    def __init__(self, attacks: Mapping[str, Attack], file: Examples | None) -> None:
        self.file = file
        self.going: dict[str, Attack | None] = {"clean": None, **attacks}
        self.found: dict[str, list[State]] = {label: [] for label in self.going}
        self.labels: list[Tensor] = []
        self.failed: dict[str, InputError] = {}

    @property
    def images(self) -> int:
        return sum(map(len, self.labels))

    def add(self, label: str, part: State) -> None:
        self.found[label].append(
            part if self.file is None else part | {"adv": self.file.away(part["adv"])}
        )

    def stop(self, label: str, error: InputError) -> None:
        """Of an attack that is several in turn, those that were finished stay."""
        self.failed[label] = error
        attack = self.going[label]
        if label == "clean":
            self.going = {}
        elif isinstance(error, StageError) and isinstance(attack, AutoAttack):
            self.going[label] = replace(attack, stages=error.stages)
            parts = zip([*self.found[label], error.part], self.found["clean"], strict=True)
            self.found[label] = []
            for part, clean in parts:
                self.add(label, first_stages(part, clean, error.stages))
        else:
            del self.going[label]

    def problem(self) -> str:
        """What is to be said of those that failed."""
        if not self.failed:
            return ""
        first, *others = self.failed
        said = str(self.failed[first])
        said = said if first == "clean" or first in said else f"{first}: {said}"
        return said + (f"; {', '.join(others)} failed too" if others else "")


def resolve_attacks(
    attack: Attacks, eps: float, norm: str, step_size: float | None = None
) -> dict[str, Attack]:
    """Attacks by label, whatever form they were given in; ``clean`` is left
    out, it is always there.

    ``step_size`` is that of PGD given by name.
    """
    found: dict[str, Attack] = dict(attack) if isinstance(attack, Mapping) else {}
    if not isinstance(attack, Mapping):
        for item in (
            [attack] if isinstance(attack, str) or not isinstance(attack, Sequence) else attack
        ):
            if item == "clean":
                continue
            one = named(item, eps or 0.1, norm, step_size) if isinstance(item, str) else item
            if isinstance(item, str) and eps == 0:
                one = Untouched(item, norm)
            if isinstance(item, type):
                raise InputError(
                    f"an attack is made first: {item.__name__}(eps, ...) in the place of "
                    f"{item.__name__}"
                )
            label = item if isinstance(item, str) else str(getattr(one, "name", type(one).__name__))
            if label in found and found[label] != one:
                label = f"{label} ({len(found) + 1})"
            found[label] = one
    for label, one in found.items():
        if not isinstance(label, str):
            raise InputError(f"an attack's label is a text, got {label!r}")
        if label in ("clean", "y"):
            raise InputError(
                f"an attack cannot be called {label!r}: that is the name of something else in "
                "the result"
            )
        if not callable(one) or isinstance(one, type):
            raise InputError(
                f"an attack is a name or a callable attack(model, x, y), got {one!r} as {label!r}"
            )
    return found


def _say_done(meter: Meter, label: str, parts: Sequence[State]) -> None:
    stand = torch.cat([part["correct"] for part in parts]).double().mean()
    meter.say(f"{label} is done, {stand:.2%} stand")


def _joined(parts: Sequence[State]) -> State:
    return {key: torch.cat([part[key] for part in parts]) for key in parts[0] if key != "adv"}
