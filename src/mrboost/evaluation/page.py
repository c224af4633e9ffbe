"""One HTML page, and one plot, of what evaluations of any models found."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mrboost.errors import InputError
from mrboost.files import write_texts

MOST_CLASSES = 20  # for the table by class
NOTHING_SEEN = (
    "No reason to doubt these figures was seen. That proves nothing: an attack gives an upper "
    "bound on robustness."
)
Found = Mapping[str, Mapping[str, Any]]
"""Evaluations by their labels, as ``to_dict`` has them."""


def has_autoattack(evaluation: Mapping[str, Any]) -> bool:
    """Whether AutoAttack, or another attack in stages, is among an evaluation's attacks."""
    return any(outcome.get("stages") for outcome in evaluation["outcomes"])


def headline(
    label: str, evaluation: Mapping[str, Any], ball: str, *, about: str = "", command: str = ""
) -> dict[str, Any]:
    """What a page says first of an evaluation: the accuracy clean and in the worst case, over which
    attacks, and what is missing.

    Args:
        label: what is shown.
        evaluation: as ``to_dict`` has it.
        ball: in words.
        about: what the classifier is, in words.
        command: that runs AutoAttack, if there is one.
    """
    outcomes = {one["attack"]: one for one in evaluation["outcomes"]}
    attacks = ", ".join(name for name in outcomes if name != "clean")
    worst = evaluation["worst"] if attacks else None
    figures = {"clean accuracy": outcomes.get("clean"), "worst case": worst}
    measured = f"{evaluation['n']:,} images"
    remarks = []
    if worst:
        measured += f", {ball}: worst case over {attacks}"
    elif not attacks:
        remarks.append("No attack was run.")
    elif not evaluation["failed"]:
        remarks.append("No worst case: the attacks are of several balls, or do not say theirs.")
    if evaluation["failed"]:
        remarks.append(f"{', '.join(evaluation['failed'])} failed, so there is no worst case.")
    if worst and not has_autoattack(evaluation):
        remedy = f": `{command}`" if command else ""
        remarks.append(f"AutoAttack, which may lower it, was not run{remedy}")
    return {
        "label": label,
        "about": about,
        "figures": {name: figure for name, figure in figures.items() if figure},
        "measured": f"{measured}.",
        "remarks": remarks,
    }


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
        headlines=[
            headline(label, one, *{row["ball"] for row in rows[label]} or ("no figures",))
            for label, one in found.items()
        ],
        rows=rows,
        figure=as_svg(_bars(rows)),
        alt="; ".join(_in_words(label, lines) for label, lines in rows.items()),
        doubts=sorted(doubts),
        nothing_seen=NOTHING_SEEN,
        classes=by_class,
    )
    write_texts({path: page})


def _in_words(label: str, rows: list[dict[str, Any]]) -> str:
    """What the plot shows of a model."""
    figures = (f"{row['attack']} {row['accuracy']:.1%}" for row in rows)
    return f"Bars of the accuracy of {label}: {', '.join(figures)}"


def write_plot(rows: Mapping[str, list[dict[str, Any]]], path: Path) -> None:
    """A bar for each attack with its interval, as SVG, PNG or PDF by the suffix of the file."""
    figure = _bars(rows)
    kinds = ("svg", "png", "pdf")
    if path.suffix[1:] not in kinds:
        raise InputError(f"a plot is written as {', '.join(kinds)}, got {str(path)!r}")
    content = io.BytesIO()
    figure.savefig(content, format=path.suffix[1:], dpi=200)
    write_texts({path: content.getvalue()})


def _bars(rows: Mapping[str, list[dict[str, Any]]]) -> Any:
    from mrboost.plots.figures import accuracy_bars  # matplotlib takes a second to load

    return accuracy_bars(rows)
