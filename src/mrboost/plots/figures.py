"""Figures as SVG text: training curves and accuracy against eps. No global
matplotlib state is touched."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, cycle, pairwise
from typing import Any, TypeVar

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

Metrics = Mapping[str, Sequence[Mapping[str, Any]]]
"""The epochs of each run, as its metrics.jsonl has them."""

_AXES = {"epoch": "epoch", "minutes": "minutes of training and validation"}

_WIDEST = 40
"""Letters of a label; of a longer one, a folder's path, the end."""

T = TypeVar("T")

COLORS = ("#2563eb", "#d97706", "#059669", "#9333ea", "#dc2626", "#0891b2", "#4d7c0f", "#be185d")


def _axes(
    title: str, xlabel: str, ylabel: str, size: tuple[float, float] = (5.4, 3.4)
) -> tuple[Any, Any]:
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.add_subplot()
    dress(axes, title, xlabel, ylabel)
    return figure, axes


def dress(axes: Any, title: str, xlabel: str, ylabel: str) -> None:
    """The look of all figures."""
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
    """Clean and robust accuracy on the held-out images over the epochs, or over the
    minutes; one colour per run."""
    size = (5.4, 3.5 + 0.16 * len(metrics))  # the legend lies below
    figure, axes = _axes(
        f"Training: accuracy on {held_out} images", _AXES[over], "accuracy, %", size
    )
    for color, label, rows in _coloured(metrics):
        along, marker = _along(rows, over), _marker(rows)
        for key, name, style, width in (
            ("clean", "clean", "--", 1.2),
            ("robust", "PGD-20", "-", 1.8),
            ("train_robust", None, ":", 1),
        ):
            values = [100 * row[key] for row in rows]
            known = None if name is None else f"{label}: {name}"
            axes.plot(
                along, values, color=color, ls=style, lw=width, marker=marker, ms=4, label=known
            )
        for before, after in pairwise(range(len(rows))):
            if rows[before]["round"] != rows[after]["round"]:
                axes.axvline((along[before] + along[after]) / 2, color=color, lw=0.6, alpha=0.5)
    axes.plot([], [], color="#555", ls=":", lw=1, label="training images, attacked")
    _below(axes, over == "epoch")
    return as_svg(figure)


def loss_curves(metrics: Metrics) -> str:
    """The training loss over the epochs; losses of different recipes are not
    comparable in height."""
    size = (5.4, 3.5 + 0.16 * len(metrics))  # as tall as its neighbour
    figure, axes = _axes("Training: loss on perturbed images", _AXES["epoch"], "loss", size)
    for color, label, rows in _coloured(metrics):
        losses = [row["loss"] for row in rows]
        axes.plot(
            _along(rows, "epoch"),
            losses,
            color=color,
            lw=1.6,
            marker=_marker(rows),
            ms=4,
            label=label,
        )
    _below(axes, True)
    return as_svg(figure)


def _along(rows: Sequence[Mapping[str, Any]], over: str) -> list[float]:
    """Epochs counted over all rounds, or the minutes that they took."""
    return list(accumulate(row["seconds"] / 60 if over == "minutes" else 1 for row in rows))


def _marker(rows: Sequence[object]) -> str | None:
    return "o" if len(rows) < 3 else None  # one point draws no line


def _below(axes: Any, whole: bool) -> None:
    """The legend below the axes, where it hides no line; ``whole``: ticks at whole numbers only."""
    if whole:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(
        fontsize=6.5, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=2
    )


