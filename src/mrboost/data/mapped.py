"""Images that stay in a file: a tensor of them is made only of those that are asked for.

The file is mapped read-only, so that the system keeps in memory what is used often and drops it
when memory is short; none of it counts as the process's own.

``Pack`` decodes a folder's images once, into a file beside the cache that is mapped from then on.

    ~/.cache/mrboost/packed/NAME-HASH/DIGEST.images    the pixels: training images, then test images
                                      DIGEST.json      shape, classes, and what is known of them

HASH stands for the path and what is made of its images, DIGEST for the names, sizes and times of
change of the files, too: other files are packed anew, and the old ones removed. Packing that was
killed goes on; DIGEST.json is written last, so that nothing is used that is not whole.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from mrboost.errors import InputError
from mrboost.files import locked, read_json, write_json

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


Facts = dict[str, Any]


def cache() -> Path | None:
    """The folder of the user's cache; None for a user without a home, as in some containers."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "mrboost"
    except RuntimeError:
        return None


@dataclass(frozen=True)
class Progress:
    """What is done of a file that is being packed.

    Attributes:
        done: images, in the order of the source.
        problems: the files that could not be decoded, and why.
    """

    done: int
    problems: Mapping[str, str]


Fill = Callable[[np.ndarray, Progress, Callable[[Progress], None]], Progress]
"""Decodes into the rows of an array what is not done, telling now and then how far it is."""


@dataclass(frozen=True)
class Pack:
    """The file of one source.

    Attributes:
        folder: of the source.
        digest: of its files as they are now.
    """

    folder: Path
    digest: str

    def facts(self) -> Facts | None:
        """What is known of the packed images; None where they are not packed."""
        file = self._file("json")
        return read_json(file) if file.exists() else None

    def open(self, facts: Facts) -> Mapped:
        """All its images."""
        return Mapped.open(self._file("images"), (sum(map(sum, facts["counts"])), *facts["shape"]))

    def make(
        self, facts: Facts, fill: Fill, describe: Callable[[Mapped], Facts]
    ) -> tuple[Facts, Mapping[str, str]]:
        """Pack what is not packed yet; one process does it while others wait.

        Args:
            facts: "shape" of an image and "counts" of both splits by class, among others.
            fill: decodes.
            describe: more facts about the images, once they are there.

        Returns:
            All facts, and the files that could not be decoded, if there are any.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with locked(self.folder / "lock"):
                if (found := self.facts()) is not None:
                    return found, {}
                return self._make(facts, fill, describe)
        except OSError as error:
            problem = f"cannot pack the images into {self.folder} ({error.strerror})"
            raise InputError(f"{problem}: set XDG_CACHE_HOME to another folder") from None

    def _make(
        self, facts: Facts, fill: Fill, describe: Callable[[Mapped], Facts]
    ) -> tuple[Facts, Mapping[str, str]]:
        partial, note = self._file("partial"), self._file("progress")
        for old in self.folder.iterdir():
            if old.name != "lock" and not (old in (partial, note) and note.exists()):
                with suppress(OSError):  # Windows keeps a file that is open
                    old.unlink()
        shape = (sum(map(sum, facts["counts"])), *facts["shape"])
        progress = Progress(0, {})
        if note.exists():
            progress = Progress(**read_json(note))
        else:
            self._reserve(partial, prod(shape))
        if problems := _filled(partial, note, shape, progress, fill):
            partial.unlink()
            note.unlink()
            return facts, problems
        facts = facts | describe(Mapped.open(partial, shape))
        partial.replace(self._file("images"))
        write_json(self._file("json"), facts)
        note.unlink()
        return facts, {}

    def _reserve(self, file: Path, size: int) -> None:
        """Take the room on the disk now: a mapped file that cannot grow would end the process."""
        free = shutil.disk_usage(self.folder).free
        if size > free - 2**28:
            need = f"{size / 2**30:.1f} GiB in {self.folder}, where {free / 2**30:.1f} GiB are free"
            raise InputError(
                f"the images need {need}: set XDG_CACHE_HOME to another folder, or give a smaller "
                "size (--size 64, say)"
            )
        with file.open("wb") as new:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(new.fileno(), 0, size)
            else:
                new.truncate(size)

    def _file(self, kind: str) -> Path:
        return self.folder / f"{self.digest}.{kind}"


def _filled(
    partial: Path, note: Path, shape: tuple[int, ...], progress: Progress, fill: Fill
) -> Mapping[str, str]:
    """Fill the file from where ``progress`` is; gives the files that could not be decoded."""
    images = np.memmap(partial, np.uint8, mode="r+", shape=shape)

    def save(now: Progress) -> None:
        images.flush()
        write_json(note, vars(now))

    save(progress)
    progress = fill(images, progress, save)
    save(progress)
    return progress.problems
