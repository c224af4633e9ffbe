"""The adversarial images of an evaluation in one file.

They are gathered on the disk as they are found, so that memory does not grow with their number.
"""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryFile

import numpy as np
import safetensors
import safetensors.torch
import torch
from torch import Tensor

from mrboost.errors import InputError
from mrboost.files import State, replacing

from .chunk import Chunk
from .observers import Observer


class Examples(Observer):
    """Gathers the images of each attack for a file, .safetensors or .npz.

    A file that could not be written is refused at once.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._parts: dict[str, list[Tensor]] = {}
        if path.suffix not in (".safetensors", ".npz"):
            raise InputError(f"examples are written as .safetensors or .npz, got {str(path)!r}")
        problem = ""
        if path.is_dir():
            problem = "it is a folder"
        elif not path.parent.is_dir():
            problem = "there is no such folder: make it first"
        elif not os.access(path.parent, os.W_OK):
            problem = "its folder may not be written to"
        if problem:
            raise InputError(f"cannot write examples to {str(path)!r}: {problem}")

    def on_result(self, label: str, chunk: Chunk, found: State) -> None:  # noqa: ARG002
        self._parts.setdefault(label, []).append(self._on_disk(found["adv"]))

    def on_failure(self, label: str) -> None:
        self._parts.pop(label, None)

    def _on_disk(self, *parts: Tensor) -> Tensor:
        """The parts put together in an unlinked file, mapped; where there is no room on the disk,
        in memory."""
        try:
            with TemporaryFile(dir=self.path.parent) as file:
                for part in parts:
                    part.contiguous().numpy().tofile(file)
                shape = (sum(map(len, parts)), *parts[0].shape[1:])
                return torch.from_numpy(np.memmap(file, parts[0].numpy().dtype, "r+", shape=shape))
        except OSError:
            return torch.cat(parts)

    def write(self, labels: Tensor, ball: Mapping[str, object]) -> None:
        """Replace the file in one step.

        Args:
            labels: kept as ``y``.
            ball: eps and norm of the attacks, kept as facts of a .safetensors file.
        """
        tensors = {"y": labels}
        for label in list(self._parts):
            tensors[label] = self._on_disk(*self._parts.pop(label))
        with replacing(self.path) as temporary:
            if self.path.suffix == ".npz":
                _write_npz(temporary, tensors)
            else:
                attacks = sorted(tensors.keys() - {"clean", "y"})
                facts = {"images": "clean and adversarial, in [0, 1]", "attacks": attacks, **ball}
                try:  # not write_tensors, which copies
                    safetensors.torch.save_file(tensors, temporary, {"facts": json.dumps(facts)})
                except safetensors.SafetensorError as error:
                    raise OSError(0, str(error)) from None


def _write_npz(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Not np.savez: an attack may have the name of one of its arguments."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, tensor in tensors.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, tensor.numpy())
