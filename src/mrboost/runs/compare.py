"""The evaluations of several runs side by side, and which of their differences
are more than chance."""

from __future__ import annotations

import shlex
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, product
from pathlib import Path
from typing import Any

from mrboost.evaluation.result import format_eps, same_images, worst_of
from mrboost.evaluation.statistics import mean_interval, signed_difference, worst_case
from mrboost.files import digest

from .folder import Run
from .identity import CIRCUMSTANCES

WORST = "worst case"
DIFFERENCES = (
    "Differences on the same images, in points. In brackets the sign test's p (McNemar's): how "
    "likely so uneven a split is by chance."
)
OVER_SEEDS = (
    "Mean differences over trainings with the same seeds, on the same images, in points. In "
    "brackets the 95 % interval of the mean over seeds (Student's t)."
)


@dataclass(frozen=True)
class Method:
    """A training but for its seed.

    Attributes:
        recipe: the name of its recipe.
        options: a digest of all that decides its result, but for the seed.
    """

    recipe: str
    options: str

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Method:
        """Of networks that were joined, the recipes of their runs count."""
        ignored = CIRCUMSTANCES | {"seed", "first"}
        decisive = {key: config[key] for key in sorted(config) if key not in ignored}
        if "joined" in config:
            decisive["joined"] = [source["recipe"] for source in config["joined"]]
        return cls(str(config["recipe"]["name"]), digest(decisive))


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
    # of each method its runs by their seeds, or by their numbers where networks of several are
    # joined
    trainings: dict[Method, dict[int, str]] = field(default_factory=dict)

    @classmethod
    def of(cls, runs: Sequence[Run]) -> SideBySide:
        rows, attacks = [], []
        trainings = dict[Method, dict[int, str]]()
        for label, run in zip(run_labels(runs), runs, strict=True):
            seeds = trainings.setdefault(Method.of(run.config), {})
            seeds[run.config.get("seed", len(seeds))] = label
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
        return cls(sorted(attacks, key=lambda name: name == WORST), rows, trainings)

    def without(self, runs: Sequence[Run]) -> list[Run]:
        """Those of its runs that have not been evaluated yet."""
        there = [label for label, _, _ in self.rows]
        labelled = zip(run_labels(runs), runs, strict=True)
        return [run for label, run in labelled if label not in there]

    def head(self) -> list[str]:
        return ["run", "members", "weights", "ball", "images", *self.attacks]

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
        lines: dict[tuple[str, ...], dict[str, str]] = {}
        for i, j in combinations(self._whole_rows(), 2):
            if not self._comparable(i, j):
                continue
            who = f"{self.rows[j][0]} − {self.rows[i][0]}"
            cells = lines.setdefault((who, *self.facts(i)[2:]), {})
            for attack, (theirs, ours) in self._pairs(i, j).items():
                cells[attack] = signed_difference(ours, theirs)
        return self._lines(lines)

    def over_seeds(self) -> list[list[str]]:
        """Two methods, each trained with the same two seeds or more: a line like those of
        ``differences``, with the mean of the differences and its interval."""
        rows: dict[str, list[int]] = {}
        for i in self._whole_rows():
            rows.setdefault(self.rows[i][0], []).append(i)
        names = self._method_names()
        lines: dict[tuple[str, ...], dict[str, str]] = {}
        for one, other in combinations(self.trainings, 2):
            gains: dict[tuple[str, ...], dict[str, list[float]]] = {}
            for seed, label in self.trainings[one].items():
                rival = self.trainings[other].get(seed, "")
                for i, j in product(rows.get(label, []), rows.get(rival, [])):
                    cells = gains.setdefault(tuple(self.facts(i)[2:]), {})
                    pairs = self._pairs(i, j) if self._comparable(i, j) else {}
                    for attack, (theirs, ours) in pairs.items():
                        gain = 100 * (statistics.mean(ours) - statistics.mean(theirs))
                        cells.setdefault(attack, []).append(gain)
            for facts, cells in gains.items():
                shown = {name: _mean_gain(found) for name, found in cells.items() if found[1:]}
                if shown:
                    lines[(f"{names[other]} − {names[one]}", *facts)] = shown
        return self._lines(lines)

    def _method_names(self) -> dict[Method, str]:
        """The recipes' names where they tell the methods apart, else with a folder of each."""
        recipes = [method.recipe for method in self.trainings]
        first = {method: next(iter(seeds.values())) for method, seeds in self.trainings.items()}
        return {
            method: method.recipe
            if recipes.count(method.recipe) == 1
            else f"{method.recipe} ({label}, …)"
            for method, label in first.items()
        }

    def _whole_rows(self) -> list[int]:
        """The evaluations of runs with all their members."""
        whole = {label: 0 for label, _, _ in self.rows}
        for label, evaluation, _ in self.rows:
            whole[label] = max(whole[label], evaluation["members"])
        return [i for i, (label, e, _) in enumerate(self.rows) if e["members"] == whole[label]]

    def _comparable(self, i: int, j: int) -> bool:
        """Whether two evaluations are of different runs on the same images in the same ball."""
        (first, one, _), (second, other, _) = self.rows[i], self.rows[j]
        like = self.facts(i)[2:] == self.facts(j)[2:] and same_images(one, other)
        return first != second and like

    def _pairs(self, i: int, j: int) -> dict[str, tuple[Sequence[float], Sequence[float]]]:
        """By attack which points each of two evaluations gets right, where both know it."""
        theirs, ours = self.rows[i][2], self.rows[j][2]
        found = {}
        for attack in self.attacks:
            yours, mine = (outcomes.get(attack, {}) for outcomes in (theirs, ours))
            if mine.get("correct") and yours.get("correct") and _is_like(mine, yours):
                found[attack] = yours["correct"], mine["correct"]
        return found

    def _lines(self, lines: Mapping[tuple[str, ...], Mapping[str, str]]) -> list[list[str]]:
        return [
            [*facts, *(cells.get(attack, "–") for attack in self.attacks)]
            for facts, cells in lines.items()
        ]


