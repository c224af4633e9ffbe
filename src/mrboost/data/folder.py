"""The user's own images: a tree split/class/image, as a directory or inside a tar or zip archive.

    train/cat/1.png   train/dog/a.jpg   …   test/cat/7.png   …
    (in an archive, also below one top folder)

The test split may be called test, val, validation or valid; the first of these that exists is used.
The order of the images depends on their paths alone, and goes round the classes (the first image of
each class, then the second of each, …), so that the first n images are a balanced sample for any n.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from tqdm import tqdm

from mrboost.data.archives import Budget, Member, members, reading
from mrboost.data.dataset import Split, rank_in_class
from mrboost.errors import InputError
from mrboost.files import require_regular

TEST_NAMES = ("test", "val", "validation", "valid")
SPLIT_NAMES = ("train", *TEST_NAMES)
SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp")
LAYOUT = f"expected train/CLASS/IMAGE and test/CLASS/IMAGE (IMAGE: {', '.join(SUFFIXES)})"
# Only these decoders: others that Pillow knows start programs (EPS) or are seldom used and tested.
FORMATS = ("PNG", "JPEG", "BMP", "WEBP")
GREY_MODES = ("1", "L", "LA")
# More than 8 bits: Pillow would clip, not rescale
DEEP_MODES = ("I", "F", "I;16", "I;16L", "I;16B", "I;16N")
MAX_PIXELS = 4096 * 4096
UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")

Pixels = NDArray[np.uint8]  # (1 or 3, H, W)
Classes = dict[str, dict[str, Pixels]]  # class -> file -> image


class Place(NamedTuple):
    """Where an image stands in the layout."""

    split: PurePosixPath  # "train", or "top/train" in an archive with a top folder
    label: str
    file: str  # empty for the folder of the class itself


def read_folder(path: Path) -> tuple[Split, Split, tuple[str, ...]]:
    """(train, test, classes) of a tree of images; raises InputError for anything but the layout
    above, and beyond the budget of ``archives.Budget``."""
    if not path.exists():
        raise InputError(f"{path} does not exist: give a folder or an archive; {LAYOUT}")
    found = _images(path)
    names = {split.name: split for split in found}
    test_name = next((name for name in TEST_NAMES if name in names), "")
    if "train" not in names or not test_name or len({split.parent for split in found}) > 1:
        listing = ", ".join(sorted(f"{split}/" for split in found)) or "neither"
        raise InputError(f"{path}: {LAYOUT}; found {listing}")
    splits = {name: found[names[name]] for name in ("train", test_name)}
    classes = _common_classes(path, splits)
    shape = _common_shape(path, splits)
    train, test = (_stacked(split, classes, shape) for split in splits.values())
    return train, test, classes


def _images(path: Path) -> dict[PurePosixPath, Classes]:
    """The decoded images of each split. No threads: small images take most of their time in
    Python, and two threads took longer."""
    budget = Budget(path)
    source = _tree(path, budget) if path.is_dir() else members(path, _is_image, budget)
    found: dict[PurePosixPath, Classes] = {}
    for member in tqdm(
        source, desc=f"reading {path.name}", unit=" images", disable=None, delay=2, leave=False
    ):
        place = _place(member, path)
        if place is None:
            continue
        files = found.setdefault(place.split, {}).setdefault(place.label, {})
        if place.file in files:
            raise InputError(f"{path}: {member.path} is there twice: pack it again")
        if member.data is not None:
            files[place.file] = _decode(member.data, f"{path}: {member.path}", budget)
    return found


def _tree(root: Path, budget: Budget) -> Iterator[Member]:
    """The folders and images of a directory, down to a level too deep, which `_place` reports."""
    test_name = next((name for name in TEST_NAMES if (root / name).is_dir()), "test")
    for split in ("train", test_name):
        for path in _below(root / split, levels=3):
            relative = PurePosixPath(path.relative_to(root))
            if path.is_dir():
                yield Member(relative, None)
            elif _is_image(relative):
                require_regular(path)
                budget.add_file(str(relative), path.stat().st_size)
                yield Member(relative, path.read_bytes())


def _below(folder: Path, levels: int) -> Iterator[Path]:
    """What lies in a folder and, so many levels down, in its folders; nothing hidden."""
    if levels and folder.is_dir():
        for path in folder.iterdir():
            if not path.name.startswith("."):
                yield path
                yield from _below(path, levels - 1)


def _is_image(path: PurePosixPath) -> bool:
    # "._cat.png" and "__MACOSX/" are what a Mac adds to its archives.
    hidden = path.name.startswith(".") or "__MACOSX" in path.parts
    return path.suffix.lower() in SUFFIXES and not hidden


def _place(member: Member, path: Path) -> Place | None:
    """Where a member stands in the layout; None for what is no part of it."""
    parts = member.path.parts if member.data is not None else (*member.path.parts, "")
    if len(parts) >= 3 and parts[-3] in SPLIT_NAMES and not parts[-2].startswith("."):
        if UNPRINTABLE.search(parts[-2]):
            raise InputError(f"{path}: the class {parts[-2]!r} has control characters: rename it")
        return Place(PurePosixPath(*parts[:-2]), *parts[-2:])
    if member.data is not None and any(name in parts for name in SPLIT_NAMES):
        raise InputError(f"{path}: {member.path} is not at split/class/image; {LAYOUT}")
    return None


def _decode(content: bytes, where: str, budget: Budget) -> Pixels:
    """(1 or 3, H, W): one channel for a grey image, red, green and blue for all others."""
    from PIL import Image

    with (
        reading(f"{where} cannot be read as an image", "repair or remove it"),
        Image.open(io.BytesIO(content), formats=FORMATS) as image,
    ):
        pixels = image.width * image.height
        if pixels > MAX_PIXELS:
            size = f"{image.width}x{image.height}"
            raise InputError(f"{where} has {size} pixels, too many: resize it")
        if image.mode in DEEP_MODES:
            raise InputError(f"{where} has more than 8 bits per channel: save it with 8")
        channels = 1 if image.mode in GREY_MODES else 3
        budget.add_memory(2 * channels * pixels)  # here, and in the tensor that they are copied to
        if channels == 1:
            return np.asarray(image.convert("L"))[None]
        return np.asarray(image.convert("RGB")).transpose(2, 0, 1)


def _common_classes(path: Path, splits: dict[str, Classes]) -> tuple[str, ...]:
    classes = sorted({label for split in splits.values() for label in split})
    for name, split in splits.items():
        missing = [label for label in classes if not split.get(label)]
        if missing:
            problem = f"{path}: no image of class {', '.join(missing)} in {name}"
            raise InputError(f"{problem}: add some to each split, or remove the class")
    return tuple(classes)


def _common_shape(path: Path, splits: dict[str, Classes]) -> tuple[int, int, int]:
    shapes = {
        f"{name}/{label}/{file}": pixels.shape
        for name, split in splits.items()
        for label, files in sorted(split.items())
        for file, pixels in sorted(files.items())
    }
    first, (_, height, width) = next(iter(shapes.items()))
    for file, (_, rows, columns) in shapes.items():
        if (rows, columns) != (height, width):
            sizes = f"is {columns}x{rows} pixels but {width}x{height} is expected, as in {first}"
            raise InputError(f"{path}: {file} {sizes}: resize the images to one size")
    return max(channels for channels, _, _ in shapes.values()), height, width


def _stacked(split: Classes, classes: tuple[str, ...], shape: tuple[int, int, int]) -> Split:
    images = [pixels for label in classes for _, pixels in sorted(split[label].items())]
    counts = torch.tensor([len(split[label]) for label in classes])
    y = torch.arange(len(classes)).repeat_interleave(counts)
    order = rank_in_class(y).argsort(stable=True)
    x = torch.empty((len(images), *shape), dtype=torch.uint8)
    rows = x.numpy()
    for row, index in enumerate(order.tolist()):
        rows[row] = images[index]  # a grey image among coloured ones fills all three channels
    return Split(x, y[order])
