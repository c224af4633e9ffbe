"""What a report says of its runs: what was measured, doubts, tables, and its plots in words."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

from mrboost.evaluation.page import MOST_CLASSES, NOTHING_SEEN, headline
from mrboost.evaluation.result import format_eps, worst_of
from mrboost.runs import Run
from mrboost.runs.compare import SideBySide, in_common
from mrboost.runs.join import trainings


def evaluations_of(runs: Mapping[str, Run]) -> dict[str, Any]:
    """What the page says of the evaluations of the runs, by their labels."""
    every = list(runs.values())
    evaluated = SideBySide.of(every)
    facts = [evaluated.facts(row) for row in range(len(evaluated.rows))]
    table = in_common(evaluated.head()[: len(facts[0])] if facts else [], facts)
    few_classes = every[0].config["input"]["classes"] <= MOST_CLASSES
    return {
        "headlines": _headlines(runs, evaluated),
        "evaluated": evaluated,
        "table": table,
        "comparisons": evaluated.comparisons(),
        "waiting": [run.folder for run in evaluated.without(every)],
        "doubts": _doubts(evaluated),
        "nothing_seen": NOTHING_SEEN,
        "classes": _classes(evaluated, table[1]) if few_classes else [],
    }


def _headlines(runs: Mapping[str, Run], evaluated: SideBySide) -> list[dict[str, Any]]:
    """Of each run what was measured of it as a whole: with most members, the best weights, in its
    own ball, on most images."""
    found = []
    for label, run in runs.items():
        own_ball = run.config["eps"], run.config["norm"]
        ranks = [
            (
                one["members"],
                one["weights"] != "last",
                (one["eps"], one["norm"]) == own_ball,
                one["n"],
                row,
            )
            for row, (of, one, _) in enumerate(evaluated.rows)
            if of == label
        ]
        if not ranks:
            continue
        row = max(ranks)[-1]
        _, one, _ = evaluated.rows[row]
        _, members, weights, ball, _ = evaluated.facts(row)
        about = run.config["recipe"]["summary"]
        if run.rounds_done() > 1:
            about += f"; {members} of {run.rounds_done()} members"
        if weights == "last":
            about += "; last weights"
        one = one | {"worst": worst_of(one), "failed": one.get("failed", ())}
        command = shlex.join(["mrboost", "evaluate", str(run.folder), "--attack", "autoattack"])
        found.append(headline(label, one, ball, about=about, command=command))
    return found


def _doubts(evaluated: SideBySide) -> list[str]:
    """Each doubt once, though several evaluations of a run may give it."""
    doubts = [
        f"{label}: {doubt['message']}"
        for label, evaluation, _ in evaluated.rows
        for doubt in evaluation.get("doubts", [])
    ]
    doubts += [
        f"{label}: no reasons to doubt its figures were looked for (--no-check)"
        for label, evaluation, _ in evaluated.rows
        if not evaluation.get("checked", True)
    ]
    return list(dict.fromkeys(doubts))


def _classes(
    evaluated: SideBySide, facts: Sequence[Sequence[str]]
) -> list[tuple[str, dict[str, Any]]]:
    """Clean outcomes, and those under the attack that fools the classifier most.

    ``facts`` is a table of what tells the evaluations apart.
    """
    head, *rows = facts
    lines = []
    for i, (_, _, outcomes) in enumerate(evaluated.rows):
        of_classes = [outcome for outcome in outcomes.values() if "per_class" in outcome]
        hardest = min(of_classes, key=lambda outcome: float(outcome["accuracy"]))
        which = [f"{name} {fact}" for name, fact in zip(head, rows[i], strict=True)]
        name = ", ".join([rows[i][0], *which[1:]])
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
