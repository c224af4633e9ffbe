"""A picture of one row's certificate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mrboost.plots.figures import COLORS, new_figure

from .cells import Floats, Ints
from .certificate import Certificate

MOST_COLUMNS = 10  # that are drawn on their own
WINS, LOSES = COLORS[0], COLORS[4]


def certificate_figure(
    x: Floats, proof: Certificate, order: Ints, margins: Floats, names: Sequence[str], label: str
) -> Any:
    """A bar for each column, from the margin before it may be off to the margin after.

    Args:
        x: the row.
        proof: its certificate.
        order: the columns, and
        margins: the margins, as ``margins_by_column`` has them.
        names: of all columns.
        label: the row's class.
    """
    moved = np.flatnonzero(margins[1:] < margins[:-1])
    shown = moved[:MOST_COLUMNS]
    bars = [("no error", 0.0, margins[0])]
    bars += [(_described(order[k], x, proof, names), margins[k], margins[k + 1]) for k in shown]
    if len(moved) > len(shown):
        bars.append((f"{len(moved) - len(shown)} more columns", bars[-1][2], margins[-1]))
    bars.append(("all columns off", 0.0, margins[-1]))
    xlabel = f"margin over the best other class ({proof.kind})"
    figure, axes = new_figure("", xlabel, "", height=1.2 + 0.25 * len(bars))
    figure.set_figwidth(7)  # names of columns can be long
    title = f"A row of class {label}: {_verdict(proof)}"
    figure.suptitle(title, x=0.01, ha="left", fontsize=10, fontweight="bold")
    for place, (_, before, after) in enumerate(bars):
        color = WINS if after > 0 else LOSES
        bar = axes.barh(place, after - before, left=before, color=color, ec=color, height=0.7)
        axes.bar_label(bar, [f"{after:.3g}"], fontsize=7, padding=3)
    axes.axvline(0, color="#777", lw=0.8)
    axes.use_sticky_edges = False
    axes.margins(x=0.2)  # room for the numbers
    axes.set_yticks(range(len(bars)), [name for name, _, _ in bars])
    axes.invert_yaxis()
    return figure


def _verdict(proof: Certificate) -> str:
    if proof.robust[0]:
        return "proved robust" if proof.margin[0] > 0 else "proved robust, by a search"
    return "misled by the witness" if proof.misled[0] else "not decided"


def _described(j: int, x: Floats, proof: Certificate, names: Sequence[str]) -> str:
    """A column with its value at the witness, or else with its eps."""
    assert proof.witness is not None
    there = proof.witness[0, j]
    change = f"± {proof.eps[j]:.3g}" if np.isnan(there) else f"→ {there:.4g}"
    return f"{names[j]}: {x[j]:.4g} {change}"
