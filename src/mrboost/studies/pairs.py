"""Two rows of a study on the same test images: their differences, and whether a test can
tell them from chance."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from mrboost.evaluation.statistics import signed_difference

from .figures import Table
from .paper import Report
from .planning import Training

Points = dict[int, list[float]]
"""Of one row and column: for each seed whether each test image is classified correctly."""


def paired(paper: Report, there: Sequence[Training]) -> list[Table]:
    """The rows that the paper's text compares, point by point."""
    points: dict[str, dict[str, Points]] = {}
    for training in there:
        row = points.setdefault(training.label, {})
        for column, outcome in training.outcomes().items():
            row.setdefault(column, {})[training.options["seed"]] = outcome.get("correct", [])
    cells = _cells(paper, points)
    columns = list(dict.fromkeys(column for found in cells.values() for column in found))
    if not columns:
        return []
    rows = [
        [f"{more} − {less}", *(found.get(column, "–") for column in columns)]
        for (more, less), found in cells.items()
    ]
    title = (
        "Differences on the same test images, in points. In brackets the sign test's p (McNemar's, "
        "with one seed): how likely so uneven a split of the images on which two rows differ would "
        "be by chance. It knows nothing of how much another training would differ."
    )
    return [Table(title, ["", *column_labels(columns)], rows)]


def _cells(
    paper: Report, points: dict[str, dict[str, Points]]
) -> dict[tuple[str, str], dict[str, str]]:
    """For each two rows that are compared, a cell for each column that both have; or for
    the two that are named."""
    cells: dict[tuple[str, str], dict[str, str]] = {}
    for claim in paper.claims:
        for more, less in zip(claim.more, claim.less, strict=True):
            first, second = points.get(more, {}), points.get(less, {})
            partners = (
                zip(claim.columns, claim.against, strict=True)
                if claim.against
                else zip(first, first, strict=True)
            )
            for column, partner in partners:
                if more == less or (less, more) in cells:
                    continue
                measure = partner.split("/")[3]
                named = less if column.endswith(measure) else f"{less} ({measure})"
                if cell := _cell(first.get(column, {}), second.get(partner, {})):
                    cells.setdefault((more, named), {})[column] = cell
    return cells


def _cell(first: Points, second: Points) -> str:
    """The difference of each image's mean over the seeds that both have; nothing
    where there are none."""
    seeds = [seed for seed in first if len(first[seed]) == len(second.get(seed, ()))]
    ours, theirs = (
        [fmean(image) for image in zip(*(points[s] for s in seeds), strict=True)]
        for points in (first, second)
    )
    return signed_difference(ours, theirs) if ours else ""


def column_labels(columns: Sequence[str]) -> list[str]:
    """The parts of the columns' names in which they differ."""
    split = [column.split("/") for column in columns]
    varying = [i for i in range(4) if i == 3 or len({parts[i] for parts in split}) > 1]
    wording = ("{}", "{}", "members {}", "{}")
    return [", ".join(wording[i].format(parts[i]) for i in varying) for parts in split]
