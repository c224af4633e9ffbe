"""Rows that begin alike: in its first round a boosted row trains one network, as the row of
that network alone does."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mrboost.data import Dataset
from mrboost.recipes.config import describe, resolve
from mrboost.runs import Run

from .planning import Training

_LATER = {
    "format",
    "versions",
    "data_dir",
    "train_images",
    "first",
    "rounds",
    "later_epochs",
    "later_lr",
    "past",
}
_OF_ROUNDS = {
    "name",
    "summary",
    "formula",
    "reference",
    "rounds",
    "init",
    "scope",
    "combine",
    "model",
}


def find_first_round(training: Training, dataset: Dataset) -> Path | None:
    """A finished run of the same study folder whose first round is that of a
    training not begun, or None."""
    if training.options["rounds"] < 2 or training.folder.exists():
        return None
    wanted = _first_round(describe(resolve(training.recipe, dataset, **training.options), dataset))
    for path in sorted(training.folder.parent.glob("*/members/01.safetensors")):
        run = Run.open(path.parents[1])
        if _first_round(run.config) == wanted:
            return run.folder
    return None


def _first_round(config: Mapping[str, Any]) -> dict[str, Any]:
    """What decides the first network of a run; an attack on the ensemble so far is then one
    on the learner alone."""
    recipe = {key: value for key, value in config["recipe"].items() if key not in _OF_ROUNDS}
    if recipe["sampler"]["part"] in ("Learner", "All") and recipe["sampler"].get(
        "aggressive", True
    ):
        recipe["sampler"] = {"loss": recipe["sampler"]["loss"]}
    return {key: value for key, value in config.items() if key not in _LATER} | {"recipe": recipe}
