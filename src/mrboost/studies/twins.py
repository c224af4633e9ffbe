"""Rows that begin alike: in its first round a boosted row trains one network, as the row of
that network alone does."""

from __future__ import annotations

from pathlib import Path

from mrboost.data import Dataset
from mrboost.recipes.config import describe, resolve
from mrboost.runs import Run
from mrboost.runs.identity import first_round

from .planning import Training


def find_first_round(training: Training, dataset: Dataset) -> Path | None:
    """A finished run of the same study folder whose first round is that of a
    training not begun, or None."""
    if training.options["rounds"] < 2 or training.folder.exists():
        return None
    config = resolve(training.recipe, dataset, **training.options)
    wanted = first_round(describe(config, dataset))
    for path in sorted(training.folder.parent.glob("*/members/01.safetensors")):
        run = Run.open(path.parents[1])
        if first_round(run.config) == wanted:
            return run.folder
    return None
