"""Figures as SVG text: training curves and accuracy against eps. No global matplotlib state is touched."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

COLORS = ("#2563eb", "#d97706", "#059669", "#9333ea", "#dc2626", "#0891b2", "#4d7c0f", "#be185d")


def _axes(title: str, xlabel: str, ylabel: str, size: tuple[float, float] = (5.4, 3.4)) -> tuple[Any, Any]:
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(title, loc="left", fontsize=10, fontweight="bold")
    axes.set_xlabel(xlabel, fontsize=9)
    axes.set_ylabel(ylabel, fontsize=9)
    axes.tick_params(labelsize=8)
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _svg(figure: Any) -> str:
    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "mrboost"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return buffer.getvalue()


def training_curves(metrics: Mapping[str, Sequence[Mapping[str, Any]]], held_out: str) -> str:
    """Clean and robust accuracy on the held-out images over the epochs, one colour per run."""
    figure, axes = _axes(f"Training: accuracy on {held_out} images", "epoch", "accuracy, %")
    for color, (label, rows) in zip(_cycle(len(metrics)), metrics.items(), strict=True):
        epochs = range(1, len(rows) + 1)  # over all rounds
        axes.plot(epochs, [100 * r["clean"] for r in rows], color=color, ls="--", lw=1.2, label=f"{label}: clean")
        axes.plot(epochs, [100 * r["robust"] for r in rows], color=color, lw=1.8, label=f"{label}: PGD-20")
        axes.plot(epochs, [100 * r["train_robust"] for r in rows], color=color, ls=":", lw=1, alpha=0.8)
        for boundary in [i + 0.5 for i in range(1, len(rows)) if rows[i]["round"] != rows[i - 1]["round"]]:
            axes.axvline(boundary, color=color, lw=0.6, alpha=0.5)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.plot([], [], color="#555", ls=":", lw=1, label="training images, attacked")
    axes.legend(fontsize=7, frameon=False)
    return _svg(figure)


def loss_curves(metrics: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """The training loss over the epochs; losses of different recipes are not comparable in height."""
    figure, axes = _axes("Training: loss on perturbed images", "epoch", "loss")
    for color, (label, rows) in zip(_cycle(len(metrics)), metrics.items(), strict=True):
        axes.plot(range(1, len(rows) + 1), [r["loss"] for r in rows], color=color, lw=1.6, label=label)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(fontsize=7, frameon=False)
    return _svg(figure)


def robustness_curves(curves: Mapping[str, Sequence[Sequence[Any]]], eps: float, norm: str) -> str:
    """Accuracy and 95 % interval against the radius of the attack, with the training radius marked."""
    figure, axes = _axes(f"Accuracy under attacks of growing {norm} radius", "eps", "accuracy, %")
    for color, (label, points) in zip(_cycle(len(curves)), curves.items(), strict=True):
        radii = [point[0] for point in points]
        axes.plot(radii, [100 * point[1] for point in points], color=color, marker="o", ms=3, label=label)
        low, high = ([100 * point[2][end] for point in points] for end in (0, 1))
        axes.fill_between(radii, low, high, color=color, alpha=0.15, lw=0)
    axes.axvline(eps, color="#777", lw=0.8, ls="--")
    axes.annotate("training eps", (eps, 2), fontsize=7, color="#555", xytext=(3, 0), textcoords="offset points")
    axes.set_ylim(0, 101)
    axes.set_xlim(left=0)
    axes.legend(fontsize=8, frameon=False)
    return _svg(figure)


def round_curves(rounds: Mapping[str, Sequence[Mapping[str, Any]]], held_out: str) -> str:
    """Accuracy of the ensemble after each boosting round, clean and attacked; runs of one round are left out."""
    several = {label: rows for label, rows in rounds.items() if len(rows) > 1}
    size = (5.4, 3.4 + 0.08 * len(several))  # the legend lies below
    figure, axes = _axes(f"Boosting: the ensemble on {held_out} images", "members", "accuracy, %", size)
    for color, (label, rows) in zip(_cycle(len(several)), several.items(), strict=True):
        members = [row["round"] for row in rows]
        for attack, style in (("clean", "--"), ("pgd-20", "-")):
            values = [100 * row[attack]["accuracy"] for row in rows]
            axes.plot(members, values, color=color, ls=style, marker="o", ms=3, label=label if style == "-" else None)
    axes.plot([], [], color="#555", ls="--", lw=1, label="dashed: clean; solid: PGD-20")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(fontsize=6, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=2)
    return _svg(figure)


def margin_curves(margins: Mapping[str, Sequence[float]], eps: float) -> str:
    """The share of attacked images whose margin is at most m, against m."""
    figure, axes = _axes(f"Margins under attack, eps = {eps:g}", "margin m", "images with margin ≤ m, %")
    for color, (label, values) in zip(_cycle(len(margins)), margins.items(), strict=True):
        ordered = sorted(values)
        share = [100 * (i + 1) / len(ordered) for i in range(len(ordered))]
        axes.step([-1.0, *ordered, 1.0], [0.0, *share, 100.0], where="post", color=color, label=label)
    axes.axvline(0, color="#777", lw=0.8, ls="--")
    axes.set_xlim(-1, 1)
    axes.set_ylim(0, 101)
    axes.legend(fontsize=8, frameon=False)
    return _svg(figure)


def contours(title: str, labels: tuple[str, str], axis: Any, values: Any, levels: Any) -> str:
    """A function of two numbers, both along ``axis``: ``values[i, j]`` is that at ``(axis[j], axis[i])``."""
    figure, axes = _axes(title, *labels, size=(4.4, 3.8))
    filled = axes.contourf(axis, axis, values, levels=levels, cmap="viridis", extend="max")
    axes.contour(axis, axis, values, levels=levels, colors="white", linewidths=0.4)
    figure.colorbar(filled, ax=axes).ax.tick_params(labelsize=8)
    return _svg(figure)


def lines(title: str, labels: tuple[str, str], values: Mapping[str, Any], *, logarithmic: bool = False) -> str:
    """One line for each label over 1, 2, 3 …"""
    figure, axes = _axes(title, *labels)
    for color, (label, row) in zip(_cycle(len(values)), values.items(), strict=True):
        axes.plot(range(1, len(row) + 1), row, color=color, lw=1.6, label=label)
    if logarithmic:
        axes.set(xscale="log", yscale="log")
    axes.legend(fontsize=8, frameon=False)
    return _svg(figure)


def _cycle(count: int) -> list[str]:
    return [COLORS[i % len(COLORS)] for i in range(count)]
