"""One HTML page, and one plot, of what evaluations of any models found."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mrboost.errors import InputError
from mrboost.files import replacing, write_texts

MOST_CLASSES = 20  # for the table by class
Found = Mapping[str, Mapping[str, Any]]
"""Evaluations by their labels, as ``to_dict`` has them."""


def write_page(found: Found, rows: Mapping[str, list[dict[str, Any]]], path: Path) -> None:
    """One self-contained page.

    Args:
        found: the evaluations.
        rows: the same as ``to_rows`` has them.
        path: the file.
    """
    from mrboost.plots.figures import as_svg
    from mrboost.plots.html import render

    by_class = [
        (f"{label}: {outcome['attack']}", outcome)
        for label, one in found.items()
        for outcome in one["outcomes"]
        if len(outcome["per_class"]) <= MOST_CLASSES
    ]
    doubts = {doubt["message"] for one in found.values() for doubt in one["doubts"]}
    page = render(
        Path(__file__).with_name("evaluation.html"),
        found=found,
        rows=rows,
        figure=as_svg(_bars(rows)),
        doubts=sorted(doubts),
        classes=by_class,
    )
    write_texts({path: page})


def write_plot(rows: Mapping[str, list[dict[str, Any]]], path: Path) -> None:
    """A bar for each attack with its interval, as SVG, PNG or PDF by the suffix of the file."""
    figure = _bars(rows)
    kinds = ("svg", "png", "pdf")
    if path.suffix[1:] not in kinds:
        raise InputError(f"a plot is written as {', '.join(kinds)}, got {str(path)!r}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            figure.savefig(temporary, format=path.suffix[1:], dpi=200)
    except OSError as error:
        raise InputError(f"cannot write {str(path)!r}: {error.strerror}") from None


def _bars(rows: Mapping[str, list[dict[str, Any]]]) -> Any:
    from mrboost.plots.figures import accuracy_bars  # matplotlib takes a second to load

    return accuracy_bars(rows)
