"""Shuffled, augmented batches of a split that is kept on the device, or streamed to it.

At the sizes of this field (CIFAR-10 is 150 MB) a split on the device is faster than any number of
worker processes. Images that do not fit there are read ahead by threads, from memory or from their
file, and sent from pinned memory. Both ways an epoch is a function of one generator, and the same
one: only the order is drawn ahead, the augmentation when a batch is on the device.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import islice, pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from mrboost.data.dataset import Split
from mrboost.data.mapped import Mapped
from mrboost.errors import InputError

AHEAD = 3
"""Batches that are read ahead, each by a thread."""


@dataclass(frozen=True)
class Augment:
    """A random crop after zero padding, then a horizontal flip with probability 1/2, drawn for each
    image by itself.

    Args:
        padding: pixels to pad on each side before the crop to the old size; 0: no crop.
        flip: whether to flip images.
    """

    padding: int
    flip: bool

    def __post_init__(self) -> None:
        if not isinstance(self.padding, int) or self.padding < 0:
            raise InputError(f"padding {self.padding!r} is negative or not whole: give pixels or 0")

    def draw(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """For each image the top and left of its crop in the padded image (0..2*padding), and
        whether it is flipped."""
        device = generator.device
        top = left = torch.zeros(count, dtype=torch.int64, device=device)
        mirrored = torch.zeros(count, dtype=torch.bool, device=device)
        if self.padding:
            top, left = torch.randint(
                2 * self.padding + 1, (2, count), generator=generator, device=device
            )
        if self.flip:
            mirrored = torch.rand(count, generator=generator, device=device) < 0.5
        return top, left, mirrored

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        if not self.padding and not self.flip:
            return x
        count, channels, height, width = x.shape
        top, left, mirrored = (drawn.to(x.device) for drawn in self.draw(count, generator))
        rows = top[:, None] + torch.arange(height, device=x.device)
        columns = torch.arange(width, device=x.device).expand(count, width)
        columns = left[:, None] + torch.where(mirrored[:, None], width - 1 - columns, columns)
        image = torch.arange(count, device=x.device)[:, None, None, None]
        channel = torch.arange(channels, device=x.device)[:, None, None]
        padded = F.pad(x, (self.padding,) * 4)
        return padded[image, channel, rows[:, None, :, None], columns[:, None, None, :]]


class Mixed(NamedTuple):
    """The second labels of images that are made of two, and the share of each that belongs to its
    first label."""

    second: Tensor
    share: Tensor


@dataclass(frozen=True)
class CutMix:
    """Paste a rectangle of the next image of a shuffled batch into each image; the labels mix in
    proportion to the areas (Yun et al. 2019, with alpha 1).

    The rectangle has the image's proportions, a uniform share of its area and a uniform centre, and
    is cut off at the border.

    Args:
        probability: that of an image to be changed at all.
    """

    probability: float = 0.5

    def __post_init__(self) -> None:
        if not 0 < self.probability <= 1:
            raise InputError(f"cutmix is a share of images, in (0, 1], got {self.probability}")

    def __call__(self, x: Tensor, y: Tensor, generator: torch.Generator) -> tuple[Tensor, Mixed]:
        count, _, height, width = x.shape
        area, row, column, chance = torch.rand(4, count, 1, generator=generator, device=x.device)
        side = area.sqrt() * (chance < self.probability)

        def within(centre: Tensor, size: int) -> Tensor:
            pixel = torch.arange(size, device=x.device)
            half = (side * size).floor().div(2, rounding_mode="floor")
            middle = (centre * size).floor()
            return torch.logical_and(pixel >= middle - half, pixel < middle + half)

        pasted = within(row, height)[:, :, None] & within(column, width)[:, None, :]
        share = 1 - pasted.to(x.dtype).mean(dim=(1, 2))
        return torch.where(pasted[:, None], x.roll(1, 0), x), Mixed(y.roll(1, 0), share)


class Batches:
    """The shuffled batches of a split, float32 in [0, 1] with int64 labels, on one device.

    Batches differ in size by one image at most: the few images that would be left for a last batch
    make poor statistics for BatchNorm.

    Args:
        split: the images and labels.
        batch_size: images in a batch, at most.
        device: where the batches are, and the split, if it fits.
        augment: applied to each batch.
        least: images in a batch, at least, if the split has as many.
        room: bytes of the device that the split may take; half of what is free, if not given. On
            the CPU images in a file stay there.

    Attributes:
        streamed: whether the split is not kept on the device.
        waited: seconds so far in which a batch was asked for that was not read yet.
    """

    def __init__(
        self,
        split: Split,
        batch_size: int,
        *,
        device: str | torch.device = "cpu",
        augment: Augment | None = None,
        least: int = 2,
        room: int | None = None,
    ) -> None:
        self.augment = augment
        self.waited = 0.0
        self._device = torch.device(device)
        self.split = split.to(device) if _fits(split, self._device, room) else split
        here = self.split.x.device.type == self._device.type
        self.streamed = isinstance(self.split.x, Mapped) or not here
        batches = max(1, min(-(-len(split) // batch_size), len(split) // least))
        self._bounds = list(pairwise(i * len(split) // batches for i in range(batches + 1)))

    def __len__(self) -> int:
        return len(self._bounds)

    def epoch(self, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
        """Go once through the split. Shuffling and augmentation draw from ``generator``, which is
        best on the same device."""
        x, y = self.split.x, self.split.y
        order = torch.randperm(len(y), generator=generator, device=generator.device).to(y.device)
        batches = [order[start:stop] for start, stop in self._bounds]
        taken = ((x[rows], y[rows]) for rows in batches)
        for batch, labels in self._streamed(batches) if self.streamed else taken:
            batch = batch if self.augment is None else self.augment(batch, generator)
            yield batch.float().div_(255) if x.dtype == torch.uint8 else batch, labels

    def _streamed(self, batches: list[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        """The images and labels of these rows, some batches read ahead."""
        coming = iter(batches)
        ahead: deque[Future[tuple[Tensor, Tensor]]] = deque()
        pool = ThreadPoolExecutor(AHEAD)
        try:
            ahead.extend(pool.submit(self._read, rows) for rows in islice(coming, AHEAD))
            while ahead:
                began = time.perf_counter()
                images, labels = ahead.popleft().result()
                self.waited += time.perf_counter() - began
                ahead.extend(pool.submit(self._read, rows) for rows in islice(coming, 1))
                send = partial(torch.Tensor.to, device=self._device, non_blocking=True)
                yield send(images), send(labels)
        finally:
            pool.shutdown(cancel_futures=True)

    def _read(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Images and labels, pinned where they are to be sent to a GPU."""
        x, y = self.split.x, self.split.y
        labels, rows = y[rows], rows.cpu()
        source, rows = (x.images, x.rows[rows]) if isinstance(x, Mapped) else (x, rows)
        pinned = self._device.type == "cuda"
        shape = (len(rows), *source.shape[1:])
        images = torch.empty(shape, dtype=source.dtype, pin_memory=pinned)
        torch.index_select(source, 0, rows, out=images)
        return images, labels.pin_memory() if pinned else labels


def _fits(split: Split, device: torch.device, room: int | None) -> bool:
    """Whether a split may be kept on the device."""
    if room is None:
        if device.type != "cuda":
            return not isinstance(split.x, Mapped)
        room = torch.cuda.mem_get_info(device)[0] // 2
    return split.x.shape.numel() * split.x.dtype.itemsize <= room
