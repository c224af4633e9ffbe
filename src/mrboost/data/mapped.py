"""Images that stay in a file: a tensor of them is made only of those that are asked for.

The file is mapped read-only, so that the system keeps in memory what is used often and drops it
when memory is short; none of it counts as the process's own.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

PART = 2**25
"""Numbers in the images of one part: 128 MiB as float32."""


class Mapped:
    """Rows of a file of images, in any order: ``x[index]`` reads them into a tensor.

    Attributes:
        images: (M, C, H, W), uint8, all that the file holds.
        rows: which of them these are.
    """

    def __init__(self, images: Tensor, rows: Tensor | None = None) -> None:
        self.images = images
        self.rows = torch.arange(len(images)) if rows is None else rows

    @classmethod
    def open(cls, path: Path, shape: tuple[int, ...]) -> Mapped:
        """A file of so many images of a shape."""
        mapped = np.memmap(path, np.uint8, mode="r", shape=shape)
        with warnings.catch_warnings():  # nothing here writes to it
            warnings.filterwarnings("ignore", "The given NumPy array is not writable")
            return cls(torch.from_numpy(mapped))

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def shape(self) -> torch.Size:
        return torch.Size((len(self), *self.images.shape[1:]))

    @property
    def ndim(self) -> int:
        return self.images.ndim

    @property
    def dtype(self) -> torch.dtype:
        return self.images.dtype

    @property
    def device(self) -> torch.device:
        return self.images.device

    @property
    def part(self) -> int:
        """Images that ``parts`` gives at a time."""
        return max(1, PART // self.shape[1:].numel())

    def __getitem__(self, index: int | slice | Tensor) -> Tensor:
        rows = self.rows[index]
        found = self.images.index_select(0, rows.reshape(-1))
        return found.view(*rows.shape, *self.images.shape[1:])

    def select(self, index: slice | Tensor) -> Mapped:
        """Some of the images, still in the file."""
        return Mapped(self.images, self.rows[index])

    def parts(self) -> Iterator[Mapped]:
        """All of them, some at a time."""
        starts = range(0, len(self), self.part)
        for start in tqdm(starts, "reading images", disable=None, delay=2, leave=False):
            yield self.select(slice(start, start + self.part))

    def to(self, device: str | torch.device) -> Tensor | Mapped:
        """In the memory of a device; on the CPU they stay in the file."""
        if torch.device(device).type == "cpu":
            return self
        found = torch.empty(self.shape, dtype=self.dtype, device=device)
        start = 0
        for part in self.parts():
            found[start : start + len(part)] = part[:].to(device)
            start += len(part)
        return found

    def fingerprint(self) -> str:
        """That which ``files.fingerprint`` gives for a tensor of them."""
        found = hashlib.blake2b(digest_size=16)
        for part in self.parts():
            found.update(part[:].numpy().data)
        return f"{self.dtype}{tuple(self.shape)}{found.hexdigest()}"
