"""The adversarial images of an evaluation in one file.

They are gathered in unlinked files as they are found, so that memory does not grow with their
number.
"""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

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
        self._open = ExitStack()
        self._files: dict[str, IO[bytes]] = {}
        self._like = np.zeros(0)
        self._problem: OSError | None = None
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

    def close(self) -> None:
        self._open.close()

    def on_result(self, label: str, chunk: Chunk, found: State) -> None:  # noqa: ARG002
        folder = self.path.parent
        try:
            if label not in self._files:
                file = TemporaryFile(dir=folder)  # noqa: SIM115 — ``close`` closes it
                self._files[label] = self._open.enter_context(file)
            self._files[label].write(found["adv"].contiguous().numpy().data)
        except OSError as error:  # the figures can be had all the same
            self._problem = error
        self._like = found["adv"][:1].numpy()

    def on_failure(self, label: str) -> None:
        self._files.pop(label, None)

    def write(self, labels: Tensor, ball: Mapping[str, object]) -> None:
        """Replace the file in one step.

        Args:
            labels: kept as ``y``.
            ball: eps and norm of the attacks, kept as facts of a .safetensors file.

        Raises:
            OSError: there is no room for the images, or not for the file.
        """
        if self._problem is not None:
            raise self._problem
        tensors = {"y": labels}
        for label, file in self._files.items():
            file.flush()
            shape = (len(labels), *self._like.shape[1:])
            tensors[label] = torch.from_numpy(np.memmap(file, self._like.dtype, "r+", shape=shape))
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
