"""What an evaluation found: one ``Outcome`` for each attack, point by point, as a table and as
JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from mrboost.attacks import Attack, Search
from mrboost.attacks.autoattack import VERSIONS
from mrboost.attacks.base import ball_of
from mrboost.attacks.survivors import InTurn
from mrboost.errors import InputError
from mrboost.files import State, digest, write_texts
from mrboost.progress import folded

from .doubts import Doubt, left
from .page import write_page, write_plot
from .statistics import Comparison, Interval, compare_points, wilson_interval, worst_case


@dataclass(frozen=True)
class Stage:
    """The accuracy left after one of several attacks in turn, and the seconds that it took.

    ``black_box`` stages do not use the model's gradients. ``sample`` is the share of the images
    that stood which it tried, where those were drawn at random.
    """

    attack: str
    accuracy: float
    interval: Interval
    seconds: float
    black_box: bool = False
    sample: float | None = None


@dataclass(frozen=True)
class Outcome:
    """What one attack left of the accuracy.

    Attributes:
        attack: its label.
        accuracy, interval: the share of images that withstood, and its 95 % Wilson interval.
        margin, min_margin: the true logit minus the largest other one on the attacked images, their
            mean and the least.
        per_class, class_intervals: the accuracy and its interval class by class; None where there
            are no images of a class.
        seconds: how long it took.
        correct: whether each image withstood; for a randomised classifier, with which probability.
        stages: of an attack that is several in turn, what each of them left.
        broken_by: of such an attack, the number of the stage that broke each image, from 1 on; 0
            for an image that was wrong from the start, -1 for one that stands.
        black_box: whether it does not use the model's gradients.
        steps: its gradient steps or iterations, if it says them.
        eps, norm: its ball, if it says so.
        labels: stands for the labels of the images; outcomes with another are of other images.
    """

    attack: str
    accuracy: float
    interval: Interval
    margin: float
    min_margin: float
    per_class: tuple[float | None, ...]
    class_intervals: tuple[Interval | None, ...] = field(repr=False)
    seconds: float
    correct: tuple[float, ...] = field(repr=False)
    stages: tuple[Stage, ...] = ()
    broken_by: tuple[int, ...] = field(default=(), repr=False)
    black_box: bool = False
    steps: int | None = None
    eps: float | None = None
    norm: str | None = None
    labels: str = field(default="", repr=False)

    @classmethod
    def of(cls, label: str, found: State, y: Tensor, attack: Attack | None = None) -> Outcome:
        """From what is known of each image, as ``Runner.run`` gives it."""
        correct, margins = found["correct"].double(), found["margin"].double()
        seconds = found["seconds"].sum(dim=0).tolist()
        groups = [correct[y == k] for k in range(int(y.max()) + 1)]
        stages: list[Stage] = []
        for number, search in enumerate(_parts(attack)):
            stand = left(found["stage"], number + 1).double()
            figures = stand.mean().item(), _interval(stand), seconds[number]
            black_box, sample = not search.uses_gradients, search.sample or None
            stages.append(Stage(search.stage, *figures, black_box, sample))
        eps, norm = ball_of(attack)
        return cls(
            attack=label,
            accuracy=correct.mean().item(),
            interval=_interval(correct),
            margin=margins.mean().item(),
            min_margin=margins.min().item(),
            per_class=tuple(one.mean().item() if len(one) else None for one in groups),
            class_intervals=tuple(_interval(one) if len(one) else None for one in groups),
            seconds=sum(seconds),
            correct=tuple(found["correct"].tolist()),
            stages=tuple(stages),
            broken_by=tuple(found["stage"].tolist()) if stages else (),
            black_box=attack is not None and not attack.uses_gradients,
            steps=None if attack is None else attack.steps,
            eps=eps,
            norm=norm,
            labels=digest(y),
        )


def _parts(attack: Attack | None) -> tuple[Search, ...]:
    """Of an attack that is several in turn."""
    if isinstance(attack, InTurn) and not isinstance(attack, Search):
        return attack.searches
    return ()


def _interval(correct: Tensor) -> Interval:
    return wilson_interval(correct.sum().item(), len(correct))


@dataclass(frozen=True)
class Evaluation:
    """Outcomes of several attacks on the same ``n`` images.

    Attributes:
        eps, norm: the ball; None where attacks differ or do not say.
        outcomes: one for ``clean`` and for each attack.
        doubts: reasons not to trust the figures.
        failed: attacks that failed, and have no outcome.
        left_out: how many more images there are, for which the time budget had no room.
        chosen: the numbers of those that were taken, at random, where there was a time budget.
    """

    eps: float | None
    norm: str | None
    n: int
    outcomes: tuple[Outcome, ...]
    doubts: tuple[Doubt, ...] = ()
    failed: tuple[str, ...] = ()
    left_out: int = 0
    chosen: tuple[int, ...] | None = field(default=None, repr=False)

    def __getitem__(self, attack: str) -> Outcome:
        for outcome in self.outcomes:
            if outcome.attack == attack:
                return outcome
        names = ", ".join(outcome.attack for outcome in self.outcomes)
        raise KeyError(f"{attack!r} was not evaluated, only {names}")

    @property
    def worst(self) -> tuple[float, Interval]:
        """The accuracy over the worst attack of each point, and its interval:
        the figure to publish."""
        found = worst_of(asdict(self))
        if found is None:
            raise InputError(
                "there is no worst case where attacks failed, over different balls, or of attacks "
                "that do not say theirs (eps and norm): evaluate each ball alone"
            )
        return found["accuracy"], found["interval"]

    def __str__(self) -> str:
        ball = "several balls, or unknown ones"
        if self.eps is not None:
            ball = f"{self.norm or 'unknown norm,'} eps = {format_eps(self.eps)}"
        stages = [stage.attack for outcome in self.outcomes for stage in outcome.stages]
        names = [outcome.attack for outcome in self.outcomes]
        width = max([14, *(len(name) + 2 for name in names), *(len(name) + 4 for name in stages)])

        def row(
            name: str, accuracy: float, interval: Interval, margins: str = "", seconds: str = ""
        ) -> str:
            figures = f"{accuracy:>9.2%}   {_range(interval):<16}{margins:>16}{seconds:>9}"
            return f"{name:<{width}}{figures}".rstrip()

        images = f"{self.n} images"
        if self.left_out:
            images += f" drawn at random (no time for the other {self.left_out:,})"
        lines = [f"{images}, {ball}"]
        lines.append(f"{'attack':<{width}} accuracy   95 % interval     margin   least  seconds")
        for one in self.outcomes:
            for stage in one.stages:
                name, seconds = f"  {stage.attack}", f"{stage.seconds:.1f}"
                lines.append(row(name, stage.accuracy, stage.interval, seconds=seconds))
            margins = f"{_short(one.margin):>8}{_short(one.min_margin):>8}"
            lines.append(row(one.attack, one.accuracy, one.interval, margins, f"{one.seconds:.1f}"))
        if len(self.outcomes) > 2 and (worst := worst_of(asdict(self))):
            over = ", ".join(one.attack for one in self.outcomes if one.attack != "clean")
            figure = row("worst case", worst["accuracy"], worst["interval"])
            lines.append(folded(f"{figure}   over {over}", width))
        if self.failed:
            lines.append(folded(f"failed: {', '.join(self.failed)}", 2))
        lines += [folded(f"doubt ({doubt.check}): {doubt.message}", 2) for doubt in self.doubts]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, the worst case too; None stands for numbers that JSON does not have, as
        the margin of infinite logits."""
        found = asdict(self)
        for outcome in found["outcomes"]:
            for key in ("margin", "min_margin"):
                if not math.isfinite(outcome[key]):
                    outcome[key] = None
        return found | {"worst": worst_of(found)}

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=2)

    def to_rows(self) -> list[dict[str, Any]]:
        """A row for each attack, and for the worst case over several: plain values, of which a
        table can be made."""
        ball = "unknown" if self.eps is None else f"{self.norm} {format_eps(self.eps)}"
        found = self.to_dict()
        several = len(self.outcomes) > 2 and found["worst"]
        rows = []
        for one in [*found["outcomes"], *([found["worst"]] if several else [])]:
            low, high = one["interval"]
            rows.append(
                {
                    "attack": one.get("attack", "worst case"),
                    "ball": ball,
                    "n": self.n,
                    "accuracy": one["accuracy"],
                    "low": low,
                    "high": high,
                    **{key: one.get(key) for key in ("margin", "min_margin", "seconds")},
                }
            )
        return rows

    def to_frame(self) -> Any:
        """``to_rows`` as a DataFrame of pandas."""
        try:
            import pandas as pd
        except ImportError:
            raise InputError("to_frame needs pandas: pip install pandas, or to_rows()") from None
        return pd.DataFrame(self.to_rows())

    def save(self, path: str | Path) -> None:
        """Write ``to_json`` to a file."""
        write_texts({Path(path): self.to_json() + "\n"})

    def plot(self, path: str | Path) -> None:
        """Write the accuracies with their intervals as a plot: SVG, PNG or PDF, by the suffix."""
        write_plot({"model": self.to_rows()}, Path(path))

    def to_html(self, path: str | Path, label: str = "the model") -> None:
        """Write one self-contained page: figures, doubts, a plot, each class.

        Args:
            path: the file.
            label: what the page calls the model.
        """
        write_page({label: self.to_dict()}, {label: self.to_rows()}, Path(path))


