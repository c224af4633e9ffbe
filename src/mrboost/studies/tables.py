"""The tables of a study's page: our numbers beside the paper's, its claims on ours, and two rows
on the same test images."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from mrboost.evaluation.statistics import signed_difference
from mrboost.runs import Run

from .paper import Claim, Figures, PaperResults
from .plan import STRONG, Request, Training

Values = Mapping[str, Mapping[str, Sequence[float]]]
"""Row, then column, to a number for each seed."""


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

    @cached_property
    def outcomes(self) -> dict[str, dict[str, Any]]:
        return self.training.outcomes(self.run)

    @property
    def seconds(self) -> float:
        """Of the training, with its validation."""
        return float(sum(row["seconds"] for row in self.run.metrics()))

    def values(self) -> dict[str, float]:
        """By the paper's columns: accuracies in per cent, the median seconds of an epoch."""
        found = {column: 100 * outcome["accuracy"] for column, outcome in self.outcomes.items()}
        epochs = [row["seconds"] for row in self.run.metrics()]
        if self.training.request.study.seconds and epochs:
            column = f"{self.training.paper_data}/best/1/seconds"
            found[column] = statistics.median(epochs[1:] or epochs)
        return found


def values_of(request: Request, trained: Sequence[Trained]) -> Values:
    values: dict[str, dict[str, list[float]]] = {row.label: {} for row in request.study.rows}
    for one in trained:
        for column, value in one.values().items():
            values[one.training.label].setdefault(column, []).append(value)
    return values


def means(values: Values) -> Figures:
    return {
        row: {column: statistics.mean(numbers) for column, numbers in found.items()}
        for row, found in values.items()
    }


def main_table(
    request: Request, paper: PaperResults, trained: Sequence[Trained], values: Values
) -> Table:
    """Three lines for each row: ours, the paper's, the difference."""
    columns = _columns(request, paper, values)
    digits = 0 if request.study.seconds else 2
    rows = []
    for row in request.study.rows:
        ours = values[row.label]
        theirs = paper.figures.get(row.label, {})
        lines: dict[str, list[str]] = {"ours": [], "paper": [], "difference": []}
        for column in columns:
            lines["ours"].append(_mean_and_deviation(ours.get(column, ())))
            lines["paper"].append(f"{theirs[column]:.{digits}f}" if column in theirs else "–")
            both = column in ours and column in theirs
            lines["difference"].append(
                f"{statistics.mean(ours[column]) - theirs[column]:+.2f}" if both else "–"
            )
        for name, cells in lines.items():
            rows.append([row.label if name == "ours" else "", name, *cells])
    return Table(_unit(request, trained), ["method", "", *column_labels(columns)], rows)


def _columns(request: Request, paper: PaperResults, values: Values) -> list[str]:
    """The paper's, as far as this request has them, then those that only we have."""
    trainings = request.trainings()
    data = {training.paper_data for training in trainings}
    rounds = max(training.options["rounds"] for training in trainings)
    columns = []
    for column in paper.columns:
        of_data, _, members, _ = column.split("/")
        if of_data in data and int(members) <= rounds:
            columns.append(column)
    more = {column for found in values.values() for column in found} - set(columns)

    def order(column: str) -> list[tuple[int, str]]:
        return [(len(part) if part.isdigit() else 0, part) for part in column.split("/")]

    return columns + sorted(more, key=order)


def column_labels(columns: Sequence[str]) -> list[str]:
    """The parts of the columns' names in which they differ, and always the measure."""
    split = [column.split("/") for column in columns]
    labels = []
    for parts in split:
        shown = [
            f"members {part}" if i == 2 else part
            for i, part in enumerate(parts)
            if i == 3 or len({other[i] for other in split}) > 1
        ]
        labels.append(", ".join(shown))
    return labels


