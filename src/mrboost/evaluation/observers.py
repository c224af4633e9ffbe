"""Who watches an evaluation: they are told what happens, and change nothing.

``Measurements`` gathers what was found of each image, from one process or several, and sums it up.
"""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, TYPE_CHECKING

import numpy as np
import safetensors
import safetensors.torch
import torch
from torch import Tensor

from mrboost.attacks import APGD, FAB, PGD, Attack
from mrboost.attacks.survivors import InTurn
from mrboost.data.dataset import count
from mrboost.devices import from_all
from mrboost.errors import InputError
from mrboost.files import State, replacing
from mrboost.losses import dlr, margin
from mrboost.progress import Meter

from .batches import work_of
from .doubts import Doubt, contradictions
from .inputs import Chunk, Images
from .result import Evaluation, Outcome

if TYPE_CHECKING:
    from lightning_fabric import Fabric


class Observer:
    """Is told of each chunk, and what comes of each attack on it.

    ``problem`` says in the end what it could not do.
    """

    problem = ""

    def on_chunk(self, chunk: Chunk) -> None:
        """The attacks on this chunk are about to begin."""

    def on_result(self, label: str, chunk: Chunk, found: State) -> None:
        """This attack left that of the chunk."""

    def on_failure(self, label: str, error: InputError) -> None:
        """This attack failed, and is not tried on further chunks; without ``clean``, none is."""

    def on_end(self) -> None:
        """Everything is measured."""


class ProgressReport(Observer):
    """Counts evaluations of the model, and has a line for each attack that is done.

    Args:
        meter: what shows them.
        attacks: all that will run.
        x: the images, which may tell how many they are; None where that is decided on the way.
    """

    def __init__(self, meter: Meter, attacks: Collection[Attack], x: Images | None) -> None:
        self._meter = meter
        self._attacks = attacks
        self._x = x
        self._images: int | None = None
        self._correct: dict[str, list[Tensor]] = {}

    def on_chunk(self, chunk: Chunk) -> None:
        if chunk.number == 0:
            self._images = None if self._x is None else count(self._x)
            each = sum(work_of(attack, chunk.classes) for attack in (None, *self._attacks))
            self._meter.begin(None if self._images is None else self._images * each)

    def on_result(self, label: str, chunk: Chunk, found: State) -> None:
        if chunk.number == 0 and label == "clean":  # clean images say nothing of the pace
            self._meter.skip(0)
        self._correct.setdefault(label, []).append(found["correct"].double())
        if sum(map(len, self._correct[label])) == self._images:
            self._say_done(label)

    def on_failure(self, label: str, error: InputError) -> None:  # noqa: ARG002
        self._meter.say(f"{label} failed")
        self._correct.pop(label, None)

    def on_end(self) -> None:
        for label in list(self._correct):  # of images whose number was not known before
            self._say_done(label)

    def _say_done(self, label: str) -> None:
        share = torch.cat(self._correct.pop(label)).mean()
        self._meter.say(f"{label} is done, {share:.2%} stand")


class Examples(Observer):
    """Writes the images of each attack to a file, .safetensors or .npz, in one step at the end.

    Until then they lie in unlinked files, so that memory does not grow with their number. A file
    that could not be written is refused at once; ``problem`` says what went wrong later.

    Args:
        path: the file.
        ball: eps and norm of the attacks, kept as facts of a .safetensors file.
    """

    def __init__(self, path: Path, ball: Mapping[str, object]) -> None:
        self._path = path
        self._ball = ball
        self._files: dict[str, IO[bytes]] = {}
        self._labels: list[Tensor] = []
        self._like = np.zeros(0)
        if path.suffix not in (".safetensors", ".npz"):
            raise InputError(f"examples are written as .safetensors or .npz, got {str(path)!r}")
        if path.is_dir() or not os.access(path.parent, os.W_OK):
            raise InputError(
                f"cannot write examples to {str(path)!r}: it is a folder, or would be in none that "
                "can be written to"
            )

    def close(self) -> None:
        for file in self._files.values():
            file.close()

    def on_chunk(self, chunk: Chunk) -> None:
        self._labels.append(chunk.y)

    def on_result(self, label: str, chunk: Chunk, found: State) -> None:  # noqa: ARG002
        self._like = found["adv"][:1].numpy()
        try:
            if label not in self._files:
                file = TemporaryFile(dir=self._path.parent)  # noqa: SIM115 — ``close`` closes it
                self._files[label] = file
            self._files[label].write(found["adv"].contiguous().numpy().data)
        except OSError as error:  # the figures can be had all the same
            self._fail(error)

    def on_failure(self, label: str, error: InputError) -> None:  # noqa: ARG002
        if label in self._files:
            self._files.pop(label).close()

    def on_end(self) -> None:
        if self.problem or "clean" not in self._files:
            return
        tensors = {"y": torch.cat(self._labels)}
        shape = (len(tensors["y"]), *self._like.shape[1:])
        try:
            for label, file in self._files.items():
                file.flush()
                array = np.memmap(file, self._like.dtype, "r+", shape=shape)
                tensors[label] = torch.from_numpy(array)
            with replacing(self._path) as temporary:
                write = _write_npz if self._path.suffix == ".npz" else self._write_safetensors
                write(temporary, tensors)
        except OSError as error:
            self._fail(error)

    def _write_safetensors(self, path: Path, tensors: State) -> None:
        attacks = sorted(tensors.keys() - {"clean", "y"})
        facts = {"images": "clean and adversarial, in [0, 1]", "attacks": attacks, **self._ball}
        try:  # not write_tensors, which copies
            safetensors.torch.save_file(tensors, path, {"facts": json.dumps(facts)})
        except safetensors.SafetensorError as error:
            raise OSError(0, str(error)) from None

    def _fail(self, error: OSError) -> None:
        self.problem = f"cannot write examples to {str(self._path)!r}: {error.strerror}"


