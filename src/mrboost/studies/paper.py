"""What the paper reports, and what it says about it: ``paper.toml`` as values."""

from __future__ import annotations

import functools
import math
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

Figures = Mapping[str, Mapping[str, float]]
"""Row, then column, to a number."""


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper: each row of ``more`` has ``factor`` times more than its partner in
    ``less``, by ``by``.

    ``against`` are the partner's columns, the same ones if it is empty.
    """

    says: str
    more: tuple[str, ...]
    less: tuple[str, ...]
    columns: tuple[str, ...]
    against: tuple[str, ...] = ()
    by: float = 0.0
    factor: float = 1.0

    def differences(self, figures: Figures) -> Iterator[tuple[str, str, float]]:
        """Row, column and what is to be positive, wherever both numbers are there."""
        for more, less in zip(self.more, self.less, strict=True):
            for column, against in zip(self.columns, self.against or self.columns, strict=True):
                first = figures.get(more, {}).get(column)
                second = figures.get(less, {}).get(against)
                if first is not None and second is not None:
                    yield more, column, self.factor * first - second - self.by


@dataclass(frozen=True)
class PaperResults:
    """What the paper reports for one study."""

    place: str
    columns: tuple[str, ...]
    figures: Figures
    claims: tuple[Claim, ...]
    notes: tuple[str, ...]
    """Where the paper contradicts itself or leaves something open; where its authors'
    release differs from it."""


@functools.cache
def paper_results(study: str) -> PaperResults:
    """What ``paper.toml`` has for the study of this name."""
    paper = tomllib.loads(resources.files(__package__).joinpath("paper.toml").read_text("utf-8"))
    found = paper[study]
    columns = tuple(found.get("columns", ()))
    rows: dict[str, list[float]] = found.get("rows", {})
    figures = {
        row: {
            column: float(value)
            for column, value in zip(columns, values, strict=False)
            if not math.isnan(value)
        }
        for row, values in rows.items()
    }
    claims = tuple(
        Claim(**{key: _frozen(value) for key, value in claim.items()})
        for claim in found.get("claims", ())
    )
    release = [fact["says"] for fact in paper["release"] if study in fact["studies"]]
    return PaperResults(found["place"], columns, figures, claims, (*found["notes"], *release))


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
