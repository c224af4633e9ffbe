"""What an evaluation found: one ``Outcome`` for each attack, point by point, and what
can be said from them."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import scipy
import torch
from torch import Tensor

from mrboost.attacks.autoattack import UP_TO, VERSIONS
from mrboost.errors import InputError
from mrboost.files import digest

from .doubts import Doubt


@dataclass(frozen=True)
class Stage:
    """The accuracy left after one of several attacks in turn, and the seconds that it took."""

    attack: str
    accuracy: float
    interval: tuple[float, float]
    seconds: float


@dataclass(frozen=True)
class Outcome:
    """What one attack left of the accuracy.

    ``correct`` says of each image whether it withstood (for a randomised classifier: with which
    probability), ``interval`` is the 95 % Wilson interval of the accuracy; ``margin`` the mean of
    the true logit minus the largest other one on the attacked images, ``min_margin`` the least of
    them, both NaN of an attack that failed before its end. An attack that is several in turn has
    ``stages``, and says of each image by which it was ``broken_by``: from 1 on, 0 for an image that
    was wrong from the start, -1 for one that stands. ``black_box`` attacks do not use the model's
    gradients. ``eps`` and ``norm`` are the attack's ball, if it says so. ``labels`` stands for
    those of the images: outcomes with another are of other images.
    """

    attack: str
    accuracy: float
    interval: tuple[float, float]
    margin: float
    min_margin: float
    per_class: tuple[float | None, ...]
    class_intervals: tuple[tuple[float, float] | None, ...] = field(repr=False)
    seconds: float
    correct: tuple[float, ...] = field(repr=False)
    stages: tuple[Stage, ...] = ()
    broken_by: tuple[int, ...] = field(default=(), repr=False)
    black_box: bool = False
    eps: float | None = None
    norm: str | None = None
    labels: str = field(default="", repr=False)

    @classmethod
    def of(
        cls, attack: str, correct: Tensor, margins: Tensor, y: Tensor, seconds: float, **more: Any
    ) -> Outcome:
        """From what is known of each point."""
        values = correct.double()
        classes = [values[y == k] for k in range(int(y.max()) + 1)]
        return cls(
            attack=attack,
            accuracy=values.mean().item(),
            interval=wilson_interval(values.sum().item(), len(values)),
            margin=margins.double().mean().item(),
            min_margin=margins.double().min().item(),
            per_class=tuple(own.mean().item() if len(own) else None for own in classes),
            class_intervals=tuple(
                wilson_interval(own.sum().item(), len(own)) if len(own) else None for own in classes
            ),
            seconds=seconds,
            correct=tuple(correct.tolist()),
            labels=digest(y),
            **more,
        )


@dataclass(frozen=True)
class Evaluation:
    """Outcomes of several attacks on the same images; ``eps`` and ``norm`` are None where attacks
    differ or do not say.

    ``doubts`` are reasons not to trust the figures, ``failed`` attacks that came to nothing,
    or not to their end.
    """

    eps: float | None
    norm: str | None
    n: int
    outcomes: tuple[Outcome, ...]
    doubts: tuple[Doubt, ...] = ()
    failed: tuple[str, ...] = ()

    def __getitem__(self, attack: str) -> Outcome:
        for outcome in self.outcomes:
            if outcome.attack == attack:
                return outcome
        raise KeyError(
            f"{attack!r} was not evaluated, only {', '.join(o.attack for o in self.outcomes)}"
        )

    @property
    def worst(self) -> tuple[float, tuple[float, float]]:
        """The accuracy over the worst attack of each point, and its interval:
        the figure to publish."""
        if (found := worst_of(asdict(self))) is not None:
            return found["accuracy"], found["interval"]
        if self.failed:
            raise InputError(
                f"there is no worst case where attacks failed: {', '.join(self.failed)}"
            )
        raise InputError(
            "there is no worst case over different balls, or of attacks that do not say theirs "
            "(eps and norm): evaluate each ball alone"
        )

    def __str__(self) -> str:
        ball = "several balls, or unknown ones"
        if self.eps is not None:
            ball = f"{self.norm or 'unknown norm,'} eps = {format_eps(self.eps)}"
        width = max([14, *(len(o.attack) + 2 for o in self.outcomes)])
        head = (
            f"{'attack':<{width}}{'accuracy':>9}   "
            f"{'95 % interval':<16}{'margin':>8}{'least':>8}{'seconds':>9}"
        )
        lines = [f"{self.n} images, {ball}", head]
        for o in self.outcomes:
            lines += [
                f"  {s.attack:<{width - 2}}{s.accuracy:>9.2%}   "
                f"{_range(s.interval):<32}{s.seconds:>9.1f}"
                for s in o.stages
            ]
            lines.append(
                f"{o.attack:<{width}}{o.accuracy:>9.2%}   {_range(o.interval):<16}"
                f"{_short(o.margin):>8}{_short(o.min_margin):>8}{o.seconds:>9.1f}"
            )
        if len(self.outcomes) > 2 and (worst := worst_of(asdict(self))) is not None:
            lines.append(
                f"{'worst case':<{width}}{worst['accuracy']:>9.2%}   {_range(worst['interval'])}"
            )
        lines += [f"failed: {', '.join(self.failed)}"] if self.failed else []
        return "\n".join(
            [*lines, *(f"doubt ({doubt.check}): {doubt.message}" for doubt in self.doubts)]
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, the worst case too; what JSON has no number for (the margin of
        infinite logits) is None."""
        found = asdict(self)
        for outcome in found["outcomes"]:
            outcome |= {
                key: outcome[key] if math.isfinite(outcome[key]) else None
                for key in ("margin", "min_margin")
            }
        return found | {"worst": worst_of(found)}

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=2)


