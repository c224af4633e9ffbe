"""Images from a ``DataLoader`` or a dataset of torch's, read once into tensors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler
from torch.utils.data import Dataset as TorchDataset

from mrboost.data.dataset import Dataset, Split, count, from_tensors, hold_out, pairs
from mrboost.errors import InputError
from mrboost.progress import Meter

Source = DataLoader[Any] | TorchDataset[Any]
GIB = 2**30


def from_loader(
    train: Source,
    test: Source | None = None,
    *,
    name: str = "loader",
    classes: Sequence[str] | None = None,
    memory: float = 8,
    progress: bool = False,
    **defaults: Any,
) -> Dataset:
    """A dataset of what a ``DataLoader``, or a dataset of torch's or torchvision's, gives.

    It is read once, in the order of the images, also where the loader shuffles. So leave random
    transforms out, and normalisation too: training pads, crops and flips by itself, and the model
    normalises. Images of 256 levels are kept as bytes, whether they come as such or as floats.

    Args:
        train: pairs (image, label), or batches of them.
        test: likewise; without it a tenth of the training images, drawn from each class in
            proportion, is taken for it.
        name: what messages and run folders call the dataset.
        classes: names of the labels 0, 1, …; those of ``train`` if it has them.
        memory: the most that the images may take, in GiB.
        progress: show progress on standard error.
        defaults: fields of ``Defaults`` to change.
    """
    images = _read(train, memory, progress)
    if test is None:
        images, held_out = hold_out(images, max(1, len(images) // 10), seed=0)
    else:
        held_out = _read(test, memory, progress)
    own = getattr(getattr(train, "dataset", train), "classes", None)
    names = own if classes is None else classes
    every = (images.x[:], images.y, held_out.x[:], held_out.y)
    return from_tensors(*every, name=name, classes=names, **defaults)


def _read(source: Source, memory: float, progress: bool) -> Split:
    """All images and labels."""
    parts: list[Tensor] = []
    labels: list[Tensor] = []
    seen = used = 0
    total = count(source)
    with Meter(progress, "read", " images") as meter:
        meter.begin(total)
        meter.doing("reading the data")
        for x, y in _batches(source):
            parts.append(_packed(x))
            labels.append(y)
            seen += len(y)
            used += parts[-1].nbytes
            needed = max(used, used / seen * (total or 0)) / GIB
            if needed > memory:
                problem = f"{total or 'the'} images take {needed:.3g} GiB, memory is {memory:g}"
                raise InputError(f"{problem}: make them smaller, or raise memory of from_loader")
            meter(len(y))
    if not parts:
        raise InputError("there are no images to train on: the loader is empty")
    return Split(_together(parts, seen), torch.cat(labels))


def _batches(source: Source) -> Iterator[tuple[Tensor, Tensor]]:
    """Batch by batch in the order of the images."""
    loader = source if isinstance(source, DataLoader) else DataLoader(source, batch_size=256)
    in_order = (RandomSampler, SequentialSampler)
    if isinstance(source, DataLoader) and source.batch_size and type(source.sampler) in in_order:
        how: Any = {"num_workers": source.num_workers, "collate_fn": source.collate_fn}
        loader = DataLoader(source.dataset, source.batch_size, **how)
    try:
        yield from pairs(loader)
    except TypeError as error:
        remedy = "give the dataset a transform that makes tensors, ToTensor()"
        raise InputError(f"the images cannot be read ({error}): {remedy}") from error


def _packed(x: Tensor) -> Tensor:
    """Bytes, where the floats are such shares of 255; otherwise float32."""
    if not x.is_floating_point():
        return x.cpu()
    x = x.detach().float().cpu()
    levels = x.mul(255).round().clamp(0, 255).to(torch.uint8)
    return levels if torch.equal(levels.float().div_(255), x) else x


def _together(parts: list[Tensor], count: int) -> Tensor:
    """All in one tensor. Each part is dropped once it is copied, so that the memory for all is
    needed but once."""
    types = {part.dtype for part in parts}
    whole = torch.empty((count, *parts[0].shape[1:]), dtype=max(types, key=lambda t: t.itemsize))
    position = 0
    while parts:
        part = parts.pop(0)
        if part.dtype != whole.dtype:
            part = part.float().div_(255)
        whole[position : position + len(part)] = part
        position += len(part)
    return whole
