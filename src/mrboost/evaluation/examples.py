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
from mrboost.files import replacing


class Examples:
    """A file, .safetensors or .npz, for the images of each attack; refuses one that
    could not be written."""

    def __init__(self, path: str | Path) -> None:
        self.path, problem = Path(path), ""
        if self.path.suffix not in (".safetensors", ".npz"):
            raise InputError(f"examples are written as .safetensors or .npz, got {str(path)!r}")
        if self.path.is_dir() or not self.path.parent.is_dir():
            problem = (
                "it is a folder" if self.path.is_dir() else "there is no such folder: make it first"
            )
        elif not os.access(self.path.parent, os.W_OK):
            problem = "its folder may not be written to"
        if problem:
            raise InputError(f"cannot write examples to {str(path)!r}: {problem}")

    def away(self, *parts: Tensor) -> Tensor:
        """These images one after the other, mapped from a file without a name; where there
        is no room, in memory."""
        try:
            with TemporaryFile(dir=self.path.parent) as file:
                for part in parts:
                    part.contiguous().numpy().tofile(file)
                shape = (sum(map(len, parts)), *parts[0].shape[1:])
                return torch.from_numpy(np.memmap(file, parts[0].numpy().dtype, "r+", shape=shape))
        except OSError:
            return torch.cat(parts)

    def write(self, tensors: Mapping[str, Tensor], ball: Mapping[str, object]) -> None:
        """The file itself, in one step."""
        with replacing(self.path) as temporary:
            if self.path.suffix == ".npz":
                # An attack may have the name of an np.savez argument
                with zipfile.ZipFile(temporary, "w") as archive:
                    for name, tensor in tensors.items():
                        with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                            np.lib.format.write_array(member, tensor.numpy())
                return
            attacks = sorted(tensors.keys() - {"clean", "y"})
            facts = {"images": "clean and adversarial, in [0, 1]", "attacks": attacks, **ball}
            try:  # not write_tensors, which copies
                safetensors.torch.save_file(dict(tensors), temporary, {"facts": json.dumps(facts)})
            except safetensors.SafetensorError as error:
                raise OSError(0, str(error)) from None
