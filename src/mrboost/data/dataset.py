"""What a dataset is: two splits of tensors, the names of the classes, and its usual options.

``to_split`` takes images and labels in any form. ``Split`` checks their shapes and types, and
``Dataset`` their values (range, NaN, labels), so that all other code can rely on both.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data import Dataset as TorchDataset

from mrboost.data.mapped import Mapped
from mrboost.errors import InputError, reading, unknown_name
from mrboost.seeds import derive

MAX_CLASSES = 100_000
MIN_STD = 1e-3  # a constant channel must not turn normalisation into a division by zero


@dataclass(frozen=True, eq=False)
class Split:
    """Images and labels of one part: x (N, C, H, W), uint8 or float32 in [0, 1]; y (N,), int64.

    Of more images than memory should hold, x is ``Mapped``: they stay in a file, and so do those of
    a part, until ``images`` or ``x[index]`` reads them.
    """

    x: Tensor | Mapped
    y: Tensor

    def __repr__(self) -> str:
        return f"Split({len(self.x):,} images of {'×'.join(map(str, self.x.shape[1:]))})"

    def __post_init__(self) -> None:
        if self.x.ndim != 4 or self.x.dtype not in (torch.uint8, torch.float32):
            found = f"images have shape {tuple(self.x.shape)} and type {self.x.dtype}"
            raise InputError(f"{found}: give (N, C, H, W), uint8 or float32 in [0, 1]")
        if self.y.ndim != 1 or self.y.dtype != torch.int64:
            found = f"labels have shape {tuple(self.y.shape)} and type {self.y.dtype}"
            raise InputError(f"{found}: give (N,), int64")
        if len(self.x) != len(self.y):
            raise InputError(f"{len(self.x)} images but {len(self.y)} labels: give one for each")

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: slice | Tensor) -> Split:
        x = self.x.select(index) if isinstance(self.x, Mapped) else self.x[index]
        return Split(x, self.y[index])

    def to(self, device: str | torch.device) -> Split:
        return Split(self.x.to(device), self.y.to(device))

    def images(self) -> Tensor:
        """The images as float32 in [0, 1]."""
        x = self.x[:] if isinstance(self.x, Mapped) else self.x
        return x if x.dtype == torch.float32 else x.to(torch.float32).div_(255)

    def parts(self) -> Iterator[Split]:
        """Some of the images at a time, where they are in a file; else all."""
        size = self.x.part if isinstance(self.x, Mapped) else max(1, len(self))
        return (self[start : start + size] for start in range(0, len(self), size))

    def fingerprint(self) -> str:
        """A hash of images and labels: another order or pixel gives another one."""
        digest = hashlib.blake2b(digest_size=8)
        digest.update(repr((tuple(self.x.shape), self.x.dtype)).encode())
        for part in self.x.parts() if isinstance(self.x, Mapped) else [self.x]:
            digest.update(part[:].cpu().contiguous().numpy().data)
        digest.update(repr((tuple(self.y.shape), self.y.dtype)).encode())
        digest.update(self.y.cpu().contiguous().numpy().data)
        return digest.hexdigest()

    def channel_stats(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Mean and standard deviation of each channel, in [0, 1] units."""
        total = torch.zeros(self.x.shape[1], dtype=torch.float64, device=self.x.device)
        squares = torch.zeros_like(total)
        whole = self.x.dtype == torch.uint8
        # Not all in float64 at once; sums of whole numbers are exact, however many at a time
        step = max(1, min(1024, 2**22 // self.x.shape[1:].numel())) if whole else 1024
        for start in range(0, len(self), step):
            values = self.x[start : start + step].to(torch.float64)
            total += values.sum(dim=(0, 2, 3))
            squares += values.square().sum(dim=(0, 2, 3))
        count = self.x.shape.numel() // self.x.shape[1]
        scale = 255.0 if whole else 1.0
        mean = total / count
        std = (squares / count - mean.square()).clamp(min=0).sqrt() / scale
        return tuple((mean / scale).tolist()), tuple(std.clamp(min=MIN_STD).tolist())


@dataclass(frozen=True)
class Defaults:
    """The threat model and the recipe that are usual for a dataset, for options that are not
    given."""

    eps: float
    step_size: float
    model: str
    epochs: int
    padding: int
    flip: bool


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training and test images with the classes' names, and what is usual for them.

    Attributes:
        facts: what is known of the training images without a look at them: "fingerprint", "mean"
            and "std".
    """

    name: str
    train: Split
    test: Split
    classes: tuple[str, ...]
    defaults: Defaults
    facts: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_values(self.train, len(self.classes), f"{self.name} train")
        _check_values(self.test, len(self.classes), f"{self.name} test")
        if len(self.classes) < 2:
            raise InputError(f"{self.name} has {len(self.classes)} class: give at least two")
        test_shape = tuple(self.test.x.shape[1:])
        if self.shape != test_shape:
            shapes = f"training images are {self.shape} but test images are {test_shape}"
            raise InputError(f"{self.name}: {shapes}: resize them")

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W) of every image."""
        _, channels, height, width = self.train.x.shape
        return channels, height, width

    def fingerprint(self) -> str:
        """A hash of the training images and labels: another order or pixel gives another one."""
        return str(self.facts.get("fingerprint") or self.train.fingerprint())

    def channel_stats(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Mean and standard deviation of each channel of the training images, in [0, 1] units."""
        if "mean" in self.facts:
            return tuple(self.facts["mean"]), tuple(self.facts["std"])
        return self.train.channel_stats()


Array = Tensor | np.ndarray


def from_tensors(
    x_train: Array,
    y_train: Array,
    x_test: Array,
    y_test: Array,
    *,
    name: str = "tensors",
    classes: Sequence[str] | None = None,
    **defaults: Any,
) -> Dataset:
    """A dataset of your own tensors or arrays.

    Args:
        x_train: images (N, C, H, W), or grey ones (N, H, W): uint8, or floats in [0, 1].
        y_train: whole numbers (N,), or one-hot labels (N, K).
        x_test: as ``x_train``, and ``y_test`` as ``y_train``.
        name: what messages and run folders call the dataset.
        classes: names of the labels 0, 1, …; without them their numbers.
        defaults: fields of ``Defaults`` to change.

    Example:
        >>> x, y = torch.rand(6, 3, 8, 8), torch.arange(6) % 2
        >>> from_tensors(x, y, x, y, classes=["cat", "dog"], eps=0.1).num_classes
        2
    """
    train = to_split(x_train, y_train)
    test = to_split(x_test, y_test)
    if classes is None:
        largest = int(train.y.max()) if len(train) else 0
        if largest >= MAX_CLASSES:
            raise InputError(f"label {largest} makes more than {MAX_CLASSES:,} classes: renumber")
        classes = [str(label) for label in range(largest + 1)]
    usual = usual_defaults(train.x.shape[2])
    if unknown := defaults.keys() - asdict(usual).keys():
        raise unknown_name("default", min(unknown), asdict(usual))
    return Dataset(name, train, test, tuple(classes), replace(usual, **defaults))


def to_split(x: object, y: object, where: object = None) -> Split:
    """A checked split of images and labels in any of their usual forms.

    Args:
        x: images (N, C, H, W), or grey ones (N, H, W): a tensor, an array or nested lists.
        y: labels (N,), (N, 1) or one-hot (N, K).
        where: the file they come from, for messages.
    """
    try:
        images, labels = as_tensors(x, y)
        if images.ndim == 3:
            images = images[:, None]
        _, rows, columns, channels = images.shape if images.ndim == 4 else (0, 0, 0, 0)
        if rows == columns > 3 and channels in (1, 3):
            raise InputError(f"images have shape {tuple(images.shape)}: put the channels first")
        if labels.ndim == 2 and labels.shape[1] == 1:
            labels = labels[:, 0]
        return Split(images.float() if images.is_floating_point() else images, labels)
    except InputError as error:
        raise InputError(f"{where}: {error}" if where else str(error)) from None


def as_tensors(x: object, y: object) -> tuple[Tensor, Tensor]:
    """Images and labels as dense tensors, which share memory with what is given where they can.

    Args:
        x: images (N, …): a tensor, an array or nested lists.
        y: labels (N,) or one-hot (N, K), also as whole numbers of any type.

    Returns:
        The images, and the labels as int64 (floats that are not one-hot stay floats).
    """
    images = _dense(x, "images")
    y = _dense(y, "labels")
    if images.ndim < 2 or y.ndim < 1:
        shapes = f"{tuple(images.shape)} and {tuple(y.shape)}"
        raise InputError(f"images must be a batch (N, …) with N labels, got shapes {shapes}")
    if images.shape[1:].numel() == 0:
        raise InputError(f"images have shape {tuple(images.shape)}: they have no pixels")
    if not y.is_floating_point():
        y = y.long()
    is_binary = bool(((y == 0) | (y == 1)).all())
    if y.ndim == 2 and y.shape[1] > 1 and is_binary and (y.sum(dim=1) == 1).all():
        y = y.argmax(dim=1)
    return images, y


def pairs(batches: Iterable[Any]) -> Iterator[tuple[Tensor, Tensor]]:
    """Images and labels of each batch as tensors; refuses what is no pair of them, and images of
    several shapes."""
    shape = None
    for pair in batches:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise InputError(
                f"batches are pairs (images, labels), got {type(pair).__name__}: choose two of "
                "each, as in ((batch[0], batch[1]) for batch in loader)"
            )
        x, y = as_tensors(*pair)
        shape = shape or x.shape[1:]
        if x.shape[1:] != shape:
            shapes = f"{tuple(shape)} and {tuple(x.shape[1:])}"
            raise InputError(
                f"images must all have the same shape, got {shapes}: resize or crop them"
            )
        yield x, y


def count(source: object) -> int | None:
    """How many images there are, if that is known; of a ``DataLoader`` that drops its last batch,
    how many there are with that."""
    if isinstance(source, DataLoader):
        source = source.sampler if source.batch_size is not None else None
    elif not (isinstance(source, Tensor | np.ndarray | Split) or is_map(source)):
        return None
    return len(source) if isinstance(source, Sized) else None


def is_map(source: object) -> bool:
    """Whether it is a dataset of single images, by number."""
    return isinstance(source, TorchDataset) and not isinstance(source, IterableDataset)


def _dense(value: object, what: str) -> Tensor:
    """A plain tensor that shares the memory of ``value`` where it can."""
    if not isinstance(value, Tensor):
        with reading(f"{what} cannot be read as an array of numbers", "give numbers of one shape"):
            array = np.asarray(value)
            native = array.astype(array.dtype.newbyteorder("="), copy=False)
            value = torch.from_numpy(np.require(native, requirements=["C", "W"]))
    if value.is_nested or value.layout != torch.strided or value.is_meta or value.is_quantized:
        raise InputError(f"{what}: a nested, sparse, quantized or meta tensor: give a dense one")
    if value.is_complex():
        raise InputError(f"{what} are complex numbers ({value.dtype}): give real ones")
    return value.detach()


def usual_defaults(height: int) -> Defaults:
    """The defaults of colour photographs, for datasets of the user's own."""
    return Defaults(8 / 255, 2 / 255, "resnet18", epochs=100, padding=height // 8, flip=True)


def _check_values(split: Split, num_classes: int, where: str) -> None:
    if split.x.shape.numel() == 0:
        raise InputError(f"{where}: images have shape {tuple(split.x.shape)}: there are none")
    wrong = split.y[(split.y < 0) | (split.y >= num_classes)]
    if len(wrong):
        label = f"label {int(wrong[0])} is out of range"
        raise InputError(
            f"{where}: {label}: those of {num_classes} classes are 0..{num_classes - 1}"
        )
    if isinstance(split.x, Tensor) and split.x.dtype == torch.float32:
        low, high = (float(bound) for bound in split.x.aminmax())
        if not (low >= 0 and high <= 1):  # of NaN, too
            span = f"pixels span [{low:g}, {high:g}]"
            raise InputError(f"{where}: {span}: rescale them to [0, 1], and repair NaN")


def rank_in_class(y: Tensor) -> Tensor:
    """For each example, how many earlier ones share its label: [5, 7, 5, 5] -> [0, 0, 1, 2]."""
    counts = y.bincount()
    order = y.argsort(stable=True)
    first = counts.cumsum(0) - counts
    rank = torch.empty_like(y)
    rank[order] = torch.arange(len(y), device=y.device) - first[y[order]]
    return rank


def hold_out(train: Split, count: int, seed: int) -> tuple[Split, Split]:
    """(rest, validation): ``count`` images drawn from ``train`` by ``drawn``; both parts keep its
    order."""
    held = drawn(train, count, seed)
    return train[~held], train[held]


def validation_split(train: Split, count: int) -> tuple[Split, Split]:
    """(rest, validation): the same ``count`` images for every seed of a training.

    So networks of several seeds can be joined and weighted on images that none of them was trained
    on.
    """
    return hold_out(train, count, derive(0, "hold out"))


def drawn(train: Split, count: int, seed: int) -> Tensor:
    """A stratified random sample of ``count`` images, as a mask (N,).

    Shares of the classes are rounded by largest remainder, so that each is within one image of its
    exact share. Classes of one image are not drawn from while the others have enough. The draw
    depends on ``seed`` alone, not on the device nor on the global random state.
    """
    if not 0 <= count < len(train):
        raise InputError(f"cannot hold out {count} of {len(train)} images: some must be left")
    generator = torch.Generator().manual_seed(seed)
    y = train.y.cpu()
    sizes = y.bincount()
    several = sizes * (sizes > 1)  # the only image of a class is for training
    if int(several.sum()) >= count:
        sizes = several
    total = int(sizes.sum())
    exact = sizes * count  # in units of 1 / total, so that the remainders stay whole numbers
    shares = exact // total
    # Ties between remainders go to a random class: otherwise the first labels
    # would always get more.
    tie_break = torch.rand(len(sizes), generator=generator, dtype=torch.float64)
    remainders = (exact % total).to(torch.float64) + tie_break
    shares[remainders.argsort(descending=True)[: count - int(shares.sum())]] += 1

    held = torch.zeros(len(train), dtype=torch.bool)
    for label, share in enumerate(shares.tolist()):
        members = (y == label).nonzero().squeeze(1)
        held[members[torch.randperm(len(members), generator=generator)[:share]]] = True
    return held.to(train.y.device)
