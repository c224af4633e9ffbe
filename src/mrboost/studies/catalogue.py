"""The studies, what the paper reports of each, and the scales: ``studies.toml`` and ``scales.toml``
as values.

A study is rows (a recipe each) × data × seeds. What is measured of a row follows from the columns
in which the paper has a figure for it.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mrboost.errors import look_up

Options = Mapping[str, Any]  # of a training, as ``boost`` takes them
# Row, then column, to a number. A column is named data/weights/members/measure.
Figures = Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class Row:
    """One method of a table.

    Args:
        label: its name in the paper.
        recipe: how it is trained.
        model: its network, where that is not the study's.
        figures: what the paper reports, by column.
    """

    label: str
    recipe: str
    model: str | None = None
    figures: Mapping[str, float] = field(default_factory=dict)

    @property
    def attacks(self) -> tuple[str, ...]:
        """Under which attacks the paper has a figure."""
        measures = dict.fromkeys(column.split("/")[3] for column in self.figures)
        return tuple(name for name in measures if name not in ("clean", "seconds"))


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper: each row of ``more`` has ``factor`` times more than its partner in
    ``less``, by ``by``.

    ``against`` are the partner's columns, the same ones if it is empty.
    """

    says: str
    more: Sequence[str]
    less: Sequence[str]
    columns: Sequence[str]
    against: Sequence[str] = ()
    by: float = 0.0
    factor: float = 1.0

    def differences(self, figures: Figures) -> Iterator[float]:
        """What is to be positive, wherever both numbers are there."""
        for more, less in zip(self.more, self.less, strict=True):
            for column, against in zip(self.columns, self.against or self.columns, strict=True):
                first = figures.get(more, {}).get(column)
                second = figures.get(less, {}).get(against)
                if first is not None and second is not None:
                    yield self.factor * first - second - self.by


@dataclass(frozen=True)
class Study:
    """One table or figure of the paper.

    Args:
        name, title: what it is called here.
        rows: the methods that it compares.
        place: where the paper has it.
        columns: those of the paper.
        claims: what the text says of the numbers.
        notes: where the paper contradicts itself or leaves something open; where its authors'
            release differs from it.
        model: the network.
        staged: whether the ensemble is evaluated after each round.
        plot: "epochs" for performance curves, "rounds" for accuracy against members.
        options: of each training.
    """

    name: str
    title: str
    rows: Sequence[Row]
    place: str
    columns: Sequence[str]
    claims: Sequence[Claim] = ()
    notes: Sequence[str] = ()
    model: str = "resnet18"
    staged: bool = False
    plot: str = ""
    options: Options = field(default_factory=dict)

    @property
    def data(self) -> tuple[str, ...]:
        """On which data the paper has it."""
        return tuple(dict.fromkeys(column.split("/")[0] for column in self.columns))

    @property
    def weights(self) -> tuple[str, ...]:
        """Which weights are evaluated."""
        return tuple(dict.fromkeys(column.split("/")[1] for column in self.columns))

    @property
    def seconds(self) -> bool:
        """Whether the seconds of an epoch are a column."""
        return any(column.endswith("/seconds") for column in self.columns)

    @property
    def figures(self) -> Figures:
        """What the paper reports."""
        return {row.label: row.figures for row in self.rows}


@dataclass(frozen=True)
class Scale:
    """How much of the paper's effort is spent.

    ``data``, ``models`` and ``attacks`` stand in for the paper's. ``n`` test images are attacked,
    ``strong_n`` by AutoAttack; None is all of them. ``check`` looks for reasons to doubt the
    figures.
    """

    name: str
    summary: str
    options: Options
    data: str | None = None
    models: Mapping[str, str] = field(default_factory=dict)
    attacks: Mapping[str, str] = field(default_factory=dict)
    n: int | None = None
    strong_n: int | None = None
    check: bool = True


def _study(name: str, facts: dict[str, Any], release: list[dict[str, Any]]) -> Study:
    """One section of ``studies.toml``, with what it says of the authors' release."""
    columns, rows = facts["columns"], []
    for label, row in facts["rows"].items():
        figures = zip(columns, row.pop("figures"), strict=False)
        known = {column: figure for column, figure in figures if not math.isnan(figure)}
        rows.append(Row(label, **row, figures=known))
    facts["notes"] += [fact["says"] for fact in release if name in fact["studies"]]
    facts["claims"] = [Claim(**claim) for claim in facts["claims"]]
    return Study(name, **facts | {"rows": rows})


def _read(file: str) -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_name(file).read_text("utf-8"))


_SECTIONS = _read("studies.toml")
_RELEASE = _SECTIONS.pop("release")
STUDIES = {name: _study(name, facts, _RELEASE) for name, facts in _SECTIONS.items()}
SCALES = {name: Scale(name, **facts) for name, facts in _read("scales.toml").items()}


def get(name: str) -> Study:
    """The study called ``name``."""
    return look_up("study", name, STUDIES, hint="list them with: mrboost study --list")


def get_scale(name: str) -> Scale:
    """The scale called ``name``."""
    return look_up("scale", name, SCALES)
