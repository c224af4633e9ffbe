"""MNIST, CIFAR and SVHN in their official file formats."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mrboost.data.archives import MIB, Budget, members, read_file
from mrboost.data.dataset import Split, to_split
from mrboost.data.pickles import read_pickle
from mrboost.errors import InputError, reading
from mrboost.files import require_regular

MAX_FILE = 512 * MIB  # the largest official one, SVHN's train.mat, has 224 MB of images
MNIST_KEYS = ("x_train", "y_train", "x_test", "y_test")


def mnist_npz(path: Path) -> tuple[Split, Split]:
    """MNIST as Keras distributes it: four arrays in one .npz file."""
    arrays: dict[str, NDArray[Any]] = {}
    for name, content in _files(path, [f"{key}.npy" for key in MNIST_KEYS]).items():
        with reading(f"{path}: {name} is truncated or damaged"):
            arrays[name] = np.lib.format.read_array(io.BytesIO(content))
    x_train, y_train, x_test, y_test = arrays.values()
    return to_split(x_train, y_train, f"{path} train"), to_split(x_test, y_test, f"{path} test")


def mnist_idx(x_train: Path, y_train: Path, x_test: Path, y_test: Path) -> tuple[Split, Split]:
    """MNIST in its original four IDX files, gzipped or not."""
    train = to_split(_idx(x_train), _idx(y_train), x_train)
    return train, to_split(_idx(x_test), _idx(y_test), x_test)


def _idx(path: Path) -> NDArray[Any]:
    """The array of an IDX file: 0, 0, type (8: unsigned byte), rank, sizes (big-endian int32),
    data."""
    content = read_file(path, Budget(path, MAX_FILE))
    rank = content[3] if len(content) >= 4 else 0
    if content[:3] != b"\x00\x00\x08" or not 1 <= rank <= 4 or len(content) < 4 + 4 * rank:
        raise InputError(f"{path} is not an IDX file of unsigned bytes: get the official file")
    shape = tuple(int(size) for size in np.frombuffer(content, ">u4", rank, offset=4))
    data = np.frombuffer(content, np.uint8, offset=4 + 4 * rank)
    if not len(data) or math.prod(shape) != len(data):
        problem = f"{path} holds {len(data)} bytes for shape {shape}"
        raise InputError(f"{problem}: truncated or damaged, get it again")
    return data.reshape(shape)


def cifar(
    path: Path, train: Sequence[str], test: Sequence[str], labels: str
) -> tuple[Split, Split]:
    """CIFAR-10 or -100.

    Args:
        path: the tar archive, or its unpacked folder.
        train: the names of the training batches, in order; test: those of the test batches.
        labels: the key of the labels.
    """
    batches = _files(path, [*train, *test])

    def split(part: Sequence[str]) -> Split:
        parsed = [_batch(batches.pop(name), labels, f"{path}: {name}") for name in part]
        x = np.concatenate([images for images, _ in parsed])
        y = np.concatenate([targets for _, targets in parsed])
        return to_split(x, y, path)

    return split(train), split(test)


def _batch(content: bytes, labels: str, where: str) -> tuple[NDArray[Any], NDArray[Any]]:
    entries = read_pickle(content, where)
    images = entries.get("data")
    if not isinstance(images, np.ndarray) or not isinstance(entries.get(labels), list | np.ndarray):
        raise InputError(f"{where}: lacks 'data' or {labels!r}: get the official archive again")
    if images.ndim != 2 or images.shape[1] != 3 * 32 * 32 or images.dtype != np.uint8:
        problem = f"{where}: images are {images.shape} {images.dtype}, not (N, 3072) uint8"
        raise InputError(f"{problem}: get it again")
    targets = np.asarray(entries[labels])
    if targets.shape != (len(images),):
        raise InputError(f"{where}: {len(images)} images but {targets.size} labels: get it again")
    return images.reshape(-1, 3, 32, 32), targets


def _files(path: Path, names: Sequence[str]) -> dict[str, bytes]:
    """The files of these names, in this order, of an archive or of its unpacked folder."""
    budget = Budget(path, MAX_FILE)
    if path.is_dir():
        present = [name for name in names if (path / name).is_file()]
        found = {name: read_file(path / name, budget) for name in present}
    else:
        packed = members(path, lambda member: member.name in names, budget)
        found = {member.path.name: member.data for member in packed if member.data is not None}
    missing = [name for name in names if name not in found]
    if missing:
        raise InputError(f"{path} lacks {', '.join(missing)}: get the official files again")
    return {name: found[name] for name in names}


def svhn(train: Path, test: Path) -> tuple[Split, Split]:
    """SVHN's cropped digits, two .mat files; the label 10 is the digit 0.

    scipy's reader can crash the interpreter on a damaged file: verify the checksum first, as
    ``load`` does.
    """
    return _mat(train), _mat(test)


def _mat(path: Path) -> Split:
    import scipy.io

    require_regular(path)
    with reading(f"{path} is truncated or damaged"):
        sizes = {name: math.prod(shape) for name, shape, _ in scipy.io.whosmat(path)}
        if max(sizes.get("X", 0), sizes.get("y", 0)) > MAX_FILE:
            raise InputError(f"{path} unpacks to more than {MAX_FILE // MIB} MiB: refused")
        arrays = scipy.io.loadmat(path, variable_names=["X", "y"])
    x, y = arrays.get("X"), arrays.get("y")
    if x is None or y is None or x.shape != (32, 32, 3, y.size) or y.dtype.kind not in "iu":
        problem = f"{path} lacks 'X' (32, 32, 3, N) or N whole numbers 'y'"
        raise InputError(f"{problem}: get the official file")
    return to_split(x.transpose(3, 2, 0, 1), np.where(y == 10, 0, y), path)
