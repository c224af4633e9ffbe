"""The files inside a tar (plain, gz, bz2, xz) or zip archive, read in memory, in
one sequential pass.

Nothing is ever written to disk, so a hostile name cannot reach a file; it is refused all the same,
like links, devices and members larger than a limit (a decompression bomb): such an archive is not
what it seems.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import stat
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Any, NamedTuple

from mrboost.errors import InputError

MIB = 2**20
_OPENERS: dict[bytes, Callable[..., Any]] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ": lzma.open,
}


class Member(NamedTuple):
    path: PurePosixPath
    data: bytes | None  # None for a folder


def members(
    archive: Path, wanted: Callable[[PurePosixPath], bool], *, limit: int = 64 * MIB
) -> Iterator[Member]:
    """The folders of an archive and those of its files whose path is `wanted`, in
    the archive's order.

    Raises InputError for an archive that is truncated or damaged, and for the hazards named above.
    """
    with reading(f"{archive} is truncated, damaged or not a tar or zip archive"):
        with archive.open("rb") as file:
            magic = file.read(6)
        zipped = magic.startswith(b"PK")
        yield from (
            _zip_members(archive, wanted, limit)
            if zipped
            else _tar_members(archive, magic, wanted, limit)
        )


def read_bounded(file: Path, limit: int) -> bytes:
    """The content of a file, gunzipped if it is gzipped, refused beyond `limit` bytes."""
    with reading(f"{file} is truncated or damaged"):
        with file.open("rb") as raw:
            opener = gzip.open if raw.read(2) == b"\x1f\x8b" else open
        with opener(file, "rb") as stream:
            data: bytes = stream.read(limit + 1)
    if len(data) > limit:
        raise InputError(
            f"{file} is larger than the {limit // MIB} MiB allowed: get the official file"
        )
    return data


@contextmanager
def reading(problem: str, remedy: str = "get it again") -> Iterator[None]:
    """Within it, any error is a `problem` of the file: the parser of a damaged one can
    raise nearly anything."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{problem} ({reason(error)}): {remedy}") from error


def reason(error: Exception) -> str:
    """What a library's exception says, in one line."""
    return " ".join(str(error).split()) or type(error).__name__


def _tar_members(
    archive: Path, magic: bytes, wanted: Callable[[PurePosixPath], bool], limit: int
) -> Iterator[Member]:
    opener = next((opener for start, opener in _OPENERS.items() if magic.startswith(start)), open)
    with opener(archive, "rb") as file:
        stream: Any = _Bounded(file, archive, limit)
        with tarfile.open(fileobj=stream, mode="r:") as tar:
            for info in tar:
                kind = "folder" if info.isdir() else "file" if info.isreg() else "link or device"
                path = _checked(archive, info.name, kind, info.size, limit)
                if kind == "folder":
                    yield Member(path, None)
                elif wanted(path):
                    content = tar.extractfile(info)
                    assert content is not None
                    yield Member(path, content.read())
            # tarfile takes the end of the file for the end of the archive; a cut between two
            # members shows only in the missing block of zeros, which it would have read past its
            # last offset.
            if stream.tell() <= tar.offset:
                raise tarfile.ReadError("the end-of-archive mark is missing")
        file.read(MIB)  # to the end of the compressed stream, where its checksum is verified


def _zip_members(
    archive: Path, wanted: Callable[[PurePosixPath], bool], limit: int
) -> Iterator[Member]:
    with zipfile.ZipFile(archive) as bundle:
        for info in bundle.infolist():
            link = stat.S_ISLNK(info.external_attr >> 16)
            kind = "link or device" if link else "folder" if info.is_dir() else "file"
            path = _checked(archive, info.filename, kind, info.file_size, limit)
            if kind == "folder":
                yield Member(path, None)
            elif wanted(path):
                yield Member(path, bundle.read(info))


class _Bounded:
    """A stream that refuses a single read beyond the limit.

    A tar header can announce a long name of many gigabytes, which tarfile would read in one go
    before we ever see the member.
    """

    def __init__(self, file: IO[bytes], archive: Path, limit: int) -> None:
        self._file, self._archive, self._limit = file, archive, limit
        self.seek, self.tell = file.seek, file.tell

    def read(self, size: int) -> bytes:
        if size > self._limit + tarfile.BLOCKSIZE:
            raise InputError(
                f"{self._archive}: a header announces {size} bytes: refused, get the archive again"
            )
        return self._file.read(size)


def _checked(archive: Path, name: str, kind: str, size: int, limit: int) -> PurePosixPath:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise InputError(
            f"{archive}: member {name!r} points outside the archive: refused, pack it again"
        )
    if kind == "link or device":
        raise InputError(
            f"{archive}: member {name!r} is a link or a device: refused, pack plain files "
            "(tar --dereference --hard-dereference)"
        )
    if size > limit:
        raise InputError(
            f"{archive}: member {name!r} unpacks to {size} bytes: refused, no more than "
            f"{limit // MIB} MiB are allowed"
        )
    return path