def worst_of(evaluation: Mapping[str, Any]) -> dict[str, Any] | None:
    """The worst case over the attacks of an evaluation, as ``to_dict`` has it, and of each point.

    There is none over several balls, or where attacks failed.
    """
    points = [outcome["correct"] for outcome in evaluation["outcomes"] if "correct" in outcome]
    if not points or len(points) < len(evaluation["outcomes"]) or evaluation.get("failed"):
        return None
    if evaluation["eps"] is None and len(points) > 2:
        return None
    accuracy, interval = worst_case(points)
    return {
        "accuracy": accuracy,
        "interval": interval,
        "correct": [min(values) for values in zip(*points, strict=True)],
    }


def compare(first: Outcome, second: Outcome) -> Comparison:
    """Count the points that only one of two classifiers withstands.

    Args:
        first, second: outcomes of the same points in the same ball.

    Example:
        >>> compare(one["autoattack"], other["autoattack"]).p_value  # doctest: +SKIP
    """
    found = compare_points(first.correct, second.correct)
    if first.labels != second.labels:
        raise InputError("two evaluations can be compared on the same points only: labels differ")
    known = [one for one in (first, second) if one.eps is not None and one.norm is not None]
    balls = [f"{one.norm} {format_eps(one.eps)}" if one.eps else "eps 0" for one in known]
    if len(set(balls)) > 1:
        these = " and ".join(balls)
        raise InputError(f"two evaluations can be compared in the same ball only, not {these}")
    return found


