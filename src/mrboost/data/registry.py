"""The named datasets, as values: what ``datasets.toml`` says of them, and the readers of their
files. Adding a dataset is adding a section there, and a reader here if its files need one."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from .dataset import Defaults, Split, rank_in_class, to_split
from .formats import cifar, mnist_idx, mnist_npz, svhn

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


def _source(files: dict[str, Any], defaults: dict[str, Any], classes: str, **facts: Any) -> Source:
    """A section of ``datasets.toml``."""
    readers = {tuple(group): _READERS[name] for name in files for group in files[name]}
    for key in ("shape", "sizes", "urls"):
        facts[key] = tuple(facts.get(key, ()))
    names = tuple(classes.split())
    return Source(classes=names, defaults=Defaults(**defaults), readers=readers, **facts)


_SECTIONS = tomllib.loads(Path(__file__).with_name("datasets.toml").read_text("utf-8"))
SOURCES: dict[str, Source] = {name: _source(**facts) for name, facts in _SECTIONS.items()}
