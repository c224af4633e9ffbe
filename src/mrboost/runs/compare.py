"""The evaluations of several runs side by side, and which of their differences
are more than chance."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from mrboost.evaluation.result import format_eps, same_images, worst_of
from mrboost.evaluation.statistics import signed_difference, worst_case
from mrboost.progress import COLUMNS, folded

from .folder import Run

Table = list[list[str]]
WORST = "worst case"
_FACTS = ("members", "weights", "ball", "images")
DIFFERENCES = (
    "Differences on the same images, in points. In brackets the sign test's p (McNemar's): how "
    "likely so uneven a split is by chance."
)


def run_labels(runs: Sequence[Run]) -> list[str]:
    """The recipes' names where they tell the runs apart, the folders' otherwise."""
    names = [str(run.config["recipe"]["name"]) for run in runs]
    return names if len(set(names)) == len(names) else [str(run.folder) for run in runs]


@dataclass(frozen=True)
class SideBySide:
    """Every evaluation of the runs in one table; figures are comparable where
    ball and images agree."""

    attacks: list[str]
    # run, evaluation, outcomes by attack
    rows: list[tuple[str, dict[str, Any], dict[str, dict[str, Any]]]]

    @classmethod
    def of(cls, runs: Sequence[Run]) -> SideBySide:
        rows, attacks = [], []
        for label, run in zip(run_labels(runs), runs, strict=True):
            for evaluation in run.results.get("evaluations", []):
                if not run.is_of(evaluation):
                    continue
                found = {outcome["attack"]: outcome for outcome in evaluation["outcomes"]}
                if len(found) > 2 and (worst := worst_of(evaluation)) is not None:
                    # Attacks on members belong to the set that fits an ensemble, and are not
                    # the same for any two.
                    over = sorted(name for name in found if "member " not in name)
                    found[WORST] = worst | {"over": over}
                attacks += [name for name in found if name not in attacks]
                rows.append((label, evaluation, found))
        return cls(sorted(attacks, key=_place), rows)

    def without(self, runs: Sequence[Run]) -> list[Run]:
        """Those of its runs that have not been evaluated yet."""
        there = [label for label, _, _ in self.rows]
        labelled = zip(run_labels(runs), runs, strict=True)
        return [run for label, run in labelled if label not in there]

    def head(self) -> list[str]:
        return ["run", *_FACTS, *self.attacks]

    def facts(self, row: int) -> list[str]:
        label, evaluation, _ = self.rows[row]
        ball = "several"
        if evaluation["eps"] is not None:
            ball = f"{evaluation['norm']} {format_eps(evaluation['eps'])}"
        members, images = str(evaluation["members"]), f"{evaluation['n']:,}"
        return [label, members, evaluation["weights"], ball, images]

    def failures(self) -> list[str]:
        """Attacks that failed, row by row."""
        return [
            f"{', '.join(self.facts(i))} images: {', '.join(evaluation['failed'])} failed, so "
            "there is no worst case"
            for i, (_, evaluation, _) in enumerate(self.rows)
            if evaluation.get("failed")
        ]

    def is_best(self, row: int, attack: str) -> bool:
        """Whether its accuracy is the best of those on the same images in the same ball."""
        _, own, outcomes = self.rows[row]
        rivals = [
            found[attack]["accuracy"]
            for _, other, found in self.rows
            if all(other[key] == own[key] for key in ("eps", "norm", "n"))
            and same_images(other, own)
            and _is_like(found.get(attack), outcomes[attack])
        ]
        return len(rivals) > 1 and bool(outcomes[attack]["accuracy"] == max(rivals))

    def differences(self) -> list[list[str]]:
        """Two runs with all their members on the same images, a line each: who, weights, ball,
        images, the attacks."""
        whole = {label: 0 for label, _, _ in self.rows}
        for label, evaluation, _ in self.rows:
            whole[label] = max(whole[label], evaluation["members"])
        rows = [i for i, (label, e, _) in enumerate(self.rows) if e["members"] == whole[label]]
        lines: dict[tuple[str, ...], dict[str, str]] = {}
        for i, j in combinations(rows, 2):
            (first, one, theirs), (second, other, ours) = self.rows[i], self.rows[j]
            like = self.facts(i)[2:] == self.facts(j)[2:] and same_images(one, other)
            if first == second or not like:
                continue
            cells = lines.setdefault((f"{second} − {first}", *self.facts(i)[2:]), {})
            for attack in self.attacks:
                mine, yours = (found.get(attack, {}) for found in (ours, theirs))
                if mine.get("correct") and yours.get("correct") and _is_like(mine, yours):
                    cells[attack] = signed_difference(mine["correct"], yours["correct"])
        return [
            [*facts, *(cells.get(attack, "–") for attack in self.attacks)]
            for facts, cells in lines.items()
        ]


def _place(attack: str) -> int:
    """Clean accuracy first, then the worst case, then the attacks."""
    return {"clean": 0, WORST: 1}.get(attack, 2)


def in_common(head: Sequence[str], rows: Sequence[Sequence[str]]) -> tuple[str, Table]:
    """The facts that are the same in all rows of a table, in words, and the table without them."""
    facts = [i for i, name in enumerate(head) if name in _FACTS]
    same = [i for i in facts if len({row[i] for row in rows}) == 1]
    words = ", ".join(f"{head[i]} {rows[0][i]}" for i in same)
    kept = [i for i in range(len(head)) if i not in same]
    words = f"all: {words}" if words else ""
    return words, [[line[i] for i in kept] for line in (head, *rows)]


def _is_like(one: Mapping[str, Any] | None, other: Mapping[str, Any]) -> bool:
    """Worst cases can be compared where they are over the same attacks."""
    return one is not None and one.get("over") == other.get("over")


def curve(evaluations: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Of evaluations of one classifier at growing radii, each attack's accuracy and 95 %
    interval at each of them.

    The balls are nested: an image that falls at one radius has fallen at all larger ones.
    """
    smaller: dict[str, list[Sequence[float]]] = {}
    rows = []
    for evaluation in evaluations:
        figures = {}
        for outcome in evaluation["outcomes"]:
            points = smaller.setdefault(outcome["attack"], [])
            points.append(outcome["correct"])
            figures[outcome["attack"]] = worst_case(points)
        if len(figures) > 2 and not evaluation.get("failed"):
            figures[WORST] = worst_case([one for points in smaller.values() for one in points])
        found = {name: {"accuracy": f[0], "interval": f[1]} for name, f in figures.items()}
        rows.append({"eps": evaluation["eps"], "attacks": found})
    return rows