def worst_case(correct: Sequence[Sequence[float]]) -> tuple[float, tuple[float, float]]:
    """Accuracy and interval where each point counts as its worst outcome."""
    least = torch.tensor(correct, dtype=torch.float64).amin(dim=0)
    return least.mean().item(), wilson_interval(least.sum().item(), len(least))


def worst_of(evaluation: Mapping[str, Any]) -> dict[str, Any] | None:
    """The worst case over the attacks of an evaluation, as ``to_dict`` has it, and of each point;
    over several balls, where attacks failed, or of an older one that did not keep its points, there
    is none."""
    points = [outcome["correct"] for outcome in evaluation["outcomes"] if "correct" in outcome]
    if (
        len(points) < len(evaluation["outcomes"])
        or not points
        or (evaluation["eps"] is None and len(points) > 2)
    ):
        return None
    if evaluation.get("failed"):
        return None
    accuracy, interval = worst_case(points)
    return {
        "accuracy": accuracy,
        "interval": interval,
        "correct": [min(values) for values in zip(*points, strict=True)],
    }


@dataclass(frozen=True)
class Comparison:
    """Two classifiers on the same points under the same attack.

    ``p_value`` is the sign test's, for two plain classifiers McNemar's exact one: how likely so
    uneven a split of the points on which they differ would be if neither were better.
    """

    only_first: int
    only_second: int
    p_value: float


def compare(first: Outcome, second: Outcome) -> Comparison:
    """Count the points that only one of two classifiers withstands."""
    if len(first.correct) == len(second.correct) and first.labels != second.labels:
        raise InputError(
            "two evaluations can be compared on the same points only, and the labels of these "
            "differ"
        )
    found = compare_points(first.correct, second.correct)
    known = [one for one in (first, second) if one.eps is not None and one.norm is not None]
    balls = [f"{one.norm} {format_eps(one.eps)}" if one.eps else "eps 0" for one in known]
    if len(set(balls)) > 1:
        raise InputError(
            "two evaluations can be compared in the same ball only, these are of "
            f"{' and '.join(balls)}"
        )
    return found


def compare_points(first: Sequence[float], second: Sequence[float]) -> Comparison:
    """``compare`` for the outcomes of the points themselves."""
    if len(first) != len(second):
        raise InputError(
            f"two evaluations can be compared on the same points only, these have {len(first)} "
            f"and {len(second)}"
        )
    pairs = list(zip(first, second, strict=True))
    only_first, only_second = sum(a > b for a, b in pairs), sum(b > a for a, b in pairs)
    differing = only_first + only_second
    return Comparison(
        only_first,
        only_second,
        float(scipy.stats.binomtest(only_first, differing).pvalue) if differing else 1.0,
    )


