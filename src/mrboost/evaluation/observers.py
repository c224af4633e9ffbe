"""Who watches an evaluation: they are told what happens, and change nothing."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Collection, Mapping
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

import numpy as np
import safetensors
import safetensors.torch
import torch
from torch import Tensor

from mrboost.attacks import Attack
from mrboost.errors import InputError
from mrboost.files import State, replacing
from mrboost.progress import Meter

from .chunk import work_of
from .doubts import Doubt, probe
from .inputs import Chunk, Images, count


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


class DoubtFinder(Observer):
    """Looks at the model on the first chunk for reasons to doubt its figures: ``doubts``."""

    def __init__(self, meter: Meter, eps: float, norm: str) -> None:
        self.doubts: tuple[Doubt, ...] = ()
        self._meter = meter
        self._ball = eps, norm

    def on_chunk(self, chunk: Chunk) -> None:
        if chunk.number == 0:
            eps, norm = self._ball
            self._meter.doing("looking for doubts")
            self._meter.say("looking for doubts")
            self.doubts = tuple(probe(chunk.model, chunk.x, chunk.y, eps=eps, norm=norm))


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
