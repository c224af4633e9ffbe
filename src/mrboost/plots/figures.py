"""Figures as SVG text: training curves, and accuracy against eps and against members.

No global state of matplotlib is touched.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, cycle, pairwise
from typing import Any, TypeVar

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

Rows = Sequence[Mapping[str, Any]]
Metrics = Mapping[str, Sequence[Rows]]
"""The epochs of each run, as its metrics.jsonl has them: one list, or, of networks that were
trained apart, one for each training."""

_TIME_LABELS = {"epoch": "epoch", "minutes": "minutes of training and validation"}

_LONGEST_LABEL = 40
"""Characters; a longer one, the path of a folder say, is cut at its beginning."""

T = TypeVar("T")

COLORS = ("#2563eb", "#d97706", "#059669", "#9333ea", "#dc2626", "#0891b2", "#4d7c0f", "#be185d")


def new_figure(title: str, xlabel: str, ylabel: str, height: float = 3.4) -> tuple[Any, Any]:
    """A figure with one pair of axes, in the look of all our figures."""
    figure = Figure(figsize=(5.4, height), layout="constrained")
    axes = figure.add_subplot()
    style(axes, title, xlabel, ylabel)
    return figure, axes


def style(axes: Any, title: str, xlabel: str, ylabel: str) -> None:
    """Titles, labels and grid of a pair of axes, in the look of all our figures."""
    axes.set_title(title, loc="left", fontsize=10, fontweight="bold")
    axes.set_xlabel(xlabel, fontsize=9)
    axes.set_ylabel(ylabel, fontsize=9)
    axes.tick_params(labelsize=8)
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def as_svg(figure: Any) -> str:
    """The same text for the same figure."""
    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "mrboost"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return buffer.getvalue()


def training_curves(metrics: Metrics, held_out: str, *, over: str = "epoch") -> str:
    """Clean and robust accuracy on the held-out images, one colour per run.

    Args:
        metrics: the epochs of each run.
        held_out: what the images are called in the title.
        over: ``"epoch"``, or ``"minutes"`` of training and validation.
    """
    title = f"Training: accuracy on {held_out} images"
    height = 3.5 + 0.16 * len(metrics)  # the legend lies below
    figure, axes = new_figure(title, _TIME_LABELS[over], "accuracy, %", height)
    for color, label, trainings in _coloured(metrics):
        for number, rows in enumerate(trainings):
            _training_curve(axes, rows, over, color, "" if number else _apart(label, trainings))
    axes.plot([], [], color="#555", ls=":", lw=1, label="training images, attacked")
    _legend_below(axes, whole_numbers=over == "epoch")
    return as_svg(figure)


def _training_curve(axes: Any, rows: Rows, over: str, color: str, label: str) -> None:
    """One training; a line between two rounds, and no label for the second of several."""
    along = _along(rows, over)
    for key, name, style, width in (
        ("clean", f"{label}: clean", "--", 1.2),
        ("robust", f"{label}: PGD-20", "-", 1.8),
        ("train_robust", None, ":", 1),
    ):
        values = [100 * row[key] for row in rows]
        look = {"color": color, "ls": style, "lw": width, "marker": _marker(rows), "ms": 4}
        axes.plot(along, values, label=name if label else None, **look)
    for before, after in pairwise(range(len(rows))):
        if rows[before]["round"] != rows[after]["round"]:
            axes.axvline((along[before] + along[after]) / 2, color=color, lw=0.6, alpha=0.5)


def _apart(label: str, trainings: Sequence[Rows]) -> str:
    """A label that says how many trainings the curves are of, if several."""
    return f"{label}, {len(trainings)} apart" if len(trainings) > 1 else label


def loss_curves(metrics: Metrics) -> str:
    """The training loss over the epochs; the heights of different recipes' losses cannot be
    compared."""
    height = 3.5 + 0.16 * len(metrics)  # as tall as its neighbour
    figure, axes = new_figure("Training: loss on perturbed images", "epoch", "loss", height)
    for color, label, trainings in _coloured(metrics):
        for number, rows in enumerate(trainings):
            losses = [row["loss"] for row in rows]
            look = {"color": color, "lw": 1.6, "marker": _marker(rows), "ms": 4}
            name = None if number else _apart(label, trainings)
            axes.plot(_along(rows, "epoch"), losses, label=name, **look)
    _legend_below(axes, whole_numbers=True)
    return as_svg(figure)


def _along(rows: Sequence[Mapping[str, Any]], over: str) -> list[float]:
    """Epochs counted over all rounds, or the minutes that they took."""
    return list(accumulate(row["seconds"] / 60 if over == "minutes" else 1 for row in rows))


def _marker(rows: Sequence[object]) -> str | None:
    return "o" if len(rows) < 3 else None  # one point draws no line


def _legend_below(axes: Any, *, whole_numbers: bool) -> None:
    """The legend below the axes, where it hides no line."""
    if whole_numbers:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    below = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.15), "ncols": 2}
    axes.legend(fontsize=6.5, frameon=False, **below)


def robustness_curves(
    curves: Mapping[str, Sequence[Sequence[Any]]], trained: Sequence[float], norm: str
) -> str:
    """Accuracy and 95 % interval against the radius of the attack; training radii are marked."""
    title = f"Accuracy under attacks of growing {norm} radius"
    figure, axes = new_figure(title, "eps", "accuracy, %")
    for color, label, points in _coloured(curves):
        radii = [point[0] for point in points]
        accuracy, low, high = (
            [100 * value for value in values]
            for values in zip(*((point[1], *point[2]) for point in points), strict=True)
        )
        axes.plot(radii, accuracy, color=color, marker="o", ms=3, label=label)
        axes.fill_between(radii, low, high, color=color, alpha=0.15, lw=0)
    for eps in trained:
        axes.axvline(eps, color="#777", lw=0.8, ls="--")
        look = {"textcoords": "offset points", "fontsize": 7, "color": "#555"}
        axes.annotate("training eps", (eps, 2), (3, 0), **look)
    axes.set_ylim(0, 101)
    axes.set_xlim(left=0)
    axes.legend(fontsize=8, frameon=False)
    return as_svg(figure)


def round_curves(rounds: Mapping[str, Sequence[Mapping[str, Any]]], held_out: str) -> str:
    """Accuracy of the ensemble after each boosting round, clean and attacked, of the runs with
    several rounds."""
    several = sum(len(rows) > 1 for rows in rounds.values())
    title = f"Boosting: the ensemble on {held_out} images"
    height = 3.4 + 0.08 * several  # the legend lies below
    figure, axes = new_figure(title, "members", "accuracy, %", height)
    for color, label, rows in _coloured(rounds):
        if len(rows) < 2:
            continue
        members = [row["round"] for row in rows]
        for attack, style in (("clean", "--"), ("pgd-20", "-")):
            values = [100 * row[attack]["accuracy"] for row in rows]
            name = label if style == "-" else None
            axes.plot(members, values, color=color, ls=style, marker="o", ms=3, label=name)
    axes.plot([], [], color="#555", ls="--", lw=1, label="dashed: clean; solid: PGD-20")
    _legend_below(axes, whole_numbers=True)
    return as_svg(figure)


def margin_curves(margins: Mapping[str, Sequence[float]], trained: Sequence[float]) -> str:
    """The share of attacked images whose margin is at most m, against m; each run is attacked at
    its training radius."""
    radius = f"eps = {trained[0]:g}" if len(trained) == 1 else "at the training eps"
    title, ylabel = f"Margins under attack, {radius}", "images with margin ≤ m, %"
    figure, axes = new_figure(title, "margin m", ylabel)
    for color, label, values in _coloured(margins):
        m = [-1.0, *sorted(values), 1.0]
        share = [100 * i / len(values) for i in range(len(values) + 1)]
        axes.step(m, [*share, 100.0], where="post", color=color, label=label)
    axes.axvline(0, color="#777", lw=0.8, ls="--")
    axes.set_xlim(-1, 1)
    axes.set_ylim(0, 101)
    axes.legend(fontsize=8, frameon=False)
    return as_svg(figure)


def _coloured(rows: Mapping[str, T]) -> Iterator[tuple[str, str, T]]:
    """A colour, a label that leaves room for the lines, and what it labels."""
    for color, (label, row) in zip(cycle(COLORS), rows.items()):
        if len(label) > _LONGEST_LABEL:
            label = f"…{label[1 - _LONGEST_LABEL :]}"
        yield color, label, row


def accuracy_bars(rows: Mapping[str, Sequence[Mapping[str, Any]]]) -> Any:
    """The accuracy under each attack of one or several models, with 95 % intervals.

    Args:
        rows: of each model; each with ``attack``, ``accuracy``, ``low`` and ``high``.
    """
    attacks = list(dict.fromkeys(row["attack"] for several in rows.values() for row in several))
    height = 1.2 + 0.25 * len(attacks) * max(1, len(rows))
    figure, axes = new_figure("Accuracy, with 95 % intervals", "accuracy, %", "", height)
    thickness = 0.8 / max(1, len(rows))
    for number, (color, label, several) in enumerate(_coloured(rows)):
        places = [attacks.index(row["attack"]) + number * thickness for row in several]
        shares = [100 * row["accuracy"] for row in several]
        below = [100 * (row["accuracy"] - row["low"]) for row in several]
        above = [100 * (row["high"] - row["accuracy"]) for row in several]
        look = {"height": 0.9 * thickness, "color": color, "alpha": 0.8}
        axes.barh(places, shares, label=label, xerr=[below, above], **look)
    axes.set_yticks([i + 0.4 - thickness / 2 for i in range(len(attacks))], attacks)
    axes.invert_yaxis()
    axes.set_xlim(0, 101)
    if len(rows) > 1:
        axes.legend(fontsize=8, frameon=False)
    return figure