def robustness_curves(
    curves: Mapping[str, Sequence[Sequence[Any]]], trained: Sequence[float], norm: str
) -> str:
    """Accuracy and 95 % interval against the radius of the attack, with the
    training radii marked."""
    figure, axes = _axes(f"Accuracy under attacks of growing {norm} radius", "eps", "accuracy, %")
    for color, label, points in _coloured(curves):
        radii = [point[0] for point in points]
        axes.plot(
            radii, [100 * point[1] for point in points], color=color, marker="o", ms=3, label=label
        )
        low, high = ([100 * point[2][end] for point in points] for end in (0, 1))
        axes.fill_between(radii, low, high, color=color, alpha=0.15, lw=0)
    for eps in trained:
        axes.axvline(eps, color="#777", lw=0.8, ls="--")
        axes.annotate(
            "training eps",
            (eps, 2),
            fontsize=7,
            color="#555",
            xytext=(3, 0),
            textcoords="offset points",
        )
    axes.set_ylim(0, 101)
    axes.set_xlim(left=0)
    axes.legend(fontsize=8, frameon=False)
    return as_svg(figure)


def round_curves(rounds: Mapping[str, Sequence[Mapping[str, Any]]], held_out: str) -> str:
    """Accuracy of the ensemble after each boosting round, clean and attacked; runs of
    one round are left out."""
    several = {label: rows for label, rows in rounds.items() if len(rows) > 1}
    size = (5.4, 3.4 + 0.08 * len(several))  # the legend lies below
    figure, axes = _axes(
        f"Boosting: the ensemble on {held_out} images", "members", "accuracy, %", size
    )
    for color, label, rows in _coloured(several):
        members = [row["round"] for row in rows]
        for attack, style in (("clean", "--"), ("pgd-20", "-")):
            values = [100 * row[attack]["accuracy"] for row in rows]
            axes.plot(
                members,
                values,
                color=color,
                ls=style,
                marker="o",
                ms=3,
                label=label if style == "-" else None,
            )
    axes.plot([], [], color="#555", ls="--", lw=1, label="dashed: clean; solid: PGD-20")
    _below(axes, True)
    return as_svg(figure)


def margin_curves(margins: Mapping[str, Sequence[float]], trained: Sequence[float]) -> str:
    """The share of attacked images whose margin is at most m, against m; each run at
    its training radius."""
    radius = f"eps = {trained[0]:g}" if len(trained) == 1 else "at the training eps"
    figure, axes = _axes(f"Margins under attack, {radius}", "margin m", "images with margin ≤ m, %")
    for color, label, values in _coloured(margins):
        ordered = sorted(values)
        share = [100 * (i + 1) / len(ordered) for i in range(len(ordered))]
        axes.step(
            [-1.0, *ordered, 1.0], [0.0, *share, 100.0], where="post", color=color, label=label
        )
    axes.axvline(0, color="#777", lw=0.8, ls="--")
    axes.set_xlim(-1, 1)
    axes.set_ylim(0, 101)
    axes.legend(fontsize=8, frameon=False)
    return as_svg(figure)


def contours(title: str, labels: tuple[str, str], axis: Any, values: Any, levels: Any) -> str:
    """A function of two numbers, both along ``axis``: ``values[i, j]`` is that at
    ``(axis[j], axis[i])``."""
    figure, axes = _axes(title, *labels, size=(4.4, 3.8))
    filled = axes.contourf(axis, axis, values, levels=levels, cmap="viridis", extend="max")
    axes.contour(axis, axis, values, levels=levels, colors="white", linewidths=0.4)
    figure.colorbar(filled, ax=axes).ax.tick_params(labelsize=8)
    return as_svg(figure)


def lines(
    title: str, labels: tuple[str, str], values: Mapping[str, Any], *, logarithmic: bool = False
) -> str:
    """One line for each label over 1, 2, 3 …"""
    figure, axes = _axes(title, *labels)
    for color, label, row in _coloured(values):
        axes.plot(range(1, len(row) + 1), row, color=color, lw=1.6, label=label)
    if logarithmic:
        axes.set(xscale="log", yscale="log")
    axes.legend(fontsize=8, frameon=False)
    return as_svg(figure)


def _coloured(rows: Mapping[str, T]) -> Iterator[tuple[str, str, T]]:
    """A colour, a label that leaves room for the lines, and what it labels."""
    for color, (label, row) in zip(cycle(COLORS), rows.items()):
        yield color, label if len(label) <= _WIDEST else f"…{label[1 - _WIDEST :]}", row
