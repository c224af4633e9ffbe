"""From the name of a dataset to the dataset: find or download its files, verify and read them.

Files are looked for in ``data_dir`` alone if it is given, otherwise in $MRBOOST_DATA and then in
the user's cache ($XDG_CACHE_HOME or ~/.cache, /mrboost); in each, directly or in a subfolder of the
dataset's name. What is not found is downloaded into the first of these folders.

A download is always verified by its checksum. Official archives, and CIFAR's unpacked batches, that
are found on disk are verified too, since the usual reason for a difference is an interrupted
download; ``load(..., verify=False)`` skips that. Not verified are files of which legitimate
variants exist (mnist.npz, the IDX files): their content is checked like everything else.

Adding a dataset is adding a section to ``datasets.toml``, and a reader if its files need one.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from mrboost.data.dataset import (
    Dataset,
    Defaults,
    Split,
    rank_in_class,
    to_split,
    usual_defaults,
)
from mrboost.data.folder import FOLDER, LAYOUT, Pictures, read_folder, user_path
from mrboost.data.formats import cifar, mnist_idx, mnist_npz, svhn
from mrboost.data.mapped import cache
from mrboost.errors import InputError, look_up, reason
from mrboost.progress import note

Folder = str | Path | None
Reader = Callable[..., tuple[Split, Split]]
"""From the paths of a dataset's files to its training and test images."""


@dataclass(frozen=True)
class Source:
    """A named dataset: what it is, the sets of files it may come in, and how to read each.

    Attributes:
        readers: of each set of file names.
        urls: where the official files are downloaded from.
        checksums: of the official files, and of those in an unpacked archive, by path.
        has_variants: whether legitimate files with other checksums exist.
    """

    shape: tuple[int, int, int]
    classes: tuple[str, ...]
    sizes: tuple[int, int]
    defaults: Defaults
    readers: dict[tuple[str, ...], Reader]
    urls: tuple[str, ...] = ()
    checksums: dict[str, str] = field(default_factory=dict)
    has_variants: bool = False


def _digits() -> tuple[Split, Split]:
    """scikit-learn's 8x8 scans; in each class every fifth image is a test image, for every seed."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    whole = to_split(digits.images / 16.0, digits.target, "digits")
    test = rank_in_class(whole.y) % 5 == 4
    return whole[~test], whole[test]


_BATCHES = [f"data_batch_{i}" for i in range(1, 6)]
_READERS: dict[str, Reader] = {
    "digits": _digits,
    "mnist_npz": mnist_npz,
    "mnist_idx": mnist_idx,
    "cifar10": partial(cifar, train=_BATCHES, test=["test_batch"], labels="labels"),
    "cifar100": partial(cifar, train=["train"], test=["test"], labels="fine_labels"),
    "svhn": svhn,
}


def _section(files: dict[str, Any], defaults: dict[str, Any], classes: str, **facts: Any) -> Source:
    """A section of ``datasets.toml``."""
    readers = {tuple(group): _READERS[name] for name in files for group in files[name]}
    for key in ("shape", "sizes", "urls"):
        facts[key] = tuple(facts.get(key, ()))
    names = tuple(classes.split())
    return Source(classes=names, defaults=Defaults(**defaults), readers=readers, **facts)


_SECTIONS = tomllib.loads(Path(__file__).with_name("datasets.toml").read_text("utf-8"))
SOURCES: dict[str, Source] = {name: _section(**facts) for name, facts in _SECTIONS.items()}


class Found(NamedTuple):
    """The files of a dataset on disk."""

    paths: tuple[Path, ...]
    read: Reader

    def __str__(self) -> str:
        return ", ".join(map(str, self.paths)) or "part of scikit-learn"


def names() -> tuple[str, ...]:
    """The named datasets, sorted."""
    return tuple(sorted(SOURCES))


def defaults(name: str, height: int) -> Defaults:
    """The usual threat model and recipe of a dataset with images of this height, on disk or not."""
    return usual_defaults(height) if name.startswith(FOLDER) else _source(name).defaults


def whole_name(name: str) -> str:
    """The name that a dataset has once it is loaded: that of a folder has its absolute path."""
    if not name.startswith(FOLDER):
        return name
    pictures = Pictures.named(name)
    return str(replace(pictures, path=pictures.path.absolute()))


def load(
    name: str, data_dir: Folder = None, *, download: bool = True, verify: bool = True
) -> Dataset:
    """A dataset by its name.

    Args:
        name: one of ``names()``, or ``folder:PATH`` for a tree of images, packed or not; what is
            made of them may follow, as in ``folder:PATH?size=64&test-share=0.2&background=black``.
        data_dir: where to look for its files, and to put a download; by default $MRBOOST_DATA and
            the user's cache.
        download: fetch what is not there.
        verify: compare official files on disk with their checksums.

    Returns:
        Training and test images, the classes' names, and the usual options for them.

    Example:
        >>> load("digits").shape
        (1, 8, 8)
    """
    with _file_errors(name):
        if name.startswith(FOLDER):
            train, test, classes, facts = read_folder(Pictures.named(name))
            usual = usual_defaults(train.x.shape[2])
            return Dataset(whole_name(name), train, test, classes, usual, facts)
        source = _source(name)
        found = _find(name, source, data_dir)
        if found is None:
            found = _download(name, source, data_dir, download)
        elif verify and not source.has_variants:
            _verify(source, found.paths)
        train, test = found.read(*found.paths)
    present = set(train.y.tolist())
    empty = [label for index, label in enumerate(source.classes) if index not in present]
    if empty:
        problem = f"{name}: no training image of class {', '.join(empty)} in {found}"
        raise InputError(f"{problem}: get it again")
    return Dataset(name, train, test, source.classes, source.defaults)


def describe(name: str, data_dir: Folder = None, *, verify: bool = True) -> dict[str, Any]:
    """Facts about a dataset, ready for JSON. What is not on disk is not downloaded: "found" is
    None then, and "remedy" says what to do. Arguments as in ``load``."""
    found: Path | Found | None
    with _file_errors(name):
        if name.startswith(FOLDER):
            found = Pictures.named(name).path
            if not found.exists():
                return {"name": name, "found": None, "looked_for": [str(found)], "remedy": LAYOUT}
        else:
            source = _source(name)
            found = _find(name, source, data_dir)
            if found is None:
                return _facts(name, source, *source.sizes) | _missing(source, data_dir)
    dataset = load(name, data_dir, download=False, verify=verify)
    mean, std = dataset.channel_stats()
    facts = _facts(name, dataset, len(dataset.train), len(dataset.test))
    return facts | {"mean": list(mean), "std": list(std), "found": str(found)}


def _facts(name: str, of: Source | Dataset, train: int, test: int) -> dict[str, Any]:
    return {
        "name": name,
        "shape": list(of.shape),
        "classes": list(of.classes),
        "sizes": {"train": train, "test": test},
        "defaults": asdict(of.defaults),
    }


def _source(name: str) -> Source:
    return look_up("dataset", name, SOURCES, hint="or folder:PATH")


@contextmanager
def _file_errors(name: str) -> Iterator[None]:
    """Turn an operating system's error (no permission, too long a name) into an InputError."""
    try:
        yield
    except OSError as error:
        place = str(error.filename or "it")
        problem = f"{name:.300}: cannot read {place:.300} ({reason(error)})"
        raise InputError(f"{problem}: check the path and its permissions") from error