def signed_difference(first: Sequence[float], second: Sequence[float]) -> str:
    """The first's accuracy minus the second's on the same points, in points, and in
    brackets the sign test's p."""
    gain, chance = (
        100 * (sum(first) - sum(second)) / len(first),
        compare_points(first, second).p_value,
    )
    return f"{gain:+.2f} ({f'{chance:.2g}' if chance > 0 else '< 1e-300'})"


def attack_of(name: str, failed: Collection[str]) -> str:
    """The attack that an outcome is of, which has another name if it failed before its end."""
    return next((attack for attack in failed if name.startswith(attack + UP_TO)), name)


def same_images(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two evaluations of a run's are of the same images; older ones know
    them by their labels."""
    if "images" in one and "images" in other:
        return bool(one["images"] == other["images"])
    labels = [{outcome.get("labels", "") for outcome in each["outcomes"]} for each in (one, other)]
    return labels[0] == labels[1] or any("" in known for known in labels)


def robustbench_summary(
    evaluation: Evaluation,
    *,
    name: str,
    dataset: str,
    architecture: str,
    attack: str = "autoattack",
    **facts: object,
) -> dict[str, Any]:
    """An entry in the manner of RobustBench's model cards, accuracies in per cent as strings,
    with 95 % intervals.

    ``attack`` is the label of AutoAttack in the evaluation, where it has another. ``facts`` are
    added as they are: link, authors, venue, additional_data and whatever else the card asks for.
    """
    if attack not in [outcome.attack for outcome in evaluation.outcomes]:
        raise InputError(
            f"the card's figure is that of AutoAttack, and there is no {attack!r}: evaluate "
            "that too"
        )
    ran = tuple(stage.attack for stage in evaluation[attack].stages)
    whole = [tuple(part.name for part in make(8 / 255, "Linf")) for make in VERSIONS.values()]
    if ran not in whole and evaluation.eps != 0:
        raise InputError(
            f"the card's figure is that of AutoAttack, and {attack!r} is another attack: "
            "evaluate that too"
        )
    figures: dict[str, tuple[float, tuple[float, float]]] = {
        key: (outcome.accuracy, outcome.interval)
        for key, outcome in (("clean", evaluation["clean"]), ("autoattack", evaluation[attack]))
    }
    if evaluation.eps is not None and not evaluation.failed:
        figures["worst_case"] = evaluation.worst
    return {
        "name": name,
        "dataset": dataset,
        "architecture": architecture,
        "threat_model": evaluation.norm,
        "eps": None if evaluation.eps is None else format_eps(evaluation.eps),
        "number_of_points": evaluation.n,
        "worst_case_acc": None,
        **{f"{key}_acc": f"{100 * accuracy:.2f}" for key, (accuracy, _) in figures.items()},
        **{
            f"{key}_interval": [f"{100 * end:.2f}" for end in ends]
            for key, (_, ends) in figures.items()
        },
        "unreliable": [doubt.message for doubt in evaluation.doubts],
        **facts,
    }


def format_eps(eps: float) -> str:
    """``8/255`` where eps is a whole number of grey levels and no short decimal, the
    number itself elsewhere."""
    levels = eps * 255
    whole = levels > 0.5 and math.isclose(levels, round(levels), rel_tol=1e-6) and levels < 255
    return f"{round(levels)}/255" if whole and len(f"{eps:g}") > 4 else f"{eps:g}"


def wilson_interval(successes: float, n: int) -> tuple[float, float]:
    """The 95 % confidence interval of a proportion, sound at 0 and 1 too (Wilson 1927)."""
    p, z = successes / n, 1.959964
    centre, spread = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return max(0.0, (centre - spread) / (1 + z * z / n)), min(
        1.0, (centre + spread) / (1 + z * z / n)
    )


def _short(value: float) -> str:
    """With two digits after the point, or as many as seven characters have room for."""
    if math.isnan(value):
        return "–"
    return next(
        text
        for form in (".2f", ".1f", ".0f", ".1e", ".0e")
        if len(text := format(value, form)) <= 7
    )


def _range(interval: tuple[float, float]) -> str:
    return f"{interval[0]:.2%} – {interval[1]:.2%}"
