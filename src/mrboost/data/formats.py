"""MNIST and SVHN in their official file formats, and the step from numpy arrays
to a checked `Split`.

CIFAR's pickles have a file of their own, `cifar.py`.
"""

from __future__ import annotations

import math
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from mrboost.data.archives import MIB, read_bounded, reading
from mrboost.data.dataset import Split
from mrboost.errors import InputError

MAX_FILE = 512 * MIB  # the largest official file is CIFAR-100's train batch, 155 MB

Array = NDArray[Any]


def to_split(x: Array, y: Array, where: object) -> Split:
    """Arrays (N, H, W) or (N, C, H, W) and labels (N,) or (N, 1) as a Split."""
    if x.ndim == 3:
        x = x[:, None]
    if x.dtype != np.uint8:
        if not np.issubdtype(x.dtype, np.floating):
            raise InputError(
                f"{where}: images have type {x.dtype}: store uint8 in 0..255 or floats in [0, 1]"
            )
        x = x.astype(np.float32)
    if not np.issubdtype(y.dtype, np.integer):
        raise InputError(f"{where}: labels have type {y.dtype}: store whole numbers")
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    try:
        return Split(
            torch.from_numpy(np.require(x, requirements=["C", "W"])),
            torch.from_numpy(np.array(y, dtype=np.int64)),
        )
    except InputError as error:
        raise InputError(f"{where}: {error}") from error


def mnist_npz(path: Path) -> tuple[Split, Split]:
    """MNIST as Keras distributes it: x_train, y_train, x_test, y_test in one .npz file."""
    keys = ("x_train", "y_train", "x_test", "y_test")
    with reading(f"{path} is truncated or damaged"):
        with zipfile.ZipFile(path) as bundle:
            size = sum(info.file_size for info in bundle.infolist())
        if size > MAX_FILE:
            raise InputError(
                f"{path} unpacks to {size} bytes, more than {MAX_FILE // MIB} MiB: refused"
            )
        with np.load(path, allow_pickle=False) as arrays:
            missing = [key for key in keys if key not in arrays]
            if missing:
                raise InputError(f"{path} lacks {', '.join(missing)}: get the official mnist.npz")
            x_train, y_train, x_test, y_test = (arrays[key] for key in keys)
    return to_split(x_train, y_train, f"{path} train"), to_split(x_test, y_test, f"{path} test")


def mnist_idx(x_train: Path, y_train: Path, x_test: Path, y_test: Path) -> tuple[Split, Split]:
    """MNIST in its original four IDX files, gzipped or not."""
    return to_split(_idx(x_train), _idx(y_train), x_train), to_split(
        _idx(x_test), _idx(y_test), x_test
    )


def _idx(path: Path) -> Array:
    """The array of an IDX file: 0, 0, type (8: unsigned byte), rank, sizes
    (big-endian int32), data."""
    content = read_bounded(path, MAX_FILE)
    rank = content[3] if len(content) >= 4 else 0
    if content[:3] != b"\x00\x00\x08" or not 1 <= rank <= 4 or len(content) < 4 + 4 * rank:
        raise InputError(f"{path} is not an IDX file of unsigned bytes: get the official file")
    shape = tuple(int(size) for size in np.frombuffer(content, ">u4", rank, offset=4))
    data = np.frombuffer(content, np.uint8, offset=4 + 4 * rank)
    if math.prod(shape) != len(data):
        raise InputError(
            f"{path} holds {len(data)} bytes for shape {shape}: truncated or damaged, get it again"
        )
    return data.reshape(shape)


def svhn(train: Path, test: Path) -> tuple[Split, Split]:
    """SVHN's cropped digits, two .mat files; the label 10 is the digit 0.

    scipy's reader can crash the interpreter on a damaged file: verify the checksum
    first, as `load` does.
    """
    return _mat(train), _mat(test)


def _mat(path: Path) -> Split:
    import scipy.io

    with reading(f"{path} is truncated or damaged"):
        arrays = scipy.io.loadmat(path, variable_names=["X", "y"])
    x, y = arrays.get("X"), arrays.get("y")
    if x is None or y is None or x.ndim != 4 or x.shape[:3] != (32, 32, 3):
        raise InputError(f"{path} lacks 'X' (32, 32, 3, N) or 'y': get the official file")
    return to_split(x.transpose(3, 2, 0, 1), np.where(y == 10, 0, y), path)
