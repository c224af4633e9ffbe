"""CIFAR-10 and CIFAR-100: batches of pickles in a tar archive or in its unpacked folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mrboost.data.archives import MIB, Budget, members, read_file
from mrboost.data.dataset import Split, to_split
from mrboost.data.pickles import read_pickle
from mrboost.errors import InputError

MAX_BATCH = 192 * MIB  # the largest official one, CIFAR-100's train batch, has 148 MiB


def cifar(
    path: Path, train: Sequence[str], test: Sequence[str], labels: str
) -> tuple[Split, Split]:
    """CIFAR-10 or -100.

    Args:
        path: the tar archive, or its unpacked folder.
        train: the names of the training batches, in order; test: those of the test batches.
        labels: the key of the labels.
    """
    names = (*train, *test)
    budget = Budget(path, MAX_BATCH)
    if path.is_dir():
        present = [name for name in names if (path / name).is_file()]
        batches = {name: read_file(path / name, budget) for name in present}
    else:
        found = members(path, lambda member: member.name in names, budget)
        batches = {member.path.name: member.data for member in found if member.data is not None}
    missing = [name for name in names if name not in batches]
    if missing:
        raise InputError(f"{path} lacks {', '.join(missing)}: get the official archive again")

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
        raise InputError(
            f"{where}: images are {images.shape} {images.dtype}, not (N, 3072) uint8: get it again"
        )
    targets = np.asarray(entries[labels])
    if targets.shape != (len(images),):
        raise InputError(f"{where}: {len(images)} images but {targets.size} labels: get it again")
    return images.reshape(-1, 3, 32, 32), targets