def _unit(request: Request, trained: Sequence[Trained]) -> str:
    """What the figures are, and on how many test images."""
    attacks = set(request.also)
    for row in request.study.rows:
        attacks.update(request.study.attacks if row.attacks is None else row.attacks)
    # Whether AutoAttack, or another attack, saw all test images that there are
    whole: dict[bool, set[bool]] = {False: set(), True: set()}
    for one in trained:
        for column, outcome in one.outcomes.items():
            whole[column.endswith(f"/{STRONG}")].add(outcome["whole"])
    images = _images(request.images(""), whole[False])
    if STRONG in attacks:
        images += f", {_images(request.images(STRONG), whole[True], f' ({STRONG})')}"
    unit = f"Accuracy, %, on {images}"
    if request.study.seconds:
        seconds = "Seconds of an epoch, the median after the first"
        unit = f"{seconds}. {unit}" if request.also else seconds
    spread = "; mean ± standard deviation over the seeds" if len(request.seeds) > 1 else ""
    return f"{unit}{spread}."


def _images(n: int | None, whole: set[bool], attack: str = "") -> str:
    if n is None or whole == {True}:
        return f"all test images{attack}"
    or_all = ", or all," if True in whole else ""
    return f"{n:,} test images{attack}{or_all}: ± {98 / math.sqrt(n):.1f} at 50 %"


def _mean_and_deviation(values: Sequence[float]) -> str:
    if not values:
        return "–"
    deviation = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.2f}{deviation}"


def claims_table(paper: PaperResults, ours: Figures) -> Table:
    """What the paper's text says of its numbers, on them and on ours."""
    rows = []
    for claim in paper.claims:
        cells = [_surplus(claim, figures) for figures in (paper.figures, ours)]
        rows.append([claim.says, *cells])
    title = (
        "What the text says of these numbers: comparisons in which it holds, and the least surplus."
    )
    return Table(title, ["the paper says", "holds on its numbers", "holds on ours"], rows)


def _surplus(claim: Claim, figures: Figures) -> str:
    found = [difference for *_, difference in claim.differences(figures)]
    if not found:
        return "not measured"
    holds = sum(difference > 0 for difference in found)
    return f"{holds} of {len(found)}, least {min(found):+.2f}"


def paired_table(paper: PaperResults, trained: Sequence[Trained]) -> Table:
    """The rows that the paper's text compares, on the same test images."""
    cells: dict[tuple[str, str], dict[str, str]] = {}
    for more, less, column, partner in _comparisons(paper, trained):
        if more == less or (less, more) in cells:
            continue
        measure = partner.split("/")[3]
        name = less if column.endswith(measure) else f"{less} ({measure})"
        first, second = (
            {
                one.training.options["seed"]: one.outcomes[where].get("correct", [])
                for one in trained
                if one.training.label == label and where in one.outcomes
            }
            for label, where in ((more, column), (less, partner))
        )
        if cell := _paired_difference(first, second):
            cells.setdefault((more, name), {})[column] = cell
    columns = list(dict.fromkeys(column for found in cells.values() for column in found))
    rows = [
        [f"{more} − {less}", *(found.get(column, "–") for column in columns)]
        for (more, less), found in cells.items()
    ]
    title = (
        "Differences on the same test images, in points. In brackets the sign test's p (McNemar's, "
        "with one seed): how likely so uneven a split of the images on which two rows differ would "
        "be by chance. It knows nothing of how much another training would differ."
    )
    return Table(title, ["", *column_labels(columns)], rows)


def _comparisons(
    paper: PaperResults, trained: Sequence[Trained]
) -> Iterator[tuple[str, str, str, str]]:
    """Two rows, the column of the first and that of the second: those that a claim names, or all
    that the first row has."""
    for claim in paper.claims:
        for more, less in zip(claim.more, claim.less, strict=True):
            if claim.against:
                pairs = list(zip(claim.columns, claim.against, strict=True))
            else:
                own = [one.outcomes for one in trained if one.training.label == more]
                pairs = [(column, column) for column in dict.fromkeys(c for o in own for c in o)]
            for column, partner in pairs:
                yield more, less, column, partner


def _paired_difference(
    first: Mapping[int, Sequence[float]], second: Mapping[int, Sequence[float]]
) -> str:
    """The difference of each image's mean over the seeds that both have; nothing without any.

    Args:
        first: by seed, whether each test image is classified correctly.
        second: the same of the other row.
    """
    seeds = [seed for seed in first if len(first[seed]) == len(second.get(seed, ()))]
    ours, theirs = (
        [statistics.fmean(image) for image in zip(*(points[s] for s in seeds), strict=True)]
        for points in (first, second)
    )
    return signed_difference(ours, theirs) if ours else ""
