"""What a report says of its runs: what was measured, doubts, tables, and its plots in words."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

from mrboost.evaluation.page import MOST_CLASSES, NOTHING_SEEN, headline
from mrboost.evaluation.result import format_eps, worst_of
from mrboost.runs import Run
from mrboost.runs.compare import Row, SideBySide, in_common
from mrboost.runs.join import trainings


def evaluations_of(runs: Mapping[str, Run]) -> dict[str, Any]:
    """What the page says of the evaluations of the runs, by their labels."""
    every = list(runs.values())
    evaluated = SideBySide.of(every)
    by_run = {
        label: rows
        for label in runs
        if (rows := [row for row in evaluated.rows if row.label == label])
    }
    facts = [row.facts for row in evaluated.rows]
    table = in_common(evaluated.head()[: len(facts[0])] if facts else [], facts)
    few_classes = every[0].config["input"]["classes"] <= MOST_CLASSES
    return {
        "headlines": [_headline(runs[label], rows) for label, rows in by_run.items()],
        "evaluated": evaluated,
        "table": table,
        "comparisons": evaluated.comparisons(),
        "waiting": [run.folder for run in evaluated.without(every)],
        "doubts": _doubts(evaluated),
        "nothing_seen": NOTHING_SEEN,
        "classes": _classes(evaluated, table[1]) if few_classes else [],
    }


def _headline(run: Run, rows: Sequence[Row]) -> dict[str, Any]:
    """What was measured of a run as a whole: with most members, the best weights, in its own ball,
    on most images."""
    own_ball = run.config["eps"], run.config["norm"]

    def rank(row: Row) -> tuple[object, ...]:
        one = row.evaluation
        return one["members"], one["weights"] != "last", row.ball == own_ball, one["n"]

    row = max(reversed(rows), key=rank)
    label, members, weights, ball, _ = row.facts
    about = run.config["recipe"]["summary"]
    if run.rounds_done() > 1:
        about += f"; {members} of {run.rounds_done()} members"
    if weights == "last":
        about += "; last weights"
    one = {"failed": (), **row.evaluation, "worst": worst_of(row.evaluation)}
    command = shlex.join(["mrboost", "evaluate", str(run.folder), "--attack", "autoattack"])
    return headline(label, one, ball, about=about, command=command)


def _doubts(evaluated: SideBySide) -> list[str]:
    """Each doubt once, though several evaluations of a run may give it."""
    doubts = [
        f"{row.label}: {doubt['message']}"
        for row in evaluated.rows
        for doubt in row.evaluation.get("doubts", [])
    ]
    doubts += [
        f"{row.label}: no reasons to doubt its figures were looked for (--no-check)"
        for row in evaluated.rows
        if not row.evaluation.get("checked", True)
    ]
    return list(dict.fromkeys(doubts))


def _classes(
    evaluated: SideBySide, facts: Sequence[Sequence[str]]
) -> list[tuple[str, Mapping[str, Any]]]:
    """Clean outcomes, and those under the attack that fools the classifier most.

    ``facts`` is a table of what tells the evaluations apart.
    """
    head, *rows = facts
    lines = []
    for row, told in zip(evaluated.rows, rows, strict=True):
        outcomes = row.outcomes
        of_classes = [outcome for outcome in outcomes.values() if "per_class" in outcome]
        hardest = min(of_classes, key=lambda outcome: float(outcome["accuracy"]))
        which = [f"{name} {fact}" for name, fact in zip(head, told, strict=True)]
        name = ", ".join([told[0], *which[1:]])
        for outcome in [outcomes["clean"], hardest] if "clean" in outcomes else [hardest]:
            lines.append((f"{name}: {outcome['attack']}", outcome))
    return lines


def epochs_of(run: Run) -> list[list[dict[str, Any]]]:
    """The epochs of each training behind a run: one, but for networks that were joined."""
    ends = [*accumulate(trainings(run), initial=0)]
    ends[-1] = run.config["rounds"]  # the round under way too
    return [
        [row for row in run.metrics() if first < row["round"] <= last]
        for first, last in pairwise(ends)
    ]


def plots_in_words(
    runs: Mapping[str, Run], curves: Mapping[str, Mapping[str, Any]], attack: str
) -> dict[str, str]:
    """What the plots show, in words for those who do not see them."""
    at_eps = [
        f"{label} "
        + ", ".join(f"{accuracy:.1%} at {format_eps(eps)}" for eps, accuracy, _ in curve["points"])
        for label, curve in curves.items()
    ]
    fooled = [
        f"{label} {sum(value <= 0 for value in curve['margins']) / len(curve['margins']):.1%}"
        for label, curve in curves.items()
    ]
    ends = [
        f"{label} {rows[-1]['clean']:.1%} clean and {rows[-1]['robust']:.1%} under PGD-20"
        for label, run in runs.items()
        for rows in epochs_of(run)
        if rows
    ]
    after = [
        f"{label} {rows[0]['pgd-20']['accuracy']:.1%} with one and "
        f"{rows[-1]['pgd-20']['accuracy']:.1%} with {len(rows)} members"
        for label, run in runs.items()
        if len(rows := run.results.get("rounds", ())) > 1
    ]
    curve = f"Curves of accuracy under {attack} against eps"
    return {
        "robustness": f"{curve}: {'; '.join(at_eps)}",
        "margins": f"Curves of margins under attack; the share below 0: {', '.join(fooled)}",
        "training": f"Curves of accuracy by epoch, which end at: {'; '.join(ends)}",
        "loss": "Curves of the training loss by epoch",
        "minutes": f"The same curves of accuracy by minutes: {'; '.join(ends)}",
        "rounds": f"Curves of accuracy under PGD-20 by members: {'; '.join(after)}",
    }


def value_in_words(key: str, value: object) -> str:
    """An option's value, numbers with six digits at most."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return format_eps(value) if key in ("eps", "step_size") else f"{value:g}"
    if isinstance(value, list):
        return ", ".join(value_in_words(key, item) for item in value)
    return str(value)