def same_images(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two evaluations in files of runs are of the same images."""
    return one.get("images") == other.get("images")


def robustbench_summary(
    evaluation: Evaluation, *, attack: str = "autoattack", **facts: object
) -> dict[str, Any]:
    """An entry in the manner of RobustBench's model cards, accuracies in per cent as strings,
    with 95 % intervals.

    Args:
        evaluation: with AutoAttack among its attacks.
        attack: the label of AutoAttack in the evaluation.
        facts: added as they are: name, dataset, architecture, link, authors, venue,
            additional_data and whatever else the card asks for.
    """
    found = {outcome.attack: outcome for outcome in evaluation.outcomes}
    ran = [stage.attack for stage in found[attack].stages] if attack in found else []
    whole = [[part.name for part in make(8 / 255, "Linf")] for make in VERSIONS.values()]
    if attack not in found or (ran not in whole and evaluation.eps != 0):
        raise InputError(
            f"the card's figure is that of AutoAttack: {attack!r} is not, or was not evaluated"
        )
    figures = {
        "clean": (found["clean"].accuracy, found["clean"].interval),
        "autoattack": (found[attack].accuracy, found[attack].interval),
    }
    if evaluation.eps is not None and not evaluation.failed:
        figures["worst_case"] = evaluation.worst
    card: dict[str, Any] = {
        **facts,
        "threat_model": evaluation.norm,
        "eps": None if evaluation.eps is None else format_eps(evaluation.eps),
        "number_of_points": evaluation.n,
        "worst_case_acc": None,
        "unreliable": [doubt.message for doubt in evaluation.doubts],
    }
    for key, (accuracy, interval) in figures.items():
        card[f"{key}_acc"] = f"{100 * accuracy:.2f}"
        card[f"{key}_interval"] = [f"{100 * end:.2f}" for end in interval]
    return card


class UnfinishedError(InputError):
    """Attacks failed; ``evaluation`` has the figures of the others."""

    def __init__(self, message: str, evaluation: Evaluation) -> None:
        super().__init__(message)
        self.evaluation = evaluation


def format_eps(eps: float) -> str:
    """``8/255`` where eps is a whole number of grey levels and no short decimal, the
    number itself elsewhere."""
    levels = eps * 255
    whole = levels > 0.5 and math.isclose(levels, round(levels), rel_tol=1e-6) and levels < 255
    return f"{round(levels)}/255" if whole and len(f"{eps:g}") > 4 else f"{eps:g}"


def _short(value: float) -> str:
    """With two digits after the point, or as many as seven characters have room for."""
    texts = [format(value, form) for form in (".2f", ".1f", ".0f", ".1e", ".0e")]
    return next(text for text in texts if len(text) <= 7)


def _range(interval: Interval) -> str:
    return f"{interval[0]:.2%} – {interval[1]:.2%}"
