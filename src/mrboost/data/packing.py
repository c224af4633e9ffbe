"""A folder's images decoded once, into a file beside the cache that is mapped from then on.

    ~/.cache/mrboost/packed/NAME-HASH/DIGEST.images    the pixels: training images, then test images
                                      DIGEST.json      shape, classes, and what is known of them

HASH stands for the path and what is made of its images, DIGEST for the names, sizes and times of
change of the files, too: other files are packed anew, and the old ones removed. Packing that was
killed goes on; DIGEST.json is written last, so that nothing is used that is not whole.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from mrboost.data.archives import GIB
from mrboost.data.mapped import Mapped
from mrboost.errors import InputError
from mrboost.files import locked, read_json, write_json

SAVE_EVERY = 5.0
"""Seconds between two notes of what is packed."""

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
        if size > free - GIB // 4:
            need = f"{size / GIB:.1f} GiB in {self.folder}, where {free / GIB:.1f} GiB are free"
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
