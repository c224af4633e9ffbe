"""When two runs are the same training: which parts of ``config.json`` count, for which question.

Resuming, ``--first``, ``join`` and the studies all compare configurations here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from mrboost.options import OPTIONS
from mrboost.recipes.config import saved_options

# What decides nothing about a run's result
CIRCUMSTANCES = frozenset(
    {"format", "versions", "data_dir", "train_images"}
    | {"recipe.summary", "recipe.formula", "recipe.reference"}
)
# What cannot be compared before the images are loaded
WITHOUT_IMAGES = CIRCUMSTANCES | {"input", "first"}
# What another run must share for its network to be the first round of this one
FIRST_ROUND = ("input", "model", "validation", "select_on")
# What runs must share for their networks to be one ensemble
MEMBERS = ("input", "model", "eps", "norm", "judge_step")

_LATER_ROUNDS = CIRCUMSTANCES | {"first", "rounds", "later_epochs", "later_lr", "past"}
_LATER_PARTS = frozenset(
    {"name", "summary", "formula", "reference", "rounds", "init", "scope", "combine", "model"}
)


def differences(
    saved: Mapping[str, Any],
    asked: Mapping[str, Any],
    *,
    ignore: Collection[str] = CIRCUMSTANCES,
    only: Collection[str] | None = None,
) -> list[str]:
    """What differs between two configurations: ``lr: 0.1 -> 0.05``, options by their names.

    Args:
        saved: the configuration of a run, as ``config.json`` holds it.
        asked: the one to compare it with.
        ignore: what does not count, as ``key`` or ``key.key``.
        only: the keys that count, if not all others.

    Returns:
        One text for each difference; of other recipes or data, which differ in all that follows
        from them, those texts alone.
    """
    before, after = saved_options(saved), saved_options(asked)
    found = dict[str, str]()
    for path, old, new in _leaves(saved, asked):
        name = ".".join(path)
        if path[0] in ignore or name in ignore or (only is not None and path[0] not in only):
            continue
        of_options = [
            (option.name, before.get(option.name), after.get(option.name))
            for option in OPTIONS
            if all(one == other for one, other in zip(option.path, path, strict=False))
            and before.get(option.name) != after.get(option.name)
        ]
        for called, was, now in of_options or [(name, old, new)]:
            found[called] = f"{called}: {was!r:.200} -> {now!r:.200}"
    decisive = [found[name] for name in ("recipe.name", "data") if name in found]
    return decisive or list(found.values())


def first_round(config: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a configuration that decides the network of its first round.

    With no past members the ensemble is the learner: an attack on both is one on the learner.
    """
    recipe = {key: value for key, value in config["recipe"].items() if key not in _LATER_PARTS}
    sampler = recipe["sampler"]
    if sampler["part"] in ("Learner", "All") and sampler.get("aggressive", True):
        recipe["sampler"] = {"part": "Learner", "loss": sampler["loss"]}
    run = {key: value for key, value in config.items() if key not in _LATER_ROUNDS}
    if "weights" in config.get("first", {}):  # which it starts from
        run["first"] = config["first"]
    return run | {"recipe": recipe}


def _leaves(
    one: Mapping[str, Any], other: Mapping[str, Any], above: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Any, Any]]:
    """The places where two trees of dictionaries differ, with both values."""
    for key in sorted(one.keys() | other.keys()):
        old, new = one.get(key), other.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            yield from _leaves(old, new, (*above, key))
        elif old != new:
            yield (*above, key), old, new
