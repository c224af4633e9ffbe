"""The evaluations of several runs side by side, and which of their differences
are more than chance."""

from __future__ import annotations

import shlex
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

from mrboost.evaluation.result import format_eps, same_images, worst_of
from mrboost.evaluation.statistics import (
    Interval,
    compare_points,
    mean_interval,
    signed,
    unpaired_interval,
)
from mrboost.files import digest
from mrboost.progress import COLUMNS, folded

from .card import Card
from .folder import Run
from .identity import CIRCUMSTANCES

Table = list[list[str]]
WORST = "worst case"
_FACTS = ("members", "weights", "ball", "images")
DIFFERENCES = (
    "Differences on the same images, in points. In brackets the sign test's p (McNemar's): how "
    "likely so uneven a split is by chance."
)
UNPAIRED = (
    "Differences on other images, or where single images are not known, in points. In brackets the "
    "95 % interval (Newcombe's): more than chance where it leaves out 0."
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
            decisive["joined"] = [source.get("recipe") for source in config["joined"]]
        return cls(str(config["recipe"]["name"]), digest(decisive))


def run_labels(runs: Sequence[Run]) -> list[str]:
    """The recipes' names where they tell the runs apart, the folders' otherwise."""
    names = [str(run.config["recipe"]["name"]) for run in runs]
    return names if len(set(names)) == len(names) else [str(run.folder) for run in runs]


@dataclass(frozen=True)
class Entry:
    """One evaluation of a run: its outcomes by attack, and the worst case over several."""

    label: str
    evaluation: Mapping[str, Any]
    outcomes: Mapping[str, Mapping[str, Any]]

    @classmethod
    def of(cls, label: str, evaluation: Mapping[str, Any]) -> Entry:
        found = {outcome["attack"]: outcome for outcome in evaluation["outcomes"]}
        if len(found) > 2 and (worst := worst_of(evaluation)) is not None:
            # Attacks on members belong to the set that fits an ensemble, and are not the same for
            # any two.
            over = sorted(name for name in found if "member " not in name)
            found[WORST] = worst | {"over": over}
        return cls(label, evaluation, found)

    @property
    def facts(self) -> list[str]:
        """The run and ``_FACTS``, in words."""
        one = self.evaluation
        ball = "several" if one["eps"] is None else f"{one['norm']} {format_eps(one['eps'])}"
        return [self.label, str(one["members"]), one["weights"], ball, f"{one['n']:,}"]

    @property
    def ball(self) -> tuple[float | None, str | None]:
        return self.evaluation["eps"], self.evaluation["norm"]

    @property
    def figures(self) -> dict[str, dict[str, Any]]:
        """Accuracy and interval under each attack."""
        kept = ("accuracy", "interval")
        return {name: {key: one[key] for key in kept} for name, one in self.outcomes.items()}

    def on_same_images(self, other: Entry) -> bool:
        one, two = self.evaluation, other.evaluation
        return one["n"] == two["n"] and same_images(one, two)

    def is_rival(self, other: Entry) -> bool:
        """Whether it is of another run in the same ball, with weights of the same kind."""
        kinds = {self.evaluation["weights"], other.evaluation["weights"]} - {"given"}
        same_ball = self.ball == other.ball and None not in self.ball
        return self.label != other.label and same_ball and len(kinds) < 2


@dataclass(frozen=True)
class SideBySide:
    """Every evaluation of the runs in one table; figures are comparable where
    ball and images agree."""

    attacks: list[str]
    rows: list[Entry]
    # of each run its method and its seed, or its number where networks of several are joined
    trainings: dict[str, tuple[Method, int]] = field(default_factory=dict)

    @classmethod
    def of(cls, runs: Sequence[Run]) -> SideBySide:
        rows = []
        trainings = dict[str, tuple[Method, int]]()
        for label, run in zip(run_labels(runs), runs, strict=True):
            method = Method.of(run.config)
            number = sum(other == method for other, _ in trainings.values())
            trainings[label] = method, run.config.get("seed", number)
            rows += [Entry.of(label, evaluation) for evaluation in run.evaluations()]
        attacks = dict.fromkeys(name for row in rows for name in row.outcomes)
        return cls(sorted(attacks, key=_place), rows, trainings)

    def without(self, runs: Sequence[Run]) -> list[Run]:
        """Those of its runs that have not been evaluated yet."""
        there = [row.label for row in self.rows]
        labelled = zip(run_labels(runs), runs, strict=True)
        return [run for label, run in labelled if label not in there]

    def head(self) -> list[str]:
        return ["run", *_FACTS, *self.attacks]

    def failures(self) -> list[str]:
        """Attacks that failed, row by row."""
        return [
            f"{', '.join(row.facts)} images: {', '.join(row.evaluation['failed'])} failed, so "
            "there is no worst case"
            for row in self.rows
            if row.evaluation.get("failed")
        ]

    def is_best(self, row: Entry, attack: str) -> bool:
        """Whether its accuracy is the best of those on the same images in the same ball."""
        rivals = [
            other.outcomes[attack]["accuracy"]
            for other in self.rows
            if other.ball == row.ball
            and other.on_same_images(row)
            and _is_like(other.outcomes.get(attack), row.outcomes[attack])
        ]
        return len(rivals) > 1 and bool(row.outcomes[attack]["accuracy"] == max(rivals))

    def comparisons(self) -> list[tuple[str, str, Table]]:
        """Tables of differences, each with what it says and what holds for all its rows."""
        tables = {
            DIFFERENCES: self.differences(),
            UNPAIRED: self.unpaired(),
            OVER_SEEDS: self.over_seeds(),
        }
        head = ["", *self.head()[2:]]
        return [(title, *in_common(head, rows)) for title, rows in tables.items() if rows]

    def differences(self) -> Table:
        """Two runs with all their members on the same images, a line each: who, weights, ball,
        images, the attacks."""
        return self._lines(one for one in self.pairs() if one.p_value is not None)

    def unpaired(self) -> Table:
        """The same of two on other images, or whose single images are not known."""
        return self._lines(one for one in self.pairs() if one.p_value is None)

    def _lines(self, differences: Iterable[Difference]) -> Table:
        lines: dict[tuple[str, ...], dict[str, str]] = {}
        for one in differences:
            who = f"{one.second} − {one.first}"
            lines.setdefault((who, *one.facts), {})[one.attack] = str(one)
        return [
            [*facts, *(cells.get(attack, "–") for attack in self.attacks)]
            for facts, cells in lines.items()
        ]

    def over_seeds(self) -> Table:
        """Two methods, each trained with the same two seeds or more: a line like those of
        ``differences``, with the mean of the differences and its interval."""
        methods = list(dict.fromkeys(method for method, _ in self.trainings.values()))
        gains: dict[tuple[str, ...], dict[str, list[float]]] = {}
        for one in self.pairs():
            (first, seed), (second, other) = (
                self.trainings[run] for run in (one.first, one.second)
            )
            if first == second or seed != other or one.p_value is None:
                continue
            forward = methods.index(first) < methods.index(second)
            names = [self._method_name(method) for method in (first, second)]
            who = " − ".join(reversed(names) if forward else names)
            gain = 100 * one.gain if forward else -100 * one.gain
            gains.setdefault((who, *one.facts), {}).setdefault(one.attack, []).append(gain)
        return [
            [*facts, *(_mean_gain(found.get(attack, ())) for attack in self.attacks)]
            for facts, found in gains.items()
            if any(len(each) > 1 for each in found.values())
        ]

    def _method_name(self, method: Method) -> str:
        """The recipe's name where it tells the method from the others, else with a run of it."""
        labels = [label for label, (other, _) in self.trainings.items() if other == method]
        rivals = {other for other, _ in self.trainings.values() if other.recipe == method.recipe}
        return method.recipe if len(rivals) == 1 else f"{method.recipe} ({labels[0]}, …)"

    def pairs(self) -> Iterator[Difference]:
        """Each attack on each two runs with all their members, in one ball."""
        most: dict[str, int] = {}
        for row in self.rows:
            most[row.label] = max(most.get(row.label, 0), row.evaluation["members"])
        whole = [row for row in self.rows if row.evaluation["members"] == most[row.label]]
        couples = [(one, other) for one, other in combinations(whole, 2) if one.is_rival(other)]
        paired = {
            (one.label, other.label, one.ball)
            for one, other in couples
            if one.on_same_images(other)
        }
        for one, other in couples:
            same = one.on_same_images(other)
            if not same and (one.label, other.label, one.ball) in paired:
                continue  # the same images say more
            facts = tuple(
                first if first == second else f"{first}, {second}"
                for first, second in zip(one.facts[2:], other.facts[2:], strict=True)
            )
            for attack in self.attacks:
                theirs, ours = one.outcomes.get(attack), other.outcomes.get(attack)
                if theirs and ours and _is_like(theirs, ours):
                    who = one.label, other.label, attack, facts
                    yield Difference.of(who, theirs, ours, same=same)

    def to_dict(self) -> dict[str, Any]:
        """The figures and their differences as plain values."""
        kept = ("weights", "members", "norm", "eps", "n")
        evaluations = [
            {"run": row.label}
            | {key: row.evaluation[key] for key in kept}
            | {"attacks": row.figures}
            for row in self.rows
        ]
        return {"evaluations": evaluations, "differences": [asdict(one) for one in self.pairs()]}


@dataclass(frozen=True)
class Difference:
    """The accuracy of the second minus that of the first under an attack.

    On the same images with the sign test's p, else with a 95 % interval. ``facts`` are weights,
    ball and images.
    """

    first: str
    second: str
    attack: str
    facts: tuple[str, ...]
    gain: float
    p_value: float | None = None
    interval: Interval | None = None

    @classmethod
    def of(
        cls,
        who: tuple[str, str, str, tuple[str, ...]],
        theirs: Mapping[str, Any],
        ours: Mapping[str, Any],
        *,
        same: bool,
    ) -> Difference:
        """Of two outcomes, on the ``same`` images or not."""
        if same and theirs.get("correct") and ours.get("correct"):
            gain = ours["accuracy"] - theirs["accuracy"]
            return cls(*who, gain, compare_points(ours["correct"], theirs["correct"]).p_value)
        one, other = ((found["accuracy"], found["interval"]) for found in (ours, theirs))
        gain, interval = unpaired_interval(one, other)
        return cls(*who, gain, interval=interval)

    def __str__(self) -> str:
        if self.interval is None:
            return signed(self.gain, self.p_value or 0.0)
        low, high = self.interval
        return f"{100 * self.gain:+.2f} ({100 * low:+.1f} to {100 * high:+.1f})"


def _mean_gain(gains: Sequence[float]) -> str:
    """Mean, interval and number of differences: ``+0.83 (+0.12 to +1.54; 3 seeds)``."""
    if len(gains) < 2:
        return "–"
    low, high = mean_interval(gains)
    return f"{statistics.mean(gains):+.2f} ({low:+.2f} to {high:+.2f}; {len(gains)} seeds)"


def _place(attack: str) -> int:
    """Clean accuracy first, then the worst case, then the attacks."""
    return {"clean": 0, WORST: 1}.get(attack, 2)


def in_common(head: Sequence[str], rows: Sequence[Sequence[str]]) -> tuple[str, Table]:
    """The facts that are the same in all rows of a table, in words, and the table without them and
    without attacks of which no row has a figure."""
    facts = [i for i, name in enumerate(head) if name in _FACTS]
    same = [i for i in facts if len({row[i] for row in rows}) == 1]
    words = ", ".join(f"{head[i]} {rows[0][i]}" for i in same)
    empty = {i for i in range(len(head)) if all(row[i] == "–" for row in rows)}
    kept = [i for i in range(len(head)) if i not in {*same, *empty}]
    words = f"all: {words}" if words else ""
    return words, [[line[i] for i in kept] for line in (head, *rows)]


def _is_like(one: Mapping[str, Any] | None, other: Mapping[str, Any]) -> bool:
    """Worst cases can be compared where they are over the same attacks."""
    return one is not None and one.get("over") == other.get("over")


def curve(evaluations: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Of evaluations of one classifier at growing radii, each attack's accuracy and 95 %
    interval at each of them."""
    rows = [Entry.of("", evaluation) for evaluation in evaluations]
    return [{"eps": row.ball[0], "attacks": row.figures} for row in rows]


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


def text_table(sources: Sequence[str | Path]) -> str:
    """The evaluations of runs and cards side by side; * marks the best of a column."""
    runs = opened(sources)
    table = SideBySide.of(runs)
    lines = []
    for row in table.rows:
        marks = {name: "*" if table.is_best(row, name) else "" for name in row.outcomes}
        cells = {name: _cell(found, marks[name]) for name, found in row.outcomes.items()}
        lines.append(row.facts + [cells.get(name, "–") for name in table.attacks])
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
    for title, common, rows in table.comparisons():
        parts += ["\n" + folded(title), _aligned(rows), common]
    return "\n".join(part for part in parts if part)


def opened(sources: Sequence[str | Path]) -> list[Run]:
    """Runs by their folders, cards by their files."""
    return [Card.read(one) if Path(one).is_file() else Run.open(one) for one in sources]


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