def _write_npz(path: Path, tensors: State) -> None:
    """Not by np.savez: an attack may have the name of one of its arguments."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, tensor in tensors.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, tensor.numpy())


@dataclass
class Measurements(Observer):
    """What is known of each image, gathered chunk by chunk.

    An attack that fails is given up, and its earlier chunks with it; without the clean images, all
    are.

    Attributes:
        attacks: all of them by label; ``clean`` is None.
        eps, norm: the ball that all attacks have in common, or None.
        check: whether outcomes are asked what they say against each other.
        labels: the true classes.
        numbers: of the images in the order in which they came.
        found: for each attack that has not failed, what ``Runner.run`` gives.
        failed: the message of each attack that failed.
        doubts: what the model itself gives to doubt.
        problem: one message for all that failed.
        every: how many images there are, if only a random sample of them was taken.
    """

    attacks: dict[str, Attack | None]
    eps: float | None
    norm: str | None
    check: bool
    labels: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))
    numbers: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))
    found: dict[str, State] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    doubts: tuple[Doubt, ...] = ()
    problem: str = ""
    every: int | None = None

    def going(self) -> Iterator[tuple[int, str, Attack | None]]:
        """Number, label and attack of those that have not failed."""
        for number, (label, attack) in enumerate(self.attacks.items()):
            if self.failed.keys().isdisjoint((label, "clean")):
                yield number, label, attack

    def on_chunk(self, chunk: Chunk) -> None:
        self.labels = torch.cat([self.labels, chunk.y])
        self.numbers = torch.cat([self.numbers, chunk.numbers])

    def on_result(self, label: str, chunk: Chunk, found: State) -> None:  # noqa: ARG002
        part = {key: value for key, value in found.items() if key != "adv"}  # images are large
        if earlier := self.found.get(label):
            part = {key: torch.cat([earlier[key], value]) for key, value in part.items()}
        self.found[label] = part

    def on_failure(self, label: str, error: InputError) -> None:
        self.failed[label] = str(error)
        self.found.pop(label, None)
        if label == "clean":
            self.found.clear()

    def on_end(self) -> None:
        if self.failed:
            first, *others = self.failed
            message = self.failed[first]
            named = first == "clean" or first in message
            self.problem = message if named else f"{first}: {message}"
            self.problem += f"; {', '.join(others)} failed too" if others else ""

    def part(self, label: str, chunk: Chunk) -> State | None:
        """What is known of a chunk under one attack; None if that failed."""
        if label not in self.found:
            return None
        first = int(chunk.numbers[0])
        rows, times = slice(first, first + len(chunk.y)), slice(chunk.number, chunk.number + 1)
        state = self.found[label]
        return {key: value[times if key == "seconds" else rows] for key, value in state.items()}

    def of_all(self, fabric: Fabric, count: int) -> Measurements:
        """The measurements of all ``count`` images, of which this process had those from its rank
        on, in steps of the world size.

        An attack counts if it came to its end in every process. Times are those of the slowest
        process, doubts those of the first.
        """
        world = fabric.world_size
        if world == 1:
            return self
        shares = from_all(fabric, replace(self, attacks={}))  # not all attacks can be pickled

        def interleaved(parts: list[Tensor]) -> Tensor:
            whole = torch.zeros(count, dtype=parts[0].dtype)
            for rank, part in enumerate(parts):
                whole[rank::world] = part
            return whole

        found: dict[str, State] = {}
        for label in [key for key in self.found if all(key in share.found for share in shares)]:
            states = [share.found[label] for share in shares]
            seconds = torch.stack([state.pop("seconds").sum(dim=0) for state in states])
            found[label] = {key: interleaved([one[key] for one in states]) for key in states[0]}
            found[label]["seconds"] = seconds.amax(dim=0, keepdim=True)
        every = [share.labels for share in shares]
        of = f"of {world}, which counts its own images, one in {world}"
        problems = enumerate(share.problem for share in shares)
        told = [f"{text} (in process {rank} {of})" for rank, text in problems if text]
        return replace(
            self,
            labels=interleaved(every) if found else torch.zeros(count, dtype=torch.int64),
            numbers=torch.arange(count),
            found=found,
            failed={label: text for share in shares for label, text in share.failed.items()},
            doubts=shares[0].doubts,
            problem="; ".join(told),
        )

    def evaluation(self) -> Evaluation:
        """Figures, and what they give to doubt."""
        order = self.numbers.argsort()  # they come at random where the time is limited
        outcomes = tuple(
            Outcome.of(label, _sorted(found, order), self.labels[order], self.attacks[label])
            for label, found in self.found.items()
        )
        doubts = self.doubts
        if any(_raises_a_margin(self.attacks[label]) for label in self.found):
            doubts = tuple(doubt for doubt in doubts if doubt.check != "weak-loss")
        draws = any(doubt.check == "random" for doubt in doubts)
        if any(_averages(self.attacks[label]) for label in self.found):
            doubts = tuple(doubt for doubt in doubts if doubt.check != "random")
        # Attacks of several balls say nothing against each other
        if self.check and self.eps is not None:
            doubts += tuple(contradictions([asdict(o) for o in outcomes], draws=draws))
        n, failed = len(self.labels), tuple(self.failed)
        found = Evaluation(self.eps, self.norm, n, outcomes, doubts, failed)
        if self.every is None:
            return found
        return replace(found, left_out=self.every - n, chosen=tuple(self.numbers[order].tolist()))


def _sorted(found: State, order: Tensor) -> State:
    return {key: value if key == "seconds" else value[order] for key, value in found.items()}


def _parts(attack: Attack | None) -> Sequence[Attack | None]:
    return attack.searches if isinstance(attack, InTurn) else (attack,)


def _averages(attack: Attack | None) -> bool:
    """Whether it averages the gradients of a model that draws random numbers."""
    return any(isinstance(part, APGD) and part.eot > 1 for part in _parts(attack))


def _raises_a_margin(attack: Attack | None) -> bool:
    """Whether it raises a margin, which is what an attack on the cross-entropy
    may be too weak for."""
    return any(
        isinstance(part, FAB)
        or (isinstance(part, APGD) and part.targets > 0)
        or (isinstance(part, APGD | PGD) and any(part.loss is loss for loss in (margin, dlr)))
        for part in _parts(attack)
    )
