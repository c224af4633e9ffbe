"""The tables of a study's page: our numbers beside the paper's, its claims on ours, and two rows
on the same test images."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from mrboost.evaluation.statistics import signed_difference
from mrboost.runs import Run

from .catalogue import Claim, Figures
from .plan import STRONG, Request, Training

_CLAIMS = (
    "What the text says of these numbers: comparisons in which it holds, and the least surplus."
)
_PAIRED = (
    "Differences on the same test images, in points. In brackets the sign test's p (McNemar's, "
    "with one seed): how likely so uneven a split of the images on which two rows differ would "
    "be by chance. It knows nothing of how much another training would differ."
)
Values = Mapping[str, Mapping[str, Sequence[float]]]  # row, then column, to a number for each seed


@dataclass(frozen=True)
class Table:
    """Cells as text; ``title`` stands above."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Trained:
    """A training that is there, with its run."""

    training: Training
    run: Run

    @property
    def label(self) -> str:
        return self.training.row.label

    @property
    def seed(self) -> int:
        return int(self.training.options["seed"])

    @cached_property
    def outcomes(self) -> dict[str, dict[str, Any]]:
        return self.training.outcomes(self.run)

    @cached_property
    def seconds(self) -> list[float]:
        """Of each epoch, with its validation."""
        return [row["seconds"] for row in self.run.metrics()]

    @property
    def doubts(self) -> list[str]:
        found = [doubt for one in self.run.evaluations() for doubt in one.get("doubts", [])]
        return [f"{self.label}: {doubt['message']}" for doubt in found]

    def values(self) -> dict[str, float]:
        """By the paper's columns: accuracies in per cent, the median seconds of an epoch."""
        found = {column: 100 * outcome["accuracy"] for column, outcome in self.outcomes.items()}
        if self.training.request.study.seconds and self.seconds:
            column = f"{self.training.paper_data}/best/1/seconds"
            found[column] = statistics.median(self.seconds[1:] or self.seconds)
        return found


def values_of(request: Request, trained: Sequence[Trained]) -> Values:
    """What was measured, of each row."""
    values: dict[str, dict[str, list[float]]] = {row.label: {} for row in request.study.rows}
    for one in trained:
        for column, value in one.values().items():
            values[one.label].setdefault(column, []).append(value)
    return values


def means(values: Values) -> Figures:
    return {
        row: {column: statistics.mean(numbers) for column, numbers in found.items()}
        for row, found in values.items()
    }


def main_table(request: Request, trained: Sequence[Trained], values: Values) -> Table:
    """Three lines for each row: ours, the paper's, the difference."""
    columns = _columns(request, values)
    form = ".0f" if request.study.seconds else ".2f"
    rows = []
    for row in request.study.rows:
        ours = [values[row.label].get(column, ()) for column in columns]
        paper = [row.figures.get(column, math.nan) for column in columns]
        mine = [statistics.mean(numbers or [math.nan]) for numbers in ours]
        differences = [a - b for a, b in zip(mine, paper, strict=True)]
        rows += [
            [row.label, "ours", *map(_mean_and_deviation, ours)],
            ["", "paper", *(_text(value, form) for value in paper)],
            ["", "difference", *(_text(value, "+.2f") for value in differences)],
        ]
    return Table(_unit(request, trained), ["method", "", *column_labels(columns)], rows)


def _text(value: float, form: str) -> str:
    return "–" if math.isnan(value) else format(value, form)


def _columns(request: Request, values: Values) -> list[str]:
    """The paper's, as far as this request has them, then those that only we have."""
    trainings = request.trainings()
    data = {training.paper_data for training in trainings}
    rounds = max(training.options["rounds"] for training in trainings)

    def parts(column: str) -> tuple[str, str, int, str]:
        of_data, weights, members, measure = column.split("/")
        return of_data, weights, int(members), measure

    asked = [(column, parts(column)) for column in request.study.columns]
    columns = [column for column, part in asked if part[0] in data and part[2] <= rounds]
    more = {column for found in values.values() for column in found}.difference(columns)
    return columns + sorted(more, key=parts)


