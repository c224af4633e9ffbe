"""What a run's classifier makes of image files: labels, confidence, and whether an attack changes
them.

Files are decoded as those of ``folder:`` are, and brought to the shape that the model takes. An
attack starts from the label that the model gives: nobody need know the true one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from glob import glob
from math import prod
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mrboost.attacks import Attack, Classifier
from mrboost.data.archives import MIB, Budget
from mrboost.data.decoding import Decoder, Pixels, UnusableError
from mrboost.data.folder import FOLDER, Pictures, is_image
from mrboost.errors import InputError
from mrboost.evaluation import resolve_attacks
from mrboost.evaluation.batches import attacked_batches
from mrboost.evaluation.inputs import fitted
from mrboost.evaluation.result import format_eps
from mrboost.progress import COLUMNS, Meter

from .evaluate_run import ball_asked, load_model
from .export import class_names, refuse_draws
from .folder import Run, open_classifier

NUMBERS = 2**22
"""In the images that are decoded before the model sees them."""
SHOWN = 3
"""Files that a message names; it counts the others."""


@dataclass(frozen=True)
class Answer:
    """A label and the probability that the model's softmax gives it."""

    label: str
    confidence: float


@dataclass(frozen=True)
class Prediction:
    """The answer for one file.

    Attributes:
        image: the file.
        label, confidence: as in ``Answer``.
        attacked: the answers for what attacks made of it, by their names.
    """

    image: str
    label: str
    confidence: float
    attacked: Mapping[str, Answer] = field(default_factory=dict)

    def withstands(self, attack: str) -> bool:
        """Whether the label stayed."""
        return self.attacked[attack].label == self.label


@dataclass(frozen=True)
class Predictions:
    """Answers for several files.

    Attributes:
        found: one for each file.
        problems: why a file could not be used, by its name.
        eps, norm: the ball of the attacks.
    """

    found: tuple[Prediction, ...]
    problems: Mapping[str, str]
    eps: float
    norm: str

    def __str__(self) -> str:
        widths = [max((len(getattr(one, key)) for one in self.found), default=0) for key in _TEXTS]
        rows = []
        for one in self.found:
            texts = [getattr(one, key).ljust(n) for key, n in zip(_TEXTS, widths, strict=True)]
            answer = "  ".join([*texts, f"{one.confidence:>6.1%}"])
            rows.append([answer, *(self._verdict(one, attack) for attack in one.attacked)])
        beside = all(len("  ".join(row)) <= COLUMNS for row in rows)
        lines = [("  " if beside else "\n  ").join(row) for row in rows]
        if len(self.found) > 1:
            for attack in self.found[0].attacked:
                stand = sum(one.withstands(attack) for one in self.found)
                lines.append(f"{stand} of {len(self.found)} labels withstand {attack}")
        return "\n".join(lines)

    def _verdict(self, one: Prediction, attack: str) -> str:
        under = f"{attack} at {self.norm} {format_eps(self.eps)}"
        if one.withstands(attack):
            return f"withstands {under}"
        return f"becomes {one.attacked[attack].label} under {under}"

    def check(self) -> None:
        """Refuse files that could not be used, all in one message."""
        if self.problems:
            shown = [f"{name} {self.problems[name]}" for name in sorted(self.problems)[:SHOWN]]
            rest = len(self.problems) - len(shown)
            more = f"; and {rest:,} more" if rest else ""
            raise InputError(f"{'; '.join(shown)}{more}: repair them or leave them out")

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        found = [
            asdict(one) | {"withstands": {name: one.withstands(name) for name in one.attacked}}
            for one in self.found
        ]
        ball = {"eps": self.eps, "norm": self.norm}
        return ball | {"predictions": found, "problems": dict(self.problems)}


_TEXTS = ("image", "label")


def predict(
    run_dir: str | Path,
    images: Sequence[str | Path],
    *,
    attack: Sequence[str] = (),
    eps: float | None = None,
    norm: str | None = None,
    which: str = "best",
    rounds: int | None = None,
    device: str = "auto",
    progress: bool = False,
) -> Predictions:
    """Labels of image files, and whether attacks change them.

    Args:
        run_dir: the run's folder, that of the evaluations of a model, or the file of one network.
        images: files, folders of them, or patterns such as ``photos/*.jpg``.
        attack: names of attacks; each looks for an image in the ball that gets another label.
        eps, norm: the ball; that of the training if not given.
        which: "best" or "last" weights.
        rounds: the ensemble as it was after so many of them; all if not given.
        device: as on the command line.
        progress: shown on standard error.

    Returns:
        An answer for each file that can be used, and why others cannot.

    Example:
        >>> print(predict("runs/a", ["photos"], attack=["pgd-20"]))  # doctest: +SKIP
    """
    run = open_classifier(run_dir)
    eps, norm, step_size = ball_asked(run, eps, norm)
    attacks = resolve_attacks(attack, eps, norm, step_size)
    decoder = _decoder(run)
    names = _files(images)
    model = load_model(run, which, device, rounds)
    refuse_draws(run, model)
    classes = class_names(run.config)
    found: list[Prediction] = []
    problems: dict[str, str] = {}
    with Meter(progress, "predict", unit=" images") as meter:
        meter.begin(len(names))
        for some, pixels in _decoded(names, decoder, run, problems, meter):
            answers = _answers(model, pixels, attacks, classes)
            for number, name in enumerate(some):
                clean, *attacked = (of_attack[number] for of_attack in answers)
                of_attacks = dict(zip(attacks, attacked, strict=True))
                found.append(Prediction(name, clean.label, clean.confidence, of_attacks))
    return Predictions(tuple(found), problems, eps, norm)


def _answers(
    model: Classifier, images: Tensor, attacks: Mapping[str, Attack], classes: Sequence[str]
) -> list[list[Answer]]:
    """For the images as they are, and for what each attack makes of them."""
    model, x = fitted(model, images)
    y = torch.zeros(len(x), dtype=torch.int64)
    answers = []
    for attack in (None, *attacks.values()):
        batches = list(attacked_batches(model, x, y, attack))
        logits = torch.cat([of_batch.cpu() for _, of_batch, _ in batches])
        confidence, labels = logits.softmax(dim=1).max(dim=1)
        if attack is None:
            y = labels
        pairs = zip(labels.tolist(), confidence.tolist(), strict=True)
        answers.append([Answer(classes[label], share) for label, share in pairs])
    return answers


def _decoder(run: Run) -> Decoder:
    """What makes images of the shape that the model takes, as they were made for its training."""
    channels, height, width = run.config["input"]["shape"]
    if channels not in (1, 3):
        raise InputError(f"the model takes images of {channels} channels, which files do not have")
    name: str = run.config["data"]
    pictures = Pictures.named(name) if name.startswith(FOLDER) else Pictures(Path())
    return Decoder(height if height == width else None, pictures.background, channels)


def _files(images: Sequence[str | Path]) -> list[str]:
    """The files that are named, in folders too; patterns that no shell has expanded are."""
    found: list[str] = []
    for given in map(str, images):
        if Path(given).is_dir():
            inside = sorted(Path(given).rglob("*"))
            matches = [str(path) for path in inside if is_image(PurePosixPath(path))]
        elif os.path.lexists(given):
            matches = [given]
        else:
            matches = sorted(glob(given, recursive=True))  # noqa: PTH207 — absolute ones too
        if not matches:
            raise InputError(f"there is no image {given!r}: give files, folders or patterns")
        found += matches
    return list(dict.fromkeys(found))


def _decoded(
    names: Sequence[str], decoder: Decoder, run: Run, problems: dict[str, str], meter: Meter
) -> Iterator[tuple[list[str], Tensor]]:
    """Some of the images at a time, in [0, 1], with their names; why the others cannot be used is
    added to ``problems``."""
    shape = tuple(run.config["input"]["shape"])
    size = max(1, min(256, NUMBERS // prod(shape)))
    for start in range(0, len(names), size):
        some = names[start : start + size]
        meter.doing(some[0])
        usable: dict[str, Pixels] = {}
        for name in some:
            try:
                usable[name] = _read(name, decoder, shape)
            except UnusableError as error:
                problems[name] = str(error)
        if usable:
            pixels = torch.from_numpy(np.stack(list(usable.values())))
            yield list(usable), pixels.float().div_(255)
        meter(len(some))


def _read(name: str, decoder: Decoder, shape: tuple[int, ...]) -> Pixels:
    path = Path(name)
    if not path.is_file():  # a reader could wait for it without end
        raise UnusableError("is no regular file")
    try:
        if path.stat().st_size > Budget.largest:
            raise UnusableError(f"is larger than {Budget.largest // MIB} MiB")
        pixels = decoder.pixels(path.read_bytes())
    except OSError as error:
        raise UnusableError(f"cannot be read ({error.strerror})") from None
    if pixels.shape != shape:
        _, height, width = pixels.shape
        raise UnusableError(f"is {width}x{height} pixels, the model takes {shape[2]}x{shape[1]}")
    return pixels
