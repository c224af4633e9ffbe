"""What the files of a run folder must hold, one schema for each: a run may come from a stranger, or
from a damaged disk.

A schema maps dotted names to rules. A name that ends in ``?`` may be missing. A rule is a function
that says whether a value will do, or a list of one schema that each item of a list must fit.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mrboost.errors import InputError
from mrboost.options import OPTIONS, Option
from mrboost.recipes.config import LIMITS

FORMAT = 2

Rule = Callable[[Any], bool] | list[Mapping[str, Any]]
Schema = Mapping[str, Rule]


# What no terminal and no page should get: control characters but line breaks, halves of characters
_ODD = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


def _text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= 10_000 and not _ODD.search(value)


def _truth(value: Any) -> bool:
    return isinstance(value, bool)


def _any_number(value: Any) -> bool:
    """Infinity and NaN too: margins of infinite logits."""
    return type(value) in (int, float)


def _number(value: Any) -> bool:
    return _any_number(value) and abs(value) < math.inf


def _positive(value: Any) -> bool:
    return _number(value) and value > 0


def _share(value: Any) -> bool:
    return _number(value) and 0 <= value <= 1


def _whole(low: int, high: int) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and low <= value <= high  # a bool is none


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


def _point(value: Any) -> bool:
    """Radius, accuracy and its interval."""
    is_triple = isinstance(value, list) and len(value) == 3
    return is_triple and _number(value[0]) and _share(value[1]) and _INTERVAL(value[2])


def _value_of(option: Option) -> Callable[[Any], bool]:
    """What the configuration may hold for an option of the training."""
    if option.path[-1] in ("schedule", "start", "sampler", "loss"):  # parts, named as options alone
        return lambda value: _object(value) or _text(value)
    if option.choices:
        return _one_of(None, *option.choices)
    rules = {bool: _truth, int: _whole(0, 2**63 - 1), str: _text}
    return _or_none(rules.get(option.type, _number))  # type: ignore[call-overload]


_INTERVAL = _all(_share, length=2)
_COUNT = _whole(1, 10**12)
_ROUND = _whole(*LIMITS["rounds"])
_EPOCH = _whole(*LIMITS["epochs"])


def _each(rule: Rule, names: str) -> Schema:
    """The same rule for several names."""
    return dict.fromkeys(names.split(), rule)


_RUN: Schema = {
    "format": _one_of(FORMAT),
    **_each(_text, "recipe.name recipe.summary data model norm select_on input.fingerprint"),
    **_each(
        _text,
        "versions.mrboost versions.torch data_dir? recipe.combine? first.run? first.weights? "
        "first.of?",
    ),
    **_each(_positive, "eps judge_step"),
    "rounds": _ROUND,
    "validation": _whole(0, LIMITS["validation"][1]),
    "past": _one_of(None, "last", "best"),
    "input.shape": _all(_whole(1, 10_000), length=3),
    "input.classes": _whole(2, 100_000),
    "input.names?": _all(_text),
    "train_images?": _COUNT,
    "first?": _object,
    **{f"{'.'.join(option.path)}?": _value_of(option) for option in OPTIONS},
}
# What networks that were trained apart and joined may differ in
_TRAINED_HERE: Schema = {
    **{name: _whole(*LIMITS[name]) for name in ("epochs", "batch_size", "seed")},
    **_each(_positive, "step_size lr"),
    "train_images": _COUNT,
    "recipe.sampler.part": _text,
}
_NOT_TRAINED_HERE: dict[str, Schema] = {
    "joined": {"joined": [{"run": _text, "recipe?": _text, "of?": _text, "rounds?": _all(_ROUND)}]},
    "given": {
        "given.weights": _or_none(_text),
        "given.surrogate?": _text,
        "given.normalize": _or_none(_all(_all(_number), length=2)),
    },
}
_FIGURES: Schema = {"accuracy": _share, "interval": _INTERVAL}
_OUTCOME: Schema = {
    **_FIGURES,
    "attack": _text,
    "per_class": _all(_or_none(_share)),
    "class_intervals?": _all(_or_none(_INTERVAL)),
    **_each(_or_none(_any_number), "margin? min_margin?"),
    "seconds?": _number,
    "correct?": _all(lambda value: _truth(value) or _share(value)),
    "stages?": [
        {
            **_FIGURES,
            "attack": _text,
            "seconds": _number,
            "black_box?": _truth,
            "sample?": _or_none(_share),
        }
    ],
    "broken_by?": _all(_whole(-1, 1000)),
    "black_box?": _truth,
    "eps?": _or_none(_number),
    "norm?": _or_none(_text),
    "labels?": _text,
}
_EVALUATION: Schema = {
    "weights": _one_of("best", "last", "given"),
    "members": _ROUND,
    "n": _COUNT,
    "eps": _or_none(_number),
    "norm": _or_none(_text),
    **_each(_text, "of? images?"),
    **_each(_truth, "whole? checked?"),
    "points?": _or_none(_all(_whole(0, 10**12))),
    "failed?": _all(_text),
    "outcomes": [_OUTCOME],
    "doubts?": [{"check": _text, "message": _text}],
}
_RESULTS: Schema = {
    "evaluations?": [_EVALUATION],
    "rounds?": [{"round": _ROUND, "clean.accuracy": _share, "pgd-20.accuracy": _share}],
    "hardware?": _all(_text),
    "curve?": _object,
    "curve.points?": _all(_point),
    "curve.margins?": _all(_number),
}
METRICS: Schema = {
    "round": _ROUND,
    "epoch": _EPOCH,
    "loss": _any_number,
    **_each(_share, "train_robust clean robust"),
    **_each(_number, "seconds lr?"),
}
WEIGHTS: Schema = {
    "of": _one_of("best", "last"),
    "weights": _all(lambda value: _number(value) and value >= 0),
    "how?": _text,
}
CHECKPOINT: Schema = {"round": _ROUND, **_each(_EPOCH, "epoch best_epoch"), "config?": _object}


def _line(value: Any) -> bool:
    """A text that a terminal shows as it is."""
    return _text(value) and value.isprintable()


def _bits(value: Any) -> bool:
    """How many there must be, ``check_card`` knows."""
    return isinstance(value, str)


_IMAGES = _whole(1, 10**7)
_CARD_OUTCOME: Schema = {
    **_FIGURES,
    "attack": _line,
    "seed": _or_none(_whole(0, 2**64)),
    "correct": _or_none(_bits),
    "settings": _or_none(_object),
}
_CARD: Schema = {
    "format": _one_of(1),
    "submission.clean_acc": _line,
    "submission.autoattack_acc": _or_none(_line),
    **_each(_line, "model.recipe model.architecture data.name data.fingerprint"),
    **_each(_line, "data.images made.date made.versions.mrboost made.versions.torch"),
    "model.weights": _or_none(_line),
    "model.surrogate?": _or_none(_line),
    "model.which": _one_of("best", "last", "given"),
    "model.members": _ROUND,
    **_each(_IMAGES, "data.test_images evaluation.n"),
    "data.points": _or_none(_bits),
    "evaluation.norm": _or_none(_line),
    "evaluation.eps": _or_none(lambda value: _number(value) and 0 <= value <= 10**6),
    "evaluation.left_out": _whole(0, 10**12),
    "evaluation.outcomes": [_CARD_OUTCOME],
    "evaluation.worst": _or_none(_object),
    "evaluation.checked": _truth,
    "evaluation.doubts": [{"check": _line, "message": _line}],
}


def check_card(card: dict[str, Any], path: Path) -> None:
    """Refuse what is no card; bits are then as many as the images they stand for."""
    kind = "a card of mrboost evaluate --card"
    check(card, _CARD, path, kind)
    data, found = card["data"], card["evaluation"]
    if found["worst"] is not None:
        check(found["worst"], _FIGURES, path, kind)
    names = [one["attack"] for one in found["outcomes"]]
    if "clean" not in names or len(set(names)) < len(names):
        raise _damaged(path, "it has no clean accuracy, or two of one attack", kind)
    bits = [(one["correct"], found["n"]) for one in found["outcomes"]]
    for text, count in [*bits, (data["points"], data["test_images"])]:
        if text is not None and not re.fullmatch(f"[0-9a-f]{{{2 * -(-count // 8)}}}", text):
            raise _damaged(path, f"{text[:20]!r} has no bit for each of {count} images", kind)


def check_config(config: dict[str, Any], path: Path) -> None:
    """Refuse what is no configuration of a run."""
    if config.get("format") == 1:
        raise InputError(
            f"{path} was written by mrboost 0.1, whose past members and held-out images were "
            "others: train it anew, or evaluate it with that version"
        )
    if (found := config.get("format", FORMAT)) != FORMAT:
        raise InputError(f"{path} has format {found!r:.60}, this is for {FORMAT}: upgrade mrboost")
    check(config, _RUN, path)
    kinds = (schema for key, schema in _NOT_TRAINED_HERE.items() if key in config)
    check(config, next(kinds, _TRAINED_HERE), path)


def check_results(results: dict[str, Any], path: Path) -> None:
    """Refuse what is no file of a run's results."""
    check(results, _RESULTS, path)
    for evaluation in results.get("evaluations", []):
        for outcome in evaluation["outcomes"]:
            of_images, of_classes = outcome.get("correct"), outcome.get("class_intervals")
            lengths = ((of_images, evaluation["n"]), (of_classes, len(outcome["per_class"])))
            if any(values and len(values) != wanted for values, wanted in lengths):
                raise _damaged(path, f"lists of {outcome['attack'][:60]!r} differ in their lengths")


def check(value: Any, schema: Schema, path: Path, kind: str = "") -> None:
    """Refuse a value from a file with a part that is missing or does not fit, in one line."""
    if not isinstance(value, dict):
        raise _damaged(path, f"{str(value)[:60]!r} is not an object", kind)
    for name, rule in schema.items():
        key = name.removesuffix("?")
        found = _part(value, key.split("."))
        if found is _MISSING:
            if key == name:
                raise _damaged(path, f"it lacks {key}", kind)
        elif isinstance(rule, list) and isinstance(found, list):
            for item in found:
                check(item, rule[0], path, kind)
        elif isinstance(rule, list) or not rule(found):
            raise _damaged(path, f"{key} is {str(found)[:60]!r}", kind)


_MISSING = object()


def _part(value: Any, path: Sequence[str]) -> Any:
    """The value at a path of keys, or _MISSING."""
    for key in path:
        if not isinstance(value, dict) or key not in value:
            return _MISSING
        value = value[key]
    return value


def _damaged(path: Path, problem: str, kind: str = "") -> InputError:
    what = kind or f"a run's {path.name}"
    return InputError(f"{path} is not {what} ({problem}): restore it from a copy")
