"""What the JSON files of a run folder must hold: a run may come from a stranger, or
from a damaged disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from mrboost.errors import InputError

FORMAT = 2

Check = Callable[[Any], bool]


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _whole(low: int, high: int) -> Check:
    return lambda value: (
        isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
    )


def _image_shape(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 3
        and all(_whole(1, 10_000)(size) for size in value)
    )


_CONFIG: dict[str, Check] = {
    "format": lambda value: value == FORMAT,
    "recipe.name": _text,
    "recipe.summary": _text,
    "data": _text,
    "model": _text,
    "rounds": _whole(1, 100_000),
    "eps": lambda value: _number(value) and value > 0,
    "norm": _text,
    "validation": _whole(0, 10**12),
    "select_on": _text,
    "past": lambda value: value in (None, "last", "best"),
    "judge_step": lambda value: _number(value) and value > 0,
    "input.shape": _image_shape,
    "input.classes": _whole(2, 100_000),
    "input.fingerprint": _text,
    "versions.mrboost": _text,
    "versions.torch": _text,
}
_TRAINING: dict[str, Check] = {
    "epochs": _whole(1, 10_000_000),
    "step_size": _number,
    "batch_size": _whole(1, 10_000_000),
    "lr": _number,
    "seed": _whole(0, 2**63),
}
_OPTIONAL: dict[str, Check] = {
    "data_dir": _text,
    "train_images": _whole(1, 10**12),
    "joined": lambda value: (
        isinstance(value, list) and all(isinstance(p, dict) and _text(p.get("run")) for p in value)
    ),
}
_EVALUATION: dict[str, Check] = {
    "weights": _text,
    "members": _whole(1, 100_000),
    "n": _whole(1, 10**12),
    "outcomes": lambda v: isinstance(v, list),
}
_OUTCOME: dict[str, Check] = {
    "attack": _text,
    "accuracy": _number,
    "interval": lambda v: isinstance(v, list) and len(v) == 2,
    "per_class": lambda v: isinstance(v, list),
}


def check_config(config: dict[str, Any], path: Path) -> None:
    if config.get("format") == 1:
        raise InputError(
            f"{path} was written by mrboost 0.1, whose past members and held-out images were "
            "others: train it anew, or evaluate it with that version"
        )
    if config.get("format", FORMAT) != FORMAT:
        raise InputError(
            f"{path} has format {config['format']!r}, this mrboost reads format {FORMAT}: "
            "upgrade it"
        )
    where = f"{path} is not a run's configuration"
    # Networks trained apart may differ in the latter
    needed = _CONFIG if "joined" in config else _CONFIG | _TRAINING
    optional = {name: check for name, check in (_TRAINING | _OPTIONAL).items() if name in config}
    _check(config, needed | optional, where)
    if "first" in config:
        _check(config["first"], {"run": _text, "of": _text}, f"{where}: first")


def check_results(results: dict[str, Any], path: Path) -> None:
    where = f"{path} does not hold a run's results"
    for name in ("evaluations", "rounds"):
        if not isinstance(results.get(name, []), list):
            raise InputError(f"{where}: {name} is not a list: move it away")
    for evaluation in results.get("evaluations", []):
        _check(evaluation, _EVALUATION, where)
        for outcome in evaluation["outcomes"]:
            _check(outcome, _OUTCOME, where)
        if not isinstance(evaluation.get("doubts", []), list):
            raise InputError(f"{where}: doubts is not a list: move it away")
        for doubt in evaluation.get("doubts", []):
            _check(doubt, {"check": _text, "message": _text}, where)
    for row in results.get("rounds", []):
        _check(
            row,
            {"round": _whole(1, 100_000), "clean.accuracy": _number, "pgd-20.accuracy": _number},
            where,
        )
    hardware = results.get("hardware", [])
    if not isinstance(hardware, list) or not all(map(_text, hardware)):
        raise InputError(f"{where}: hardware is not a list of names: move it away")
    if not isinstance(results.get("curve", {}), dict):
        raise InputError(f"{where}: curve is not an object: move it away")


def _check(value: Any, schema: dict[str, Check], where: str) -> None:
    """Every dotted name of the schema is there and passes its check."""
    for name, check in schema.items():
        found = value
        for key in name.split("."):
            if not isinstance(found, dict) or key not in found:
                raise InputError(f"{where}: it lacks {name}: restore it from a copy")
            found = found[key]
        if not check(found):
            raise InputError(f"{where}: {name} is {str(found)[:60]!r}: restore it from a copy")
