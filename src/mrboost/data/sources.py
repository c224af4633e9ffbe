"""From the name of a dataset to the dataset: find its files, or fetch them, verify and read them.

Files are looked for in `data_dir` alone if it is given, otherwise in $MRBOOST_DATA and then in the
user's cache ($XDG_CACHE_HOME or ~/.cache, /mrboost); in each, directly or in a subfolder of the
dataset's name. What is not found is downloaded into the first of these places.

Checksums. A download is always verified. An official archive found on disk is verified too, since
the usual reason for a difference is an interrupted download; `load(..., verify=False)` skips that.
Not verified are unpacked folders, which have no checksum, and files of which legitimate variants
exist (mnist.npz, the IDX files): their content is checked like everything else.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from mrboost.data.archives import reason
from mrboost.data.dataset import Dataset, Defaults, Split, usual_defaults
from mrboost.data.folder import LAYOUT, read_folder
from mrboost.data.registry import SOURCES, Source
from mrboost.errors import InputError, look_up

FOLDER = "folder:"


class Found(NamedTuple):
    paths: tuple[Path, ...]
    read: Callable[..., tuple[Split, Split]]

    def __str__(self) -> str:
        return ", ".join(map(str, self.paths)) or "part of scikit-learn"


def names() -> tuple[str, ...]:
    """The named datasets, sorted."""
    return tuple(sorted(SOURCES))


def defaults(name: str, height: int) -> Defaults:
    """What a user who says nothing gets for a dataset with images of this
    height, on disk or not."""
    return usual_defaults(height) if name.startswith(FOLDER) else _source(name).defaults


def train_images(name: str) -> int | None:
    """How many training images a named dataset has, on disk or not; None for a folder."""
    return None if name.startswith(FOLDER) else _source(name).sizes[0]


def whole_name(name: str) -> str:
    """The name that a dataset has once it is loaded: with a folder's whole path."""
    return f"{FOLDER}{_folder_path(name).absolute()}" if name.startswith(FOLDER) else name


def load(
    name: str, data_dir: str | Path | None = None, *, download: bool = True, verify: bool = True
) -> Dataset:
    """The dataset called `name` (see `names()`), or the images of `folder:PATH`.

    data_dir: where to look for its files and to put a download; see the top of this
    file for the default.
    download: fetch what is not there. verify: compare an official archive on
    disk with its checksum.
    """
    if name.startswith(FOLDER):
        train, test, classes = read_folder(_folder_path(name))
        return Dataset(whole_name(name), train, test, classes, usual_defaults(train.x.shape[2]))
    source = _source(name)
    found = _find(name, source, data_dir)
    if found is None:
        _fetch(name, source, data_dir, download)
        found = _find(name, source, data_dir)
        assert found is not None
    elif verify:
        _verify(source, found.paths)
    train, test = found.read(*found.paths)
    dataset = Dataset(name, train, test, source.classes, source.defaults)
    if dataset.shape != source.shape:
        raise InputError(
            f"{name}: images in {found} are {dataset.shape}, not {source.shape}: get it again"
        )
    present = set(train.y.tolist())
    empty = [label for index, label in enumerate(source.classes) if index not in present]
    if empty:
        raise InputError(
            f"{name}: no training image of class {', '.join(empty)} in {found}: get it again"
        )
    return dataset


def describe(
    name: str, data_dir: str | Path | None = None, *, verify: bool = True
) -> dict[str, Any]:
    """Facts about a dataset, ready for JSON. What is not on disk is not downloaded:
    "found" is None then."""
    if name.startswith(FOLDER):
        path = _folder_path(name)
        if not path.exists():
            return {"name": name, "found": None, "looked_for": [str(path)], "remedy": LAYOUT}
        where = str(path)
    else:
        source = _source(name)
        found = _find(name, source, data_dir)
        if found is None:
            return _facts(name, source, *source.sizes) | {
                "found": None,
                "looked_for": [" + ".join(group) for group in source.readers],
                "looked_in": [str(root) for root in _roots(data_dir)],
                "urls": [item.url for item in source.downloads],
                "remedy": _remedy(source, data_dir),
            }
        where = str(found)
    dataset = load(name, data_dir, download=False, verify=verify)
    mean, std = dataset.channel_stats()
    facts = _facts(name, dataset, len(dataset.train), len(dataset.test))
    return facts | {"mean": list(mean), "std": list(std), "found": where}


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


def _folder_path(name: str) -> Path:
    path = name.removeprefix(FOLDER)
    if not path:
        raise InputError(f"{FOLDER} needs a path, as in {FOLDER}pictures.zip; {LAYOUT}")
    return Path(path).expanduser()


def _roots(data_dir: str | Path | None) -> list[Path]:
    if data_dir is not None:
        return [Path(data_dir).expanduser()]
    named = os.environ.get("MRBOOST_DATA")
    return [Path(named).expanduser(), _cache()] if named else [_cache()]


def _cache() -> Path:
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "mrboost"
    except RuntimeError:  # a user without a home, as in some containers
        return Path(tempfile.gettempdir()) / "mrboost"


def _find(name: str, source: Source, data_dir: str | Path | None) -> Found | None:
    """The first complete set of files."""
    for root in _roots(data_dir):
        for folder in (root, root / name):
            for group, read in source.readers.items():
                paths = tuple(folder / file for file in group)
                if all(path.exists() for path in paths):
                    return Found(paths, read)
    return None


def _verify(source: Source, found: tuple[Path, ...]) -> None:
    expected = {item.file: item.checksum for item in source.downloads if not item.variants}
    for path in found:
        if path.name in expected:
            algorithm, _, official = expected[path.name].partition(":")
            with path.open("rb") as file:
                actual = hashlib.file_digest(file, algorithm).hexdigest()
            if actual != official:
                raise InputError(
                    f"{path} has {algorithm} {actual} but the official file has {official}: it is "
                    "truncated or altered; delete it to download it again, or say --no-verify "
                    "(verify=False) if you trust it"
                )


def _fetch(name: str, source: Source, data_dir: str | Path | None, download: bool) -> None:
    roots = _roots(data_dir)
    wanted = " or ".join(" + ".join(group) for group in source.readers)
    missing = f"{name} not found: looked for {wanted} in {', '.join(map(str, roots))}"
    if not download:
        raise InputError(f"{missing}; {_remedy(source, data_dir)}")
    try:
        import pooch

        for item in source.downloads:
            pooch.retrieve(
                item.url,
                item.checksum,
                fname=item.file,
                path=roots[0] / name,
                progressbar=sys.stderr.isatty(),
            )
    except (ImportError, OSError, ValueError) as error:
        # No pooch; no network or no space; wrong checksum
        raise InputError(
            f"{missing}; {_remedy(source, data_dir)} (download failed: {reason(error)})"
        ) from error


def _remedy(source: Source, data_dir: str | Path | None) -> str:
    files = " and ".join(item.file for item in source.downloads)
    place = f"put {files} into {_roots(data_dir)[0]}"
    return f"{place}, or set MRBOOST_DATA to their folder" if data_dir is None else place