def column_labels(columns: Sequence[str]) -> list[str]:
    """The parts of the columns' names in which they differ, and always the measure."""
    split = [column.split("/") for column in columns]
    shown = [i for i in range(4) if i == 3 or len({parts[i] for parts in split}) > 1]
    named = [[data, weights, f"members {n}", measure] for data, weights, n, measure in split]
    return [", ".join(parts[i] for i in shown) for parts in named]


def _unit(request: Request, trained: Sequence[Trained]) -> str:
    """What the figures are, and on how many test images."""
    images = _images(request, trained)
    if STRONG in request.attacks:
        images += f", {_images(request, trained, STRONG)}"
    unit = f"Accuracy, %, on {images}"
    if request.study.seconds:
        seconds = "Seconds of an epoch, the median after the first"
        unit = f"{seconds}. {unit}" if request.also else seconds
    spread = "; mean ± standard deviation over the seeds" if len(request.seeds) > 1 else ""
    return f"{unit}{spread}."


def _images(request: Request, trained: Sequence[Trained], attack: str = "") -> str:
    """How many AutoAttack saw, or any other attack."""
    n, shown = request.images(attack), f" ({attack})" if attack else ""
    whole = {
        outcome["whole"]
        for one in trained
        for column, outcome in one.outcomes.items()
        if column.endswith(f"/{STRONG}") == (attack == STRONG)
    }
    if n is None or whole == {True}:
        return f"all test images{shown}"
    or_all = ", or all," if True in whole else ""
    return f"{n:,} test images{shown}{or_all}: ± {98 / math.sqrt(n):.1f} at 50 %"


def _mean_and_deviation(values: Sequence[float]) -> str:
    if not values:
        return "–"
    deviation = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.2f}{deviation}"


def claims_table(claims: Sequence[Claim], paper: Figures, ours: Figures) -> Table:
    """What the paper's text says of its numbers, on them and on ours."""
    rows = [[claim.says, _surplus(claim, paper), _surplus(claim, ours)] for claim in claims]
    return Table(_CLAIMS, ["the paper says", "holds on its numbers", "holds on ours"], rows)


def _surplus(claim: Claim, figures: Figures) -> str:
    found = list(claim.differences(figures))
    if not found:
        return "not measured"
    holds = sum(difference > 0 for difference in found)
    return f"{holds} of {len(found)}, least {min(found):+.2f}"


def paired_table(claims: Sequence[Claim], trained: Sequence[Trained]) -> Table:
    """The rows that the paper's text compares, on the same test images: in the columns that the
    claim names for each, or in all that the first row has."""
    points: dict[tuple[str, str], dict[int, list[float]]] = {}
    for one in trained:
        for column, outcome in one.outcomes.items():
            points.setdefault((one.label, column), {})[one.seed] = outcome.get("correct", [])
    cells: dict[tuple[str, str], dict[str, str]] = {}
    for claim in claims:
        for more, less in zip(claim.more, claim.less, strict=True):
            if more == less or (less, more) in cells:
                continue
            own = [column for label, column in points if label == more]
            columns = claim.columns if claim.against else own
            for column, partner in zip(columns, claim.against or own, strict=True):
                measure = partner.split("/")[3]
                name = less if column.endswith(measure) else f"{less} ({measure})"
                first, second = points.get((more, column), {}), points.get((less, partner), {})
                if cell := _paired_difference(first, second):
                    cells.setdefault((more, name), {})[column] = cell
    columns = list(dict.fromkeys(column for found in cells.values() for column in found))
    rows = [
        [f"{more} − {less}", *(found.get(column, "–") for column in columns)]
        for (more, less), found in cells.items()
    ]
    return Table(_PAIRED, ["", *column_labels(columns)], rows)


def _paired_difference(
    first: Mapping[int, Sequence[float]], second: Mapping[int, Sequence[float]]
) -> str:
    """The difference of each image's mean over the seeds that both have; nothing without any.

    Args:
        first: by seed, whether each test image is classified correctly.
        second: the same of the other row.
    """
    seeds = [seed for seed in first if len(first[seed]) == len(second.get(seed, ()))]
    ours, theirs = (np.array([points[s] for s in seeds]) for points in (first, second))
    return signed_difference(ours.mean(axis=0), theirs.mean(axis=0)) if ours.size else ""
