"""The images of an evaluation, in whatever form they come, a chunk at a time and
checked at the door."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from typing import TypeGuard

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset

from mrboost.attacks.checks import check_batch
from mrboost.data import Split, as_tensors
from mrboost.errors import InputError

Images = Tensor | Split | Iterable[tuple[Tensor, Tensor]]
CHUNK = 2**24
"""Numbers in the images of one chunk: 64 MiB of float32."""


def chunks(x: Images, y: Tensor | None) -> Iterator[tuple[Tensor, Tensor]]:
    """Checked images and labels, some thousands at a time."""
    if isinstance(x, Split):
        if y is not None:
            raise InputError(
                "a Split has labels of its own: leave out y, or give split.images() and y"
            )
        size = _per_chunk(x.x)
        pairs: Iterable[tuple[Tensor, Tensor]] = (
            (part.images(), part.y) for part in (x[i : i + size] for i in range(0, len(x), size))
        )
    elif _matched(x, y):  # an array may be a file's, mapped
        size = max(1, CHUNK // max(1, x[:1].size))
        parts = (slice(i, i + size) for i in range(0, len(x), size))
        pairs = (as_tensors(x[part], y[part]) for part in parts)  # type: ignore[index]
    elif y is not None and isinstance(x, DataLoader):
        raise InputError("a DataLoader gives labels of its own: leave out y")
    elif y is None:
        pairs = _gathered(DataLoader(x, batch_size=256) if _is_map(x) else x)  # type: ignore[arg-type]
    elif x is None:
        raise InputError("x must be images, or give pairs (images, labels), got None")
    else:
        whole, targets = as_tensors(x, y)
        size = _per_chunk(whole)
        pairs = (
            (whole[i : i + size], targets[i : i + size]) for i in range(0, max(1, len(whole)), size)
        )
        if len(whole) != len(targets):
            raise InputError(
                f"labels must have shape ({len(whole)},) to match the images, got "
                f"{tuple(targets.shape)}"
            )
    none = True
    for images, labels in pairs:
        check_batch(images, labels)
        none = False
        yield images, labels.cpu()
    if none:
        raise InputError("there are no images to evaluate on: the data are empty")


def _gathered(batches: Iterable[object]) -> Iterator[tuple[Tensor, Tensor]]:
    """Small batches put together into chunks."""
    if not hasattr(batches, "__iter__"):
        raise InputError(
            f"x must be images, or give pairs (images, labels), got {type(batches).__name__}"
        )
    waiting: list[tuple[Tensor, Tensor]] = []
    for pair in batches:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            many = f" of {len(pair)}" if isinstance(pair, tuple | list) else ""
            raise InputError(
                "without y, x must give pairs (images, labels), it gave "
                f"{type(pair).__name__}{many}: choose two of each, as in ((batch[0], batch[1]) for "
                "batch in loader)"
            )
        images, labels = as_tensors(*pair)
        if waiting and images.shape[1:] != waiting[0][0].shape[1:]:
            one, other = tuple(waiting[0][0].shape[1:]), tuple(images.shape[1:])
            raise InputError(
                f"images must all have the same shape, got {one} and {other}: resize or crop them"
            )
        waiting.append((images, labels))
        if sum(len(images) for images, _ in waiting) >= _per_chunk(waiting[0][0]):
            yield (
                torch.cat([images for images, _ in waiting]),
                torch.cat([labels for _, labels in waiting]),
            )
            waiting = []
    if waiting:
        yield (
            torch.cat([images for images, _ in waiting]),
            torch.cat([labels for _, labels in waiting]),
        )


def _matched(x: object, y: object) -> TypeGuard[np.ndarray]:
    """Whether these are an array of images and as many labels, both to be had part by part."""
    listed = isinstance(y, list | tuple) or (isinstance(y, Tensor | np.ndarray) and y.ndim > 0)
    return isinstance(x, np.ndarray) and x.ndim > 1 and listed and 0 < len(x) == len(y)  # type: ignore[arg-type]


def _is_map(x: object) -> bool:
    """A dataset of single images, by number."""
    return isinstance(x, Dataset) and not isinstance(x, IterableDataset)


def _per_chunk(images: Tensor) -> int:
    return max(1, CHUNK // max(1, images[:1].numel()))


def count(x: Images) -> int | None:
    """How many images there are, if ``x`` tells."""
    if isinstance(x, DataLoader):
        batches = x.sampler if x.batch_sampler is None else x.batch_sampler
        if type(batches) is not BatchSampler:  # another may make batches of any size
            return None
        whole = x.dataset if isinstance(x.dataset, IterableDataset) else batches.sampler
        n = len(whole) if isinstance(whole, Sized) else None
        return n if n is None or not batches.drop_last else n - n % batches.batch_size
    return (
        len(x)
        if isinstance(x, Tensor | Split | np.ndarray) or (_is_map(x) and isinstance(x, Sized))
        else None
    )
