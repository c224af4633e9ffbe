"""The evaluations of several runs side by side, and which of their differences are more than chance."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from .outcomes import format_eps, signed_difference, worst_case
from .runs import Run

WORST = "worst case"
DIFFERENCES = (
    "Differences on the same images, in points. In brackets the sign test's p (McNemar's): how likely so uneven a "
    "split is by chance."
)


def run_labels(runs: Sequence[Run]) -> list[str]:
    """The recipes' names where they tell the runs apart, the folders' otherwise."""
    names = [str(run.config["recipe"]["name"]) for run in runs]
    return names if len(set(names)) == len(names) else [str(run.folder) for run in runs]


@dataclass(frozen=True)
class SideBySide:
    """Every evaluation of the runs in one table; figures are comparable where ball and images agree."""

    attacks: list[str]
    rows: list[tuple[str, dict[str, Any], dict[str, dict[str, Any]]]]  # run, evaluation, outcomes by attack

    @classmethod
    def of(cls, runs: Sequence[Run]) -> SideBySide:
        rows, attacks = [], []
        for label, run in zip(run_labels(runs), runs, strict=True):
            for evaluation in run.results.get("evaluations", []):
                if not run.is_of(evaluation):
                    continue
                found = {outcome["attack"]: outcome for outcome in evaluation["outcomes"]}
                if len(found) > 2 and all("correct" in outcome for outcome in found.values()):
                    points = [outcome["correct"] for outcome in found.values()]
                    accuracy, interval = worst_case(points)
                    least = [min(values) for values in zip(*points, strict=True)]
                    over = sorted(found)
                    found[WORST] = {"accuracy": accuracy, "interval": interval, "correct": least, "over": over}
                attacks += [name for name in found if name not in attacks]
                rows.append((label, evaluation, found))
        return cls(sorted(attacks, key=lambda name: name == WORST), rows)

    def without(self, runs: Sequence[Run]) -> list[Run]:
        """Those of its runs that have not been evaluated yet."""
        there = {label for label, _, _ in self.rows}
        return [run for label, run in zip(run_labels(runs), runs, strict=True) if label not in there]

    def head(self) -> list[str]:
        return ["run", "members", "weights", "ball", "images", *self.attacks]

    def facts(self, row: int) -> list[str]:
        label, evaluation, _ = self.rows[row]
        ball = f"{evaluation['norm']} {format_eps(evaluation['eps'])}"
        return [label, str(evaluation["members"]), evaluation["weights"], ball, f"{evaluation['n']:,}"]

    def is_best(self, row: int, attack: str) -> bool:
        _, own, outcomes = self.rows[row]
        same = [found for _, other, found in self.rows if all(other[k] == own[k] for k in ("eps", "norm", "n"))]
        rivals = [found[attack]["accuracy"] for found in same if _is_like(found.get(attack), outcomes[attack])]
        return len(rivals) > 1 and bool(outcomes[attack]["accuracy"] == max(rivals))

    def differences(self) -> list[list[str]]:
        """Two runs with all their members on the same images, a line each: who, weights, ball, images, the attacks."""
        whole = {label: max(e["members"] for name, e, _ in self.rows if name == label) for label, _, _ in self.rows}
        rows = [i for i, (label, evaluation, _) in enumerate(self.rows) if evaluation["members"] == whole[label]]
        lines: dict[tuple[str, ...], dict[str, str]] = {}
        for i, j in combinations(rows, 2):
            (first, *_, theirs), (second, *_, ours) = self.rows[i], self.rows[j]
            if first == second or self.facts(i)[2:] != self.facts(j)[2:]:
                continue
            cells = lines.setdefault((f"{second} − {first}", *self.facts(i)[2:]), {})
            for attack in self.attacks:
                mine, other = (found.get(attack, {}) for found in (ours, theirs))
                if mine.get("correct") and other.get("correct") and _is_like(mine, other):
                    cells[attack] = signed_difference(mine["correct"], other["correct"])
        return [[*facts, *(cells.get(attack, "–") for attack in self.attacks)] for facts, cells in lines.items()]


def _is_like(one: Mapping[str, Any] | None, other: Mapping[str, Any]) -> bool:
    """Worst cases can be compared where they are over the same attacks."""
    return one is not None and one.get("over") == other.get("over")


def curve_table(evaluations: Sequence[Mapping[str, Any]]) -> str:
    """Evaluations of one classifier at growing radii: accuracy in per cent and 95 % interval, one line each.

    The balls are nested: an image that falls at one radius has fallen at all larger ones.
    """
    lines = [["eps", *(outcome["attack"] for outcome in evaluations[0]["outcomes"])]]
    lines[0] += [WORST] if len(lines[0]) > 3 else []
    smaller: list[list[Sequence[float]]] = [[] for _ in evaluations[0]["outcomes"]]
    for evaluation in evaluations:
        outcomes = evaluation["outcomes"]
        for points, outcome in zip(smaller, outcomes, strict=False):  # an attack may have come to nothing here
            points.append(outcome["correct"])
        figures = [worst_case(points) for points in smaller[: len(outcomes)]]
        if WORST in lines[0] and len(outcomes) == len(smaller):
            figures.append(worst_case([one for points in smaller for one in points]))
        cells = [f"{100 * value:.2f} ({100 * low:.1f} – {100 * high:.1f})" for value, (low, high) in figures]
        lines.append([format_eps(evaluation["eps"]), *cells, *["–"] * (len(lines[0]) - 1 - len(cells))])
    return _aligned(lines)


def text_table(run_dirs: Sequence[str | Path]) -> str:
    """The evaluations of these runs side by side, in per cent; * marks the best of a column."""
    runs = [Run.open(folder) for folder in run_dirs]
    table = SideBySide.of(runs)
    lines = [table.head()]
    for i, (_, _, found) in enumerate(table.rows):
        cells = [
            f"{100 * found[name]['accuracy']:.2f}{'*' if table.is_best(i, name) else ' '}" if name in found else "–"
            for name in table.attacks
        ]
        lines.append(table.facts(i) + cells)
    parts = [_aligned(lines)] if table.rows else []
    parts += [f"not evaluated yet: mrboost evaluate {shlex.quote(str(run.folder))}" for run in table.without(runs)]
    if any("*" in cell for line in lines for cell in line):
        parts.append("* the best of those on the same images in the same ball")
    if differences := table.differences():
        parts += [f"\n{DIFFERENCES}", _aligned([["", *table.head()[2:]], *differences])]
    return "\n".join(parts)


def _aligned(lines: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )
