"""Reads the files of a tar (plain, gz, bz2, xz) or zip archive in memory, in one pass, within a
budget of files and bytes.

Nothing is written to disk, so that no name can reach a file of the user's. Names that point outside
the archive, links and devices are refused all the same: such an archive is not what it seems.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import stat
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any, NamedTuple

from mrboost.errors import InputError, reading
from mrboost.files import require_regular

MIB = 2**20
GIB = 2**30
MAX_FILES = 1_500_000  # ImageNet has 1.3 million images
MAX_READ = 8 * GIB
MAX_MEMORY = 8 * GIB
MAX_UNPACKED = 4  # bytes read for each byte of an archive, beyond MAX_READ
MAX_RATIO = 200  # bytes of memory for each byte read, beyond the first GiB
MAX_HEADER = 128 * MIB  # of a long name in a tar, of all names in a zip
_OPENERS: dict[bytes, Callable[..., Any]] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ": lzma.open,
}


@dataclass
class Budget:
    """What reading one dataset may cost, and what it has cost so far.

    Args:
        source: the folder or archive, for messages.
        largest: bytes of one file, unpacked.
        room: bytes of the disk that the pixels may go to instead of memory.
        stored: bytes that the source itself takes: so much may be read in any case.
    """

    source: Path
    largest: int = 64 * MIB
    room: int = 0
    stored: int = 0
    files: int = 0
    read: int = 0
    memory: int = 0

    def add_file(self, name: str, size: int = 0) -> None:
        """Count a file or folder of ``size`` bytes before it is read, wanted or not."""
        self.files += 1
        self.read += size
        if size > self.largest:
            limit = f"no more than {self.largest // MIB} MiB are allowed"
            raise InputError(f"{self.source}: {name!r} unpacks to {size} bytes: {limit}, refused")
        most = max(MAX_READ, MAX_UNPACKED * self.stored)
        if self.files > MAX_FILES or self.read > most:
            limit = f"{MAX_FILES:,} files or {most / GIB:.0f} GiB"
            raise InputError(f"{self.source} holds more than {limit}: keep only the images")

    def add_memory(self, size: int) -> None:
        """Count memory for pixels before they are decoded."""
        self.memory += size
        limit = ""
        if self.memory > (most := max(MAX_MEMORY, self.room)):
            limit = f"{most / GIB:.0f} GiB of memory"
        elif self.memory > GIB + MAX_RATIO * self.read:
            limit = f"{MAX_RATIO} times their files' size in memory"
        if limit:
            raise InputError(f"{self.source}: the images need more than {limit}: make them smaller")


class Member(NamedTuple):
    path: PurePosixPath
    data: bytes | None  # None for a folder


Wanted = Callable[[PurePosixPath], bool]


def members(archive: Path, wanted: Wanted, budget: Budget) -> Iterator[Member]:
    """The folders of an archive and those of its files whose path is ``wanted``, in the archive's
    order. Raises InputError for an archive that is damaged, or hostile as described above."""
    require_regular(archive)
    budget.stored += archive.stat().st_size
    with reading(f"{archive} is truncated, damaged or not a tar or zip archive"):
        with archive.open("rb") as file:
            magic = file.read(6)
        if magic.startswith(b"PK"):
            yield from _zip_members(archive, wanted, budget)
        else:
            openers = (found for start, found in _OPENERS.items() if magic.startswith(start))
            with next(openers, open)(archive, "rb") as file:
                yield from _tar_members(archive, file, wanted, budget)
                file.read(MIB)  # to the end of the stream, where its checksum is verified


def read_file(file: Path, budget: Budget) -> bytes:
    """The content of a file, gunzipped if it is gzipped."""
    require_regular(file)
    with reading(f"{file} is truncated or damaged"):
        with file.open("rb") as raw:
            opener: Any = gzip.open if raw.read(2) == b"\x1f\x8b" else open
        budget.add_file(str(file), file.stat().st_size)
        with opener(file, "rb") as stream:
            data: bytes = stream.read(budget.largest + 1)
    if len(data) > budget.largest:
        limit = f"{budget.largest // MIB} MiB"
        raise InputError(f"{file} is larger than the {limit} allowed: get the official file")
    return data


def _tar_members(archive: Path, file: Any, wanted: Wanted, budget: Budget) -> Iterator[Member]:
    stream: Any = _BoundedReads(file, budget)
    tar: Any
    with tarfile.open(fileobj=stream, mode="r:") as tar:
        while (info := tar.next()) is not None:
            tar.members.clear()  # it would keep all headers
            path = _checked_path(archive, info.name, info.isdir() or info.isreg())
            budget.add_file(info.name, info.size)
            if info.isdir():
                yield Member(path, None)
            elif wanted(path):
                yield Member(path, tar.extractfile(info).read())
        # tarfile takes the end of the file for the end of the archive; a cut between two members
        # shows only in the missing block of zeros, which it would have read past its last offset.
        if stream.tell() <= tar.offset:
            raise tarfile.ReadError("the end-of-archive mark is missing")


def _zip_members(archive: Path, wanted: Wanted, budget: Budget) -> Iterator[Member]:
    with archive.open("rb") as file:
        stream: Any = _BoundedReads(file, budget)
        with zipfile.ZipFile(stream) as bundle:
            for info in bundle.infolist():
                link = stat.S_ISLNK(info.external_attr >> 16)
                path = _checked_path(archive, info.filename, not link)
                budget.add_file(info.filename, info.file_size)
                if info.is_dir():
                    yield Member(path, None)
                elif wanted(path):
                    # zipfile unpacks the other methods without a limit
                    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                        raise zipfile.BadZipFile(f"{path} is not stored or deflated")
                    with bundle.open(info) as content:
                        yield Member(path, content.read(info.file_size))


class _BoundedReads:
    """A file that refuses a single long read: a header can announce names of many gigabytes, which
    tarfile and zipfile would read in one go."""

    def __init__(self, file: IO[bytes], budget: Budget) -> None:
        self._file = file
        self._budget = budget

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def read(self, size: int = -1) -> bytes:
        if size > max(MAX_HEADER, self._budget.largest) + tarfile.BLOCKSIZE:
            problem = f"{self._budget.source}: a header announces {size} bytes"
            raise InputError(f"{problem}: refused, get the archive again")
        return self._file.read(size)


def _checked_path(archive: Path, name: str, plain: bool) -> PurePosixPath:
    path = PurePosixPath(name)
    problem = "" if plain else "is a link or a device"
    if path.is_absolute() or ".." in path.parts:
        problem = "points outside the archive"
    if problem:
        raise InputError(f"{archive}: member {name!r} {problem}: refused, pack only plain files")
    return path
