"""What the files of a run folder must hold, one schema for each: a run may come from a stranger, or
from a damaged disk.

A schema maps dotted names to rules. A name that ends in ``?`` may be missing. A rule is a function
that says whether a value will do, or a list of one schema that each item of a list must fit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mrboost.errors import InputError
from mrboost.options import OPTIONS, Option
from mrboost.recipes.config import LARGEST

FORMAT = 2

Rule = Callable[[Any], bool] | list[Mapping[str, Any]]
Schema = Mapping[str, Rule]


def _text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= 10_000


def _truth(value: Any) -> bool:
    return isinstance(value, bool)


def _any_number(value: Any) -> bool:
    """Infinity and NaN too: margins of infinite logits."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _number(value: Any) -> bool:
    return _any_number(value) and abs(value) < math.inf


def _positive(value: Any) -> bool:
    return _number(value) and value > 0


def _share(value: Any) -> bool:
    return _number(value) and 0 <= value <= 1


def _whole(low: int, high: int) -> Callable[[Any], bool]:
    return lambda value: (
        isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
    )


def _or_none(rule: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or rule(value)


def _all(rule: Callable[[Any], bool], length: int | None = None) -> Callable[[Any], bool]:
    """A list, of so many items, of which each fits."""
    return lambda value: (
        isinstance(value, list) and length in (None, len(value)) and all(map(rule, value))
    )


def _one_of(*choices: Any) -> Callable[[Any], bool]:
    return lambda value: value in choices


def _object(value: Any) -> bool:
    return isinstance(value, dict)


def _value_of(option: Option) -> Callable[[Any], bool]:
    """What the configuration may hold for an option of the training."""
    if option.path[-1] in ("schedule", "start"):  # parts, which have names as options alone
        return lambda value: _object(value) or _text(value)
    if option.choices:
        return _one_of(None, *option.choices)
    rules = {bool: _truth, int: _whole(0, 2**63 - 1), str: _text}
    return _or_none(rules.get(option.type, _number))  # type: ignore[call-overload]


_INTERVAL = _all(_number, length=2)


def _point(value: Any) -> bool:
    """Radius, accuracy and its interval."""
    if not isinstance(value, list) or len(value) != 3:
        return False
    return _number(value[0]) and _share(value[1]) and _INTERVAL(value[2])


_RUN: Schema = {
    "format": _one_of(FORMAT),
    "recipe.name": _text,
    "recipe.summary": _text,
    "data": _text,
    "model": _text,
    "rounds": _whole(1, LARGEST["rounds"]),
    "eps": _positive,
    "norm": _text,
    "validation": _whole(0, LARGEST["validation"]),
    "select_on": _text,
    "past": _one_of(None, "last", "best"),
    "judge_step": _positive,
    "input.shape": _all(_whole(1, 10_000), length=3),
    "input.classes": _whole(2, 100_000),
    "input.names?": _all(_text),
    "input.fingerprint": _text,
    "versions.mrboost": _text,
    "versions.torch": _text,
    "data_dir?": _text,
    "train_images?": _whole(1, 10**12),
    "recipe.combine?": _text,
    "first?": _object,
    "first.run?": _text,
    "first.of?": _text,
    **{f"{'.'.join(option.path)}?": _value_of(option) for option in OPTIONS},
}
_TRAINED_HERE: Schema = {
    "epochs": _whole(1, LARGEST["epochs"]),
    "step_size": _positive,
    "batch_size": _whole(1, LARGEST["batch_size"]),
    "lr": _positive,
    "seed": _whole(0, 2**63 - 1),
    "train_images": _whole(1, 10**12),
    "recipe.sampler.part": _text,
}
"""What networks that were trained apart and joined may differ in."""
_JOINED: Schema = {"joined": [{"run": _text, "recipe?": _text, "of?": _text}]}
_OUTCOME: Schema = {
    "attack": _text,
    "accuracy": _share,
    "interval": _INTERVAL,
    "per_class": _all(_or_none(_share)),
    "class_intervals?": _all(_or_none(_INTERVAL)),
    "margin?": _or_none(_any_number),
    "min_margin?": _or_none(_any_number),
    "seconds?": _number,
    "correct?": _all(lambda value: _truth(value) or _share(value)),
    "stages?": [{"attack": _text, "accuracy": _share, "interval": _INTERVAL, "seconds": _number}],
    "broken_by?": _all(_whole(-1, 1000)),
    "black_box?": _truth,
    "eps?": _or_none(_number),
    "norm?": _or_none(_text),
    "labels?": _text,
}
_RESULTS: Schema = {
    "evaluations?": [
        {
            "weights": _one_of("best", "last"),
            "members": _whole(1, LARGEST["rounds"]),
            "n": _whole(1, 10**12),
            "eps": _or_none(_number),
            "norm": _or_none(_text),
            "of?": _text,
            "whole?": _truth,
            "checked?": _truth,
            "images?": _text,
            "points?": _or_none(_all(_whole(0, 10**12))),
            "failed?": _all(_text),
            "outcomes": [_OUTCOME],
            "doubts?": [{"check": _text, "message": _text}],
        }
    ],
    "rounds?": [
        {
            "round": _whole(1, LARGEST["rounds"]),
            "clean.accuracy": _share,
            "pgd-20.accuracy": _share,
        }
    ],
    "hardware?": _all(_text),
    "curve?": _object,
    "curve.points?": _all(_point),
    "curve.margins?": _all(_number),
}
_METRICS: Schema = {
    "round": _whole(1, LARGEST["rounds"]),
    "epoch": _whole(1, LARGEST["epochs"]),
    "loss": _any_number,
    "train_robust": _share,
    "clean": _share,
    "robust": _share,
    "seconds": _number,
    "lr?": _number,
}
_WEIGHTS: Schema = {
    "of": _one_of("best", "last"),
    "weights": _all(lambda value: _number(value) and value >= 0),
    "how?": _text,
}
_CHECKPOINT: Schema = {
    "round": _whole(1, LARGEST["rounds"]),
    "epoch": _whole(1, LARGEST["epochs"]),
    "best_epoch": _whole(1, LARGEST["epochs"]),
    "config?": _object,
}


def check_config(config: dict[str, Any], path: Path) -> None:
    """Refuse what is no configuration of a run."""
    if config.get("format") == 1:
        raise InputError(
            f"{path} was written by mrboost 0.1, whose past members and held-out images were "
            "others: train it anew, or evaluate it with that version"
        )
    if config.get("format", FORMAT) != FORMAT:
        raise InputError(
            f"{path} has format {config['format']!r:.60}, this mrboost reads format "
            f"{FORMAT}: upgrade it"
        )
    where = f"{path} is not a run's configuration"
    _check(config, _RUN, where)
    _check(config, _JOINED if "joined" in config else _TRAINED_HERE, where)


def check_results(results: dict[str, Any], path: Path) -> None:
    """Refuse what is no file of a run's results."""
    where = f"{path} does not hold a run's results"
    _check(results, _RESULTS, where)
    for evaluation in results.get("evaluations", []):
        for outcome in evaluation["outcomes"]:
            images = len(outcome.get("correct", ())) or evaluation["n"]
            classes = len(outcome["per_class"])
            if images != evaluation["n"] or len(outcome.get("class_intervals") or ()) not in (
                0,
                classes,
            ):
                raise InputError(
                    f"{where}: the lists of {outcome['attack'][:60]!r} do not have one entry for "
                    "each image or class: restore it from a copy"
                )


def check_metrics(row: Any, path: Path) -> None:
    """Refuse a line that is no epoch's metrics."""
    _check(row, _METRICS, f"{path} holds a line that is no epoch's metrics")


def check_weights(weights: dict[str, Any], path: Path) -> None:
    """Refuse what are no weights of members."""
    _check(weights, _WEIGHTS, f"{path} does not hold numbers for the members")


def check_checkpoint(facts: dict[str, Any], path: Path) -> None:
    """Refuse facts that are no checkpoint's."""
    _check(facts, _CHECKPOINT, f"{path} does not fit this run")


_MISSING = object()


def _check(value: Any, schema: Schema, where: str) -> None:
    """Refuse a value with a part that is missing or does not fit, in one line."""
    if not isinstance(value, dict):
        raise InputError(f"{where} ({str(value)[:60]!r}): restore it from a copy")
    for name, rule in schema.items():
        found = _part(value, name.removesuffix("?").split("."))
        if found is _MISSING:
            if name.endswith("?"):
                continue
            raise InputError(f"{where}: it lacks {name}: restore it from a copy")
        name = name.removesuffix("?")
        if isinstance(rule, list):
            if not isinstance(found, list):
                raise InputError(f"{where}: {name} is not a list: restore it from a copy")
            for item in found:
                _check(item, rule[0], where)
        elif not rule(found):
            raise InputError(f"{where}: {name} is {str(found)[:60]!r}: restore it from a copy")


def _part(value: Any, path: Sequence[str]) -> Any:
    """The value at a path of keys, or _MISSING."""
    for key in path:
        if not isinstance(value, dict) or key not in value:
            return _MISSING
        value = value[key]
    return value
