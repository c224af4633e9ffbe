"""CIFAR-10 and CIFAR-100: batches of Python 2 pickles in a tar archive or in its unpacked folder.

A pickle can name any function to call. Ours may name only the few that build an array, and even
those are replaced by recorders that keep shape, type and bytes, to be checked before numpy sees
them.
"""

from __future__ import annotations

import io
import math
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mrboost.data.archives import members, read_bounded, reason
from mrboost.data.dataset import Split
from mrboost.data.formats import MAX_FILE, Array, to_split
from mrboost.errors import InputError


def cifar(
    path: Path, train: Sequence[str], test: Sequence[str], labels: str
) -> tuple[Split, Split]:
    """CIFAR-10 or -100 from its tar archive or its unpacked folder; `labels` is
    the key of the labels."""
    names = (*train, *test)
    if path.is_dir():
        batches = {
            name: read_bounded(path / name, MAX_FILE) for name in names if (path / name).is_file()
        }
    else:
        found = members(path, lambda member: member.name in names, limit=MAX_FILE)
        batches = {member.path.name: member.data for member in found if member.data is not None}
    missing = [name for name in names if name not in batches]
    if missing:
        raise InputError(f"{path} lacks {', '.join(missing)}: get the official archive again")

    def split(part: Sequence[str]) -> Split:
        parsed = [_cifar_batch(batches.pop(name), labels, f"{path}: {name}") for name in part]
        return to_split(
            np.concatenate([x for x, _ in parsed]), np.concatenate([y for _, y in parsed]), path
        )

    return split(train), split(test)


def _cifar_batch(content: bytes, labels: str, where: str) -> tuple[Array, Array]:
    batch = restricted_unpickle(content, where)
    if not isinstance(batch, dict):
        raise InputError(
            f"{where}: holds a {type(batch).__name__}, not CIFAR's dictionary: get it again"
        )
    entries = {
        key.decode("latin1") if isinstance(key, bytes) else key: entry
        for key, entry in batch.items()
    }
    x, y = entries.get("data"), entries.get(labels)
    if not isinstance(x, _PickledArray) or y is None:
        raise InputError(f"{where}: lacks 'data' or {labels!r}: get the official archive again")
    images = x.array(where)
    if images.ndim != 2 or images.shape[1] != 3 * 32 * 32 or images.dtype != np.uint8:
        raise InputError(
            f"{where}: images are {images.shape} {images.dtype}, not (N, 3072) uint8: get it again"
        )
    targets = y.array(where) if isinstance(y, _PickledArray) else y
    if isinstance(targets, list) and not all(type(label) is int for label in targets):
        raise InputError(
            f"{where}: some labels are not whole numbers: get the official archive again"
        )
    targets = np.asarray(targets)
    if targets.shape != (len(images),):
        raise InputError(f"{where}: {len(images)} images but {targets.size} labels: get it again")
    return images.reshape(-1, 3, 32, 32), targets


class _PickledDtype:
    """Stands for numpy.dtype while unpickling: keeps the type code and the byte order."""

    def __init__(self, code: str | bytes, *_: object) -> None:
        self.code, self.order = _text(code), "|"

    def __setstate__(self, state: Sequence[Any]) -> None:
        self.order = _text(state[1])


class _PickledArray:
    """Stands for numpy.ndarray while unpickling: keeps shape, type and bytes."""

    def __init__(self, *_: object) -> None:
        self.shape, self.dtype, self.fortran, self.raw = (0,), _PickledDtype("u1"), False, b""

    def __setstate__(self, state: Sequence[Any]) -> None:
        _, self.shape, self.dtype, self.fortran, self.raw = state

    def array(self, where: str) -> Array:
        try:
            dtype = np.dtype(self.dtype.code).newbyteorder(self.dtype.order)  # type: ignore[arg-type]
            if dtype.kind not in "iuf" or math.prod(self.shape) * dtype.itemsize != len(self.raw):
                raise ValueError(f"{len(self.raw)} bytes for shape {self.shape} of type {dtype}")
            return np.frombuffer(self.raw, dtype).reshape(
                self.shape, order="F" if self.fortran else "C"
            )
        except (TypeError, ValueError, AttributeError) as error:
            raise InputError(
                f"{where}: damaged array ({reason(error)}): get the official archive again"
            ) from error


def _from_buffer(raw: Any, dtype: Any, shape: Any, order: Any) -> _PickledArray:
    """Stands for the function by which pickle protocol 5 builds an array."""
    array = _PickledArray()
    array.__setstate__((1, shape, dtype, order == "F", bytes(raw)))
    return array


def _text(code: str | bytes) -> str:
    return code.decode("latin1") if isinstance(code, bytes) else str(code)


_GLOBALS: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): _PickledArray,
    ("numpy", "dtype"): _PickledDtype,
    # Python 3 writes bytes in old protocols as _codecs.encode(text, "latin1").
    ("_codecs", "encode"): lambda text, _: text.encode("latin1"),
    **{(f"numpy.{core}.multiarray", "_reconstruct"): _PickledArray for core in ("core", "_core")},
    **{(f"numpy.{core}.numeric", "_frombuffer"): _from_buffer for core in ("core", "_core")},
}


class _Unpickler(pickle.Unpickler):
    def __init__(self, content: bytes, where: str) -> None:
        super().__init__(io.BytesIO(content), encoding="bytes")
        self._where = where

    def find_class(self, module: str, name: str) -> Any:
        try:
            return _GLOBALS[module, name]
        except KeyError:
            raise InputError(
                f"{self._where}: the pickle asks for {module}.{name}, which no CIFAR file needs: "
                "refused, get the official archive"
            ) from None


def restricted_unpickle(content: bytes, where: str) -> Any:
    """Unpickle lists, dictionaries, numbers, strings and (recorded) arrays;
    refuse all else by name."""
    try:
        return _Unpickler(content, where).load()
    except InputError:
        raise
    except Exception as error:
        # A damaged pickle can raise nearly anything, as its documentation says
        raise InputError(
            f"{where}: damaged pickle ({type(error).__name__}: {reason(error)}): get it again"
        ) from error
