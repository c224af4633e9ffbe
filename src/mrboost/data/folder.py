"""The user's own images: a tree split/class/image, as a directory or inside a tar or zip archive.

    train/cat/1.png   train/dog/a.jpg   …   test/cat/7.png   …
    (in an archive, also below one top folder)

The test split may be called test, val, validation or valid; the first of these that exists is used.
Without one, ``test-share`` takes a share of each class for it, of train/class/image or of
class/image alike. The order of the images depends on their paths alone, and goes round the classes
(the first image of each class, then the second of each, …), so that the first n images are a
balanced sample for any n.

The source is read twice: once to learn what is there, once to decode each image into its place:
in memory, or, beyond ``IN_MEMORY``, in a file (``packing.py``) that later loads find again.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields, replace
from itertools import islice
from math import prod
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from mrboost.data.archives import Budget, Member, Wanted, members
from mrboost.data.dataset import Split, rank_in_class
from mrboost.data.decoding import Background, Decoder, Pixels, UnusableError
from mrboost.data.mapped import Facts, Mapped, Pack, Progress, cache
from mrboost.errors import UNPRINTABLE, InputError, reason, unknown_name
from mrboost.files import require_regular

FOLDER = "folder:"
TEST_NAMES = ("test", "val", "validation", "valid")
SPLIT_NAMES = ("train", *TEST_NAMES)
SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp")
LAYOUT = f"expected train/CLASS/IMAGE and test/CLASS/IMAGE (IMAGE: {', '.join(SUFFIXES)})"
MAX_SIZE = 4096  # pixels
IN_MEMORY = 2**29
"""Bytes of pixels from which on they are packed into a file."""
SAVE_EVERY = 5.0
"""Seconds between two notes of what is packed."""
LARGE = 2**14
"""Numbers in an image from which on several threads decode."""
SHOWN = 3
"""Files that a message names; it counts the others."""


@dataclass(frozen=True)
class Pictures:
    """What a name such as ``folder:pets.zip?size=64&test-share=0.2`` stands for.

    Attributes:
        path: the folder or archive.
        size: the shorter side of each image is resized to it, and the centre cut out; None: as it
            is.
        test_share: the share of each class that is for testing, where there is no test folder.
        background: what transparent images are laid on.
    """

    path: Path
    size: int | None = None
    test_share: float | None = None
    background: Background = "white"

    def __post_init__(self) -> None:
        size, share = self.size, self.test_share
        if size is not None and not 1 <= size <= MAX_SIZE:
            raise InputError(f"size must be 1 to {MAX_SIZE} pixels, got {size}")
        if share is not None and not 0 < share < 1:
            raise InputError(f"test-share must be more than 0 and less than 1, got {share:g}")
        if self.background not in (choices := get_args(Background)):
            raise InputError(f"background is {' or '.join(choices)}, got {self.background!r}")

    @classmethod
    def named(cls, name: str) -> Pictures:
        """Read such a name."""
        text = name.removeprefix(FOLDER)
        path, mark, given = text.rpartition("?")
        if not mark or "=" not in given or "/" in given:
            path, given = text, ""
        if not path:
            raise InputError(f"{FOLDER} needs a path, as in {FOLDER}pictures.zip; {LAYOUT}")
        values: dict[str, Any] = {}
        for pair in filter(None, given.split("&")):
            key, _, value = pair.partition("=")
            if key not in OPTIONS:
                raise unknown_name("option of folder:", key, OPTIONS)
            try:
                values[key.replace("-", "_")] = OPTIONS[key](value)
            except ValueError:
                raise InputError(f"{name}: {key} must be a number, got {value!r}") from None
        return cls(user_path(path), **values)

    def __str__(self) -> str:
        values = {key: getattr(self, key.replace("-", "_")) for key in OPTIONS}
        usual = {field.name.replace("_", "-"): field.default for field in fields(self)}
        given = "&".join(f"{key}={value}" for key, value in values.items() if value != usual[key])
        return f"{FOLDER}{self.path}{'?' if given else ''}{given}"


OPTIONS: Mapping[str, Any] = {"size": int, "test-share": float, "background": str}
"""What may follow the path, and what makes its value of a text."""


def user_path(path: str | Path) -> Path:
    """A path as the user wrote it, with ~ for a home."""
    try:
        str(path).encode()  # messages and run folders hold it as UTF-8
        return Path(path).expanduser()
    except (UnicodeEncodeError, RuntimeError) as error:  # RuntimeError: no home
        problem = f"{str(path)!r} is no path here ({reason(error)})"
        raise InputError(f"{problem}: write another") from None


def read_folder(source: Pictures) -> tuple[Split, Split, tuple[str, ...], Facts]:
    """(train, test, classes, facts) of a tree of images; raises InputError for anything but the
    layout above, and beyond the budget of ``archives.Budget``. ``facts`` are those of ``Dataset``.
    """
    if not source.path.exists():
        raise InputError(f"{source.path} does not exist: give a folder or an archive; {LAYOUT}")
    place = _place_of_pack(source)
    pack = None
    if place is not None and place.exists():
        pack = Pack(place, _digest(source))
        if (known := pack.facts()) is not None:
            return *_splits_of(pack.open(known), known), known
    survey = _survey(source, place)
    plan = _plan(source, survey)
    size = len(plan.rows) * prod(plan.shape)
    facts: Facts = {"shape": plan.shape, "counts": plan.counts, "classes": plan.classes}
    if place is None or size <= IN_MEMORY:
        x = np.empty((len(plan.rows), *plan.shape), np.uint8)
        progress = _decode(source, plan.rows, x, Progress(0, survey.problems), print)
        _refuse(source, progress.problems)
        return *_splits_of(torch.from_numpy(x), facts), {}
    _refuse(source, survey.problems)

    def fill(x: np.ndarray, done: Progress, save: Callable[[Progress], None]) -> Progress:
        return _decode(source, plan.rows, x, done, save)

    def describe(images: Mapped) -> Facts:
        train, _, _ = _splits_of(images, facts)
        mean, std = train.channel_stats()
        return {"fingerprint": train.fingerprint(), "mean": mean, "std": std}

    pack = pack or Pack(place, _digest(source))
    facts, problems = pack.make(facts, fill, describe)
    _refuse(source, problems)
    return *_splits_of(pack.open(facts), facts), facts


def _splits_of(images: Tensor | Mapped, facts: Facts) -> tuple[Split, Split, tuple[str, ...]]:
    """Training and test images of all, in the order that a plan gives them; the classes."""
    labels = []
    for counts in facts["counts"]:
        y = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
        labels.append(y[rank_in_class(y).argsort(stable=True)])
    whole, count = Split(images, torch.cat(labels)), len(labels[0])
    return whole[:count], whole[count:], tuple(facts["classes"])


def _place_of_pack(source: Pictures) -> Path | None:
    """The folder of the packed images, which may not be there; None where there is no cache."""
    name = str(replace(source, path=source.path.absolute()))
    place = cache()
    return place and place / "packed" / f"{source.path.name}-{_hash(name).hex()[:16]}"


def _digest(source: Pictures) -> str:
    """Stands for the names, sizes and times of change of the files."""
    found = hashlib.blake2b(f"1 {source}".encode(), digest_size=16)
    for path in _files(source) if source.path.is_dir() else [source.path]:
        facts = path.stat()
        found.update(f"{path.name} {path.parent} {facts.st_size} {facts.st_mtime_ns} ".encode())
    return found.hexdigest()


@dataclass
class _Survey:
    """What there is, by the path in the source: the shape of each image (channels, height, width),
    why one cannot be used, and the folders."""

    images: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    folders: list[str] = field(default_factory=list)


class Plan(NamedTuple):
    """Where each image goes.

    Attributes:
        classes: their names.
        counts: of the training and of the test images, how many each class has.
        rows: the place of each file among all images, those for training first.
        shape: (channels, height, width) of all.
    """

    classes: tuple[str, ...]
    counts: tuple[list[int], list[int]]
    rows: dict[str, int]
    shape: tuple[int, int, int]


def _survey(source: Pictures, place: Path | None) -> _Survey:
    """``place``: a folder on whose disk there may be more pixels than in memory."""
    budget = Budget(source.path, room=_disk(place))
    decoder = Decoder(source.size, source.background)
    found = _Survey()
    shapes: dict[Any, Any] = {}  # one object for all images of a shape
    for member in _progress(_members(source, is_image, budget), f"reading {source.path.name}"):
        name = str(member.path)
        if member.data is None:
            found.folders.append(name)
            continue
        if name in found.images or name in found.problems:
            raise InputError(f"{source.path}: {name} is there twice: pack it again")
        try:
            shape = decoder.shape(member.data)
        except UnusableError as error:
            found.problems[name] = str(error)
            continue
        budget.add_memory(shape[0] * shape[1] * shape[2])
        found.images[name] = shapes.setdefault(shape, shape)
    return found


def _disk(place: Path | None) -> int:
    """The size of the disk that a folder is on, or will be."""
    there = next((folder for folder in place.parents if folder.exists()), None) if place else None
    return shutil.disk_usage(there).total if there else 0


def _decode(
    source: Pictures,
    rows: Mapping[str, int],
    x: np.ndarray,
    progress: Progress,
    save: Callable[[Progress], None],
) -> Progress:
    """Decode each image into its row of ``x``.

    Several threads share large images. Small ones take most of their time in Python, and two
    threads took longer.
    """
    decoder = Decoder(source.size, source.background)
    problems = dict(progress.problems)
    skip = iter(range(progress.done))

    def wanted(path: PurePosixPath) -> bool:
        return str(path) in rows and next(skip, None) is None

    def decoded(member: Member) -> Pixels | UnusableError:
        try:
            return decoder.pixels(member.data or b"")
        except UnusableError as error:
            return error

    done, saved = progress.done, time.monotonic()
    found = _members(source, wanted, Budget(source.path))
    files = (member for member in found if member.data is not None)
    shown = iter(_progress(files, f"decoding {source.path.name}", done, len(rows)))
    threads = min(16, os.cpu_count() or 1) if prod(x.shape[1:]) > LARGE else 1
    with ThreadPoolExecutor(threads) as pool:
        while some := list(islice(shown, 4 * threads)):
            results = pool.map(decoded, some) if threads > 1 else map(decoded, some)
            for member, pixels in zip(some, results, strict=True):
                name = str(member.path)
                if isinstance(pixels, UnusableError):
                    problems[name] = str(pixels)
                elif name not in problems:  # it has another size
                    # a grey image among coloured ones fills all three channels
                    x[rows[name]] = pixels
            done += len(some)
            if time.monotonic() - saved >= SAVE_EVERY:
                save(Progress(done, problems))
                saved = time.monotonic()
    return Progress(done, problems)


def _refuse(source: Pictures, problems: Mapping[str, str]) -> None:
    """One line about all files that cannot be used, if there are any."""
    if problems:
        shown = [f"{name} {problems[name]}" for name in sorted(problems)[:SHOWN]]
        rest = len(problems) - len(shown)
        more = f"; and {rest:,} more, {len(problems):,} in all" if rest else ""
        remedy = "repair, resize or remove them"
        if source.size is None and any("is expected" in why for why in problems.values()):
            remedy += ", or give a size to resize all to (--size 64, say)"
        raise InputError(f"{source.path}: {'; '.join(shown)}{more}: {remedy}")


def _progress(
    source: Iterable[Member], what: str, done: int = 0, total: int | None = None
) -> Iterable[Member]:
    shown: Any = {"disable": None, "delay": 2, "leave": False, "initial": done, "total": total}
    bar: Iterable[Member] = tqdm(source, desc=what, unit=" images", **shown)
    return bar


def _members(source: Pictures, wanted: Wanted, budget: Budget) -> Iterator[Member]:
    if source.path.is_dir():
        return _tree(source, wanted, budget)
    return members(source.path, wanted, budget)


def _tree(source: Pictures, wanted: Wanted, budget: Budget) -> Iterator[Member]:
    """The folders and images of a directory."""
    for path in _files(source, folders=True):
        relative = PurePosixPath(path.relative_to(source.path))
        if path.is_dir():
            yield Member(relative, None)
        elif wanted(relative):
            require_regular(path)
            facts = path.stat()
            budget.stored += facts.st_size
            budget.add_file(str(relative), facts.st_size)
            yield Member(relative, path.read_bytes())


def _files(source: Pictures, *, folders: bool = False) -> Iterator[Path]:
    """The images of a directory, down to a level too deep, which is reported; and the folders."""
    root = source.path
    test_name = next((name for name in TEST_NAMES if (root / name).is_dir()), "test")
    places = [root / "train", root / test_name]
    levels = 3
    if source.test_share is not None and not any(place.is_dir() for place in places):
        places, levels = [root], 2
    for place in places:
        for path in _below(place, levels):
            is_folder = path.is_dir()
            if (is_folder and folders) or (not is_folder and is_image(PurePosixPath(path.name))):
                yield path


def _below(folder: Path, levels: int) -> Iterator[Path]:
    """What lies in a folder and, so many levels down, in its folders; nothing hidden."""
    if levels and folder.is_dir():
        for path in sorted(folder.iterdir()):
            if not path.name.startswith("."):
                yield path
                yield from _below(path, levels - 1)


def is_image(path: PurePosixPath) -> bool:
    """Whether a file is one, by its name."""
    # "._cat.png" and "__MACOSX/" are what a Mac adds to its archives.
    hidden = path.name.startswith(".") or "__MACOSX" in path.parts
    return path.suffix.lower() in SUFFIXES and not hidden


Classes = dict[str, list[str]]
"""Of each class, the paths of its images in the source."""


def _plan(source: Pictures, survey: _Survey) -> Plan:
    """Which images are for training and for testing, and in which order; files that differ from
    most are added to the problems."""
    splits = _splits(source, survey)
    classes = _common_classes(source.path, splits)
    placed = [name for split in splits for names in split.values() for name in names]
    for name in survey.problems.keys() - set(placed):  # no part of the data set
        del survey.problems[name]
    shape = _common_shape(survey, placed)
    rows: dict[str, int] = {}
    counts: list[list[int]] = []
    for split in splits:
        files = [sorted(split[label]) for label in sorted(split)]
        counts.append([len(names) for names in files])
        turns = sorted((turn, k) for k, names in enumerate(files) for turn in range(len(names)))
        for turn, k in turns:
            rows[files[k][turn]] = len(rows)
    return Plan(classes, (counts[0], counts[1]), rows, shape)


def _splits(source: Pictures, survey: _Survey) -> tuple[Classes, Classes]:
    """The classes of the training and of the test images."""
    path, share = source.path, source.test_share
    names = [*survey.images, *survey.problems]
    has_splits = any(part in SPLIT_NAMES for name in names for part in Path(name).parts[:-2])
    flat = share is not None and not has_splits
    found: dict[PurePosixPath, Classes] = defaultdict(lambda: defaultdict(list))
    for name in (*names, *(f"{folder}/" for folder in survey.folders)):
        if place := _place(name, path, flat):
            split, label = place
            found[split][label] += [] if name.endswith("/") else [name]
    by_name = {split.name: split for split in found}
    test = next((name for name in TEST_NAMES if name in by_name), "")
    if share is not None and test:
        raise InputError(f"{path} has a folder {test}: leave test-share out")
    if "train" not in by_name or not (test or share) or len({s.parent for s in found}) > 1:
        listing = ", ".join(sorted(f"{split}/" for split in found)) or "neither"
        hint = ", or give a share of the images for testing (--test-share 0.2)"
        remedy = "" if test else hint
        raise InputError(f"{path}: {LAYOUT}; found {listing}{remedy}")
    train = found[by_name["train"]]
    return _shared(path, train, share) if share else (train, found[by_name[test]])


def _shared(path: Path, train: Classes, share: float) -> tuple[Classes, Classes]:
    """The images of each class in two parts, by a hash of their names: the same ones each time."""
    rest: Classes = {}
    test: Classes = {}
    for label, names in train.items():
        if len(names) == 1:
            raise InputError(f"{path}: class {label} has one image: test-share needs two of each")
        drawn = sorted(names, key=lambda name: _hash(PurePosixPath(name).name))
        count = min(max(1, round(share * len(names))), max(0, len(names) - 1))
        test[label], rest[label] = drawn[:count], drawn[count:]
    return rest, test


def _hash(name: str) -> bytes:
    return hashlib.blake2b(name.encode("utf-8", "surrogateescape")).digest()


def _place(name: str, path: Path, flat: bool) -> tuple[PurePosixPath, str] | None:
    """The split ("train", or "top/train" in an archive with a top folder) and the class of a file,
    or of the folder of a class; None for what is no part of the layout. ``flat``: there are no
    folders of splits, all images are for training."""
    parts = PurePosixPath(name).parts
    if name.endswith("/"):
        parts = (*parts, "")
    if flat and len(parts) >= 2 and parts[-1]:
        parts = (*parts[:-2], "train", *parts[-2:])
    if len(parts) >= 3 and parts[-3] in SPLIT_NAMES and not parts[-2].startswith("."):
        if UNPRINTABLE.search(parts[-2]):
            raise InputError(f"{path}: the class {parts[-2]!r} has control characters: rename it")
        return PurePosixPath(*parts[:-2]), parts[-2]
    if parts[-1] and any(part in SPLIT_NAMES for part in parts):
        raise InputError(f"{path}: {name} is not at split/class/image; {LAYOUT}")
    return None


def _common_classes(path: Path, splits: tuple[Classes, Classes]) -> tuple[str, ...]:
    classes = sorted({label for split in splits for label in split})
    for name, split in zip(("train", "test"), splits, strict=True):
        missing = [label for label in classes if not split.get(label)]
        if missing:
            problem = f"{path}: no image of class {', '.join(missing)} in {name}"
            raise InputError(f"{problem}: add some to each split, or remove the class")
    return tuple(classes)


def _common_shape(survey: _Survey, names: list[str]) -> tuple[int, int, int]:
    """The shape of most images, with colours if one has them."""
    shapes = {name: survey.images[name] for name in names if name in survey.images}
    sizes = Counter(shape[1:] for shape in shapes.values())
    height, width = sizes.most_common(1)[0][0] if sizes else (1, 1)
    for name, (_, rows, columns) in shapes.items():
        if (rows, columns) != (height, width):
            problem = f"is {columns}x{rows} pixels but {width}x{height} is expected, as of most"
            survey.problems[name] = problem
    return max((shape[0] for shape in shapes.values()), default=1), height, width