def curve_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """A curve in per cent, one line for each radius."""
    ordered = sorted(dict.fromkeys(name for row in rows for name in row["attacks"]), key=_place)
    lines = [["eps", *ordered]]
    for row in rows:
        figures = [row["attacks"].get(name) for name in ordered]
        lines.append([format_eps(row["eps"]), *(_cell(figure, to=" – ") for figure in figures)])
    return _aligned(lines)


def _cell(figure: Mapping[str, Any] | None, mark: str = "", to: str = "–") -> str:
    """Accuracy and interval in per cent: ``63.80 (49.5–77.9)``."""
    if figure is None:
        return "–"
    low, high = figure["interval"]
    return f"{100 * figure['accuracy']:.2f}{mark} ({100 * low:.1f}{to}{100 * high:.1f})"


def text_table(run_dirs: Sequence[str | Path]) -> str:
    """The evaluations of these runs side by side; * marks the best of a column."""
    runs = [Run.open(folder) for folder in run_dirs]
    table = SideBySide.of(runs)
    lines = []
    for i, (_, _, found) in enumerate(table.rows):
        marks = {name: "*" if table.is_best(i, name) else "" for name in found}
        cells = {name: _cell(outcome, marks[name]) for name, outcome in found.items()}
        lines.append(table.facts(i) + [cells.get(name, "–") for name in table.attacks])
    parts = []
    if lines:
        common, shown = in_common(table.head(), lines)
        parts += [_aligned(shown), "in per cent, in brackets the 95 % interval", common]
    if any("*" in cell for line in lines for cell in line):
        parts.append("* the best of those on the same images in the same ball")
    parts += [
        f"not evaluated yet: mrboost evaluate {shlex.quote(str(run.folder))}"
        for run in table.without(runs)
    ]
    parts += map(folded, table.failures())
    if differences := table.differences():
        common, shown = in_common(["", *table.head()[2:]], differences)
        parts += ["\n" + folded(DIFFERENCES), _aligned(shown), common]
    return "\n".join(part for part in parts if part)


def _aligned(lines: Table) -> str:
    """Columns beneath each other; those that a terminal has no room for follow below, each time
    beside the first column and the facts after it."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    keys = 1 + sum(name in _FACTS for name in lines[0])
    blocks: list[list[int]] = []
    for i in range(keys, len(widths)):
        taken = sum(widths[j] + 2 for j in [*range(keys), *(blocks[-1] if blocks else ()), i]) - 2
        if not blocks or taken > COLUMNS:
            blocks.append([])
        blocks[-1].append(i)
    return "\n\n".join(
        "\n".join(
            "  ".join(line[i].ljust(widths[i]) for i in [*range(keys), *block]).rstrip()
            for line in lines
        )
        for block in blocks
    )
