"""MNIST and SVHN in their official file formats. CIFAR's are in ``cifar.py``."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mrboost.data.archives import MIB, Budget, members, read_file, reading, require_regular
from mrboost.data.dataset import Split, to_split
from mrboost.errors import InputError

MAX_FILE = 512 * MIB  # the largest official one, SVHN's train.mat, has 224 MB of images


def mnist_npz(path: Path) -> tuple[Split, Split]:
    """MNIST as Keras distributes it: x_train, y_train, x_test, y_test in one .npz file."""
    keys = ("x_train", "y_train", "x_test", "y_test")
    names = [f"{key}.npy" for key in keys]
    found = members(path, lambda member: str(member) in names, Budget(path, MAX_FILE))
    arrays: dict[str, NDArray[Any]] = {}
    for name, content in found:
        with reading(f"{path}: {name} is truncated or damaged"):
            arrays[name.stem] = np.lib.format.read_array(io.BytesIO(content or b""))
    missing = [key for key in keys if key not in arrays]
    if missing:
        raise InputError(f"{path} lacks {', '.join(missing)}: get the official mnist.npz")
    train = to_split(arrays["x_train"], arrays["y_train"], f"{path} train")
    return train, to_split(arrays["x_test"], arrays["y_test"], f"{path} test")


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
        raise InputError(
            f"{path} holds {len(data)} bytes for shape {shape}: truncated or damaged, get it again"
        )
    return data.reshape(shape)


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
    x = arrays.get("X")
    y = arrays.get("y")
    if (
        x is None
        or y is None
        or x.ndim != 4
        or x.shape[:3] != (32, 32, 3)
        or y.dtype.kind not in "iu"
    ):
        raise InputError(
            f"{path} lacks 'X' (32, 32, 3, N) or whole numbers 'y': get the official file"
        )
    return to_split(x.transpose(3, 2, 0, 1), np.where(y == 10, 0, y), path)