def _roots(data_dir: Folder) -> list[Path]:
    """The folders to look in."""
    if data_dir is not None:
        return [user_path(data_dir)]
    named = os.environ.get("MRBOOST_DATA")
    own = cache()
    caches = [own] if own else []
    return [user_path(named), *caches] if named else caches


def _find(name: str, source: Source, data_dir: Folder) -> Found | None:
    """The first complete set of files."""
    if () in source.readers:  # it needs none
        return Found((), source.readers[()])
    for root in _roots(data_dir):
        for folder in (root, root / name):
            for group, read in source.readers.items():
                paths = tuple(folder / file for file in group)
                if all(path.exists() for path in paths):
                    return Found(paths, read)
    return None


def _verify(source: Source, found: tuple[Path, ...]) -> None:
    """Compare the official files, or those in an unpacked folder, with their checksums."""
    folder = {path.name: path.parent for path in found}
    for relative, checksum in source.checksums.items():
        top = relative.split("/")[0]
        if top not in folder:
            continue
        path = folder[top] / relative
        if not path.is_file():
            raise InputError(f"{path} is missing or not a regular file: get the official archive")
        algorithm, _, expected = checksum.partition(":")
        with path.open("rb") as file:
            actual = hashlib.file_digest(file, algorithm).hexdigest()
        if actual != expected:
            raise InputError(
                f"{path} has {algorithm} {actual}, the official file {expected}: truncated or "
                "altered; delete it to download it again, or trust it with --no-verify"
            )


def _download(name: str, source: Source, data_dir: Folder, allowed: bool) -> Found:
    """Fetch the official files; without them, say what was looked for and what to do."""
    facts = _missing(source, data_dir)
    places = ", ".join(facts["looked_in"]) or "no folder"
    looked = f"looked for {' or '.join(facts['looked_for'])} in {places}"
    missing = f"{name} not found: {looked}; {facts['remedy']}"
    roots = _roots(data_dir)
    if not allowed or not roots:
        raise InputError(missing)
    import pooch
    import requests

    bar = sys.stderr.isatty()
    pooch.get_logger().setLevel("WARNING")  # what it says at each file is said here
    for url in source.urls:
        file, host = PurePosixPath(url).name, urlsplit(url).hostname
        note(f"{name}: downloading {file} from {host}")
        try:
            pooch.retrieve(url, source.checksums[file], file, roots[0] / name, progressbar=bar)
        except (OSError, ValueError) as error:  # no network or no space; a wrong checksum
            offline = isinstance(error, requests.ConnectionError)
            why = f"no connection to {host}" if offline else reason(error)
            raise InputError(f"{missing} (download failed: {why})") from error
    found = _find(name, source, data_dir)
    assert found is not None
    return found


def _missing(source: Source, data_dir: Folder) -> dict[str, Any]:
    """What was looked for, and what to do, where a dataset is not on disk."""
    roots = [str(root) for root in _roots(data_dir)]
    files = " and ".join(PurePosixPath(url).name for url in source.urls)
    otherwise = ", or set MRBOOST_DATA to their folder" if data_dir is None else ""
    return {
        "found": None,
        "looked_for": [" + ".join(group) for group in source.readers],
        "looked_in": roots,
        "urls": list(source.urls),
        "remedy": f"put {files} into {roots[0] if roots else 'a folder'}{otherwise}",
    }
