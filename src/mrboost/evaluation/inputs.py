"""Images and labels in whatever form they come, a chunk at a time, checked together with the
model."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from mrboost.attacks import Classifier, attacked
from mrboost.attacks.model import LOW_PRECISION, Rounded, check_batch, check_logits
from mrboost.attacks.surrogates import of_tensors
from mrboost.data import Split, as_tensors
from mrboost.data.dataset import is_map, pairs
from mrboost.data.mapped import Mapped
from mrboost.devices import device_of, dtype_of
from mrboost.ensemble import Mixture
from mrboost.errors import InputError

Images = Tensor | Split | Iterable[tuple[Tensor, Tensor]]
CHUNK = 2**24
"""Numbers in the images of one chunk: 64 MiB of float32."""

_FIRST = 64  # images of the first chunk; the search for doubts takes as many
_GROWTH = 2.0  # what a small chunk says of the pace of a large one is not much
_LEAST = 0.25  # of the last chunk's time: with less than that left, nothing is begun

Pairs = Iterator[tuple[Tensor, Tensor]]
Numbered = Iterator[tuple[Tensor, Tensor, Tensor]]


@dataclass(frozen=True)
class Chunk:
    """Some of the images, and the model in a precision that fits them.

    ``number`` counts chunks, ``numbers`` are those of its images among all, ``classes`` is how many
    logits there are.
    """

    model: Classifier
    x: Tensor
    y: Tensor
    classes: int
    number: int
    numbers: Tensor

    @property
    def device(self) -> torch.device:
        return device_of(self.model, otherwise=self.x.device)

    def part(self, rows: Tensor) -> Chunk:
        """Some of its images."""
        here = rows.to(self.x.device)
        return replace(self, x=self.x[here], y=self.y[rows], numbers=self.numbers[rows])


@dataclass(frozen=True)
class TimeBudget:
    """So many seconds, by a clock that gives seconds too: the images of an evaluation of limited
    time are a random sample, as large as the time allows.

    They come in a random order, the same each time, in chunks. The size of a chunk is chosen before
    anything is known of its images, and a chunk that was begun is finished. If the last one were
    dropped, images that take long, those that withstand, would be missing more often than others.
    """

    seconds: float
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        if not 0 < self.seconds < math.inf:
            raise InputError(f"time_budget is in seconds, above 0 and finite, got {self.seconds}")

    def rows(self, count: int, most: int) -> Iterator[Tensor]:
        """The numbers of the images of one chunk after the other, until the time is over.

        Args:
            count: how many images there are.
            most: how many a chunk may have.
        """
        order = torch.randperm(count, generator=torch.Generator().manual_seed(0))
        begun = now = self.clock()
        done, growth, size = 0, 1.0, min(_FIRST, most)
        while done < count and growth >= _LEAST:
            rows = order[done : done + size]
            yield rows
            done += len(rows)
            then, now = now, self.clock()
            growth = min(_GROWTH, (begun + self.seconds - now) / max(now - then, 1e-9))
            size = min(most, max(1, int(growth * len(rows))))


def chunks(
    model: Classifier, x: Images, y: Tensor | None, budget: TimeBudget | None = None
) -> Iterator[Chunk]:
    """Images and labels, some thousands at a time, checked together with the model.

    Args:
        model: what is evaluated.
        x: a batch of images, a ``Split``, a dataset, or an iterable of pairs (images, labels).
        y: the labels of a batch of images.
        budget: images at random, as many as the time allows; all in turn if not given.
    """
    seen = 0
    for number, (images, labels, numbers) in enumerate(_unchecked(x, y, budget)):
        check_batch(images, labels)
        asked = of_tensors(model, images, int(labels.max()) + 1)
        fits, images = fitted(asked, images)
        with attacked(asked):
            one = images[:1].to(device_of(asked, otherwise=images.device))
            classes = check_logits(fits, one, labels)
            Mixture.check_outermost(asked)
        yield Chunk(fits, images, labels.cpu(), classes, number, numbers)
        seen += len(images)
    if seen == 0:
        raise InputError("there are no images to evaluate on: the data are empty")


def fitted(model: Classifier, x: Tensor) -> tuple[Classifier, Tensor]:
    """Model and images in one precision: that of its weights; float32, where it is a lower one."""
    dtype = dtype_of(model, x.dtype)
    if dtype in LOW_PRECISION and isinstance(model, nn.Module) and not isinstance(model, Mixture):
        return Rounded(model, dtype), x.float()
    return model, x.to(dtype)


def _unchecked(x: Images, y: Tensor | None, budget: TimeBudget | None) -> Numbered:
    """Chunks before their values are checked, and the numbers of their images."""
    if isinstance(x, Split | DataLoader) and y is not None:
        raise InputError(f"a {type(x).__name__} has labels of its own: leave out y")
    if isinstance(x, Split):
        numbers = torch.arange(len(x))
        return ((x[rows].images(), x.y[rows], numbers[rows]) for rows in _rows(x.x, budget))
    if y is None:
        if budget is not None:
            raise InputError("a time budget draws images: give tensors x and y, or a Split")
        return _numbered(_gathered(DataLoader(x, batch_size=256) if is_map(x) else x))  # type: ignore[arg-type]
    in_parts = isinstance(x, np.ndarray) and x.ndim > 1  # it may be mapped from a file
    images, labels = as_tensors(x[:1] if in_parts else x, y)  # type: ignore[index]
    whole = x if in_parts else images
    n = len(whole)  # type: ignore[arg-type]
    if n != len(labels):
        shape = tuple(labels.shape)
        raise InputError(f"labels must have shape ({n},) to match the images, got {shape}")
    numbers = torch.arange(n)
    parts = ((rows, numbers[rows]) for rows in _rows(whole, budget))  # type: ignore[arg-type]
    return ((*as_tensors(whole[rows], labels[of]), of) for rows, of in parts)  # type: ignore[index]


def _numbered(pairs: Pairs) -> Numbered:
    """With the numbers of the images."""
    first = 0
    for images, labels in pairs:
        yield images, labels, torch.arange(first, first + len(images))
        first += len(images)


def _gathered(batches: object) -> Pairs:
    """Small batches put together into chunks."""
    if not isinstance(batches, Iterable):
        kind = type(batches).__name__
        raise InputError(f"x must be images, or give pairs (images, labels), got {kind}")
    waiting: list[tuple[Tensor, Tensor]] = []
    for pair in pairs(batches):
        waiting.append(pair)
        if sum(len(images) for images, _ in waiting) >= _per_chunk(waiting[0][0]):
            yield _together(waiting)
            waiting = []
    if waiting:
        yield _together(waiting)


def _together(pairs: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    images, labels = zip(*pairs, strict=True)
    return torch.cat(images), torch.cat(labels)


def _rows(
    images: Tensor | Mapped | np.ndarray, budget: TimeBudget | None
) -> Iterator[slice | Tensor]:
    """Slices of as many images as a chunk has, one of no images if there are none; with a budget
    their numbers."""
    size = _per_chunk(images)
    if budget is not None and len(images):
        yield from budget.rows(len(images), size)
    else:
        yield from (slice(i, i + size) for i in range(0, max(1, len(images)), size))


def _per_chunk(images: Tensor | Mapped | np.ndarray) -> int:
    return max(1, CHUNK // max(1, math.prod(images.shape[1:])))
