"""The page of a study, in Markdown and HTML: our numbers beside the paper's, its claims on ours,
rows compared on the same test images, the plots, and how all was made.

Its words stand in the templates: ``page.md`` and ``page.html``, and the lines of ``caveats.txt``
and ``made.txt``.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mrboost import __version__
from mrboost.evaluation.statistics import signed_difference
from mrboost.files import write_texts
from mrboost.plots import figures as plots
from mrboost.plots.html import render
from mrboost.progress import folded
from mrboost.runs import Run

from .catalogue import SCALES, STUDIES, Claim, Figures
from .plan import STRONG, Request, Training

_HERE = Path(__file__).parent
_NOTES = (
    "Where the paper contradicts itself, leaves something open, or differs from its authors' "
    "release"
)
_CLAIMS = (
    "What the text says of these numbers: comparisons in which it holds, and the least surplus."
)
_PAIRED = (
    "Differences on the same test images, in points. In brackets the sign test's p (McNemar's, "
    "with one seed): how likely so uneven a split of the images on which two rows differ would "
    "be by chance. It knows nothing of how much another training would differ."
)
Values = Mapping[str, Mapping[str, Sequence[float]]]  # row, then column, to a number for each seed


def write_page(request: Request, command: str) -> tuple[Path, Path]:
    """Write the page on what is there by now into ``request.out``.

    Args:
        request: the study.
        command: what the page says it was made by.

    Returns:
        The paths of the Markdown and of the HTML page; the plots are beside them.
    """
    study, out = request.study, request.out
    runs = [(training, training.trained_run()) for training in request.trainings()]
    trained = [Trained(training, run) for training, run in runs if run is not None]
    values = values_of(request, trained)
    ours = means(values)
    tables = [
        main_table(request, trained, values),
        claims_table(study.claims, study.figures, ours),
        paired_table(study.claims, trained),
    ]
    figures = _plots(request, trained, ours)
    doubts = sorted({doubt for one in trained for doubt in one.doubts})
    page = {
        "study": study,
        "request": request,
        "caveats": _lines("caveats.txt", request, trained),
        "tables": [table for table in tables if table.rows],
        "plots": figures,
        "lists": {
            "Reasons to doubt these figures": doubts,
            _NOTES: study.notes,
            "How it was made": [f"`{command}`", *_lines("made.txt", request, trained)],
        },
    }
    pages = out / f"{study.name}.md", out / f"{study.name}.html"
    write_texts(
        {path: render(_HERE / f"page{path.suffix}", **page) for path in pages}
        | {out / f"{study.name}-{name}.svg": svg for name, svg in figures.items()}
    )
    return pages


def _lines(template: str, request: Request, trained: Sequence[Trained]) -> list[str]:
    """What stands between these figures and the paper's, and how they were made."""
    study, trainings, runs = request.study, request.trainings(), [one.run for one in trained]
    networks = {t.options["model"] for t in trainings} - {row.model for row in study.rows}
    made_with = [run.config["versions"] for run in runs]
    by_row = {
        one.label: [other for other in trained if other.label == one.label] for one in trained
    }
    text = render(
        _HERE / template,
        request=request,
        data=sorted({(t.data, Path(t.data).name, t.paper_data) for t in trainings}),
        networks=sorted(networks) if networks - {study.model} else (),
        on_test=any(t.options.get("select_on") == "test" for t in trainings),
        states=[one.training.state() for one in trained],
        trainings=len(trainings),
        versions=sorted({f"mrboost {v['mrboost']}, torch {v['torch']}" for v in made_with}),
        page_version=f"mrboost {__version__}, torch {torch.__version__}",
        hardware=sorted({name for run in runs for name in run.results.get("hardware", [])}),
        training=sum(sum(one.seconds) for one in trained),
        evaluation=sum(o.get("seconds", 0) for one in trained for o in one.outcomes.values()),
        shared=any("first" in run.config for run in runs),
        by_row={
            row: sum(sum(one.seconds) for one in found) / len({one.seed for one in found})
            for row, found in by_row.items()
        },
    )
    return text.splitlines()


def _plots(request: Request, trained: Sequence[Trained], ours: Figures) -> dict[str, str]:
    """The paper's plots of our numbers, as SVG text by name."""
    if request.study.plot == "epochs" and trained:
        first = {one.label: one for one in reversed(trained)}  # the first seed's
        metrics = {label: [first[label].run.metrics()] for label in sorted(first)}
        part = trained[0].training.options.get("select_on", "validation")
        return {"epochs": plots.training_curves(metrics, part)}
    if request.study.plot == "rounds":
        rounds = {row: _rounds(found) for row, found in ours.items()}
        if any(len(scores) > 1 for scores in rounds.values()):
            return {"rounds": plots.round_curves(rounds, "test")}
    return {}


def _rounds(figures: Mapping[str, float]) -> list[dict[str, object]]:
    """A row's accuracies by members, clean and under PGD-20, as a run's results hold them."""
    found: list[dict[str, object]] = []
    for column, clean in figures.items():
        place, _, measure = column.rpartition("/")
        attacked = figures.get(f"{place}/pgd-20")
        if measure == "clean" and attacked is not None:
            scores = {"clean": clean, "pgd-20": attacked}
            accuracies = {name: {"accuracy": score / 100} for name, score in scores.items()}
            found.append({"round": int(place.split("/")[2]), **accuracies})
    return found


def listing() -> str:
    """The studies and the scales, one line each."""
    lines = [f"{name:<14} {study.title} ({study.place})" for name, study in STUDIES.items()]
    scales = [f"--scale {name:<6} {scale.summary}" for name, scale in SCALES.items()]
    return "\n".join(folded(line, 15) for line in [*lines, "", *scales])


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