def _mean_gain(gains: Sequence[float]) -> str:
    """Mean, interval and number of differences: ``+0.83 (+0.12 to +1.54; 3 seeds)``."""
    low, high = mean_interval(gains)
    return f"{statistics.mean(gains):+.2f} ({low:+.2f} to {high:+.2f}; {len(gains)} seeds)"


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
    names = {name: name == WORST for row in rows for name in row["attacks"]}
    ordered = sorted(names, key=names.__getitem__)
    lines = [["eps", *ordered]]
    for row in rows:
        figures = [row["attacks"].get(name) for name in ordered]
        lines.append([format_eps(row["eps"]), *(_cell(f, " – ") if f else "–" for f in figures)])
    return _aligned(lines)


def _cell(figure: Mapping[str, Any], to: str = "–", mark: str = "") -> str:
    """Accuracy and interval in per cent: ``63.80 (49.5–77.9)``."""
    low, high = figure["interval"]
    return f"{100 * figure['accuracy']:.2f}{mark} ({100 * low:.1f}{to}{100 * high:.1f})"


def text_table(run_dirs: Sequence[str | Path]) -> str:
    """The evaluations of these runs side by side; * marks the best of a column."""
    runs = [Run.open(folder) for folder in run_dirs]
    table = SideBySide.of(runs)
    lines = [table.head()]
    for i, (_, _, found) in enumerate(table.rows):
        marks = {name: "*" if table.is_best(i, name) else "" for name in found}
        cells = {name: _cell(outcome, mark=marks[name]) for name, outcome in found.items()}
        lines.append(table.facts(i) + [cells.get(name, "–") for name in table.attacks])
    parts = [_aligned(lines), "in per cent, in brackets the 95 % interval"] if table.rows else []
    parts += [
        f"not evaluated yet: mrboost evaluate {shlex.quote(str(run.folder))}"
        for run in table.without(runs)
    ]
    parts += table.failures()
    if any("*" in cell for line in lines for cell in line):
        parts.append("* the best of those on the same images in the same ball")
    if differences := table.differences():
        parts += [f"\n{DIFFERENCES}", _aligned([["", *table.head()[2:]], *differences])]
    if over_seeds := table.over_seeds():
        parts += [f"\n{OVER_SEEDS}", _aligned([["", *table.head()[2:]], *over_seeds])]
    return "\n".join(parts)


def _aligned(lines: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )
