"""The card of an exported model: what it takes and answers, how robust it was found to be, how it
was trained, and how to load it. Its words stand in the template ``model_card.md``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mrboost import __version__
from mrboost.data.folder import FOLDER
from mrboost.evaluation.result import format_eps, worst_of
from mrboost.plots.html import render

from .folder import OneNetwork, Run

_TO_STATE = "to be stated by whoever publishes this file"
# What the configuration of a training says, and what the card calls it
_TRAINING = {
    "model": "network",
    "epochs": "epochs of each round",
    "later_epochs": "epochs of later rounds",
    "batch_size": "images in a batch",
    "lr": "learning rate",
    "seed": "seed",
    "train_images": "training images",
    "validation": "held-out images, on which epochs were chosen",
}


def class_names(config: Mapping[str, Any]) -> list[str]:
    """The names of a run's classes, in the order of its logits; numbers where they have none."""
    of_input = config["input"]
    return of_input.get("names") or [str(number) for number in range(of_input["classes"])]


def licence_in(card: Path) -> str:
    """The licence that somebody wrote into an earlier card, which a new one keeps."""
    text = card.read_text("utf-8", "replace") if card.is_file() else ""
    found = re.search(r"^Licence: *(.+)$", text, re.MULTILINE)
    return found[1] if found else _TO_STATE


def model_card(run: Run, file: str, which: str, members: int, *, licence: str = _TO_STATE) -> str:
    """The page about one classifier of a run.

    Args:
        run: its configuration and results.
        file: the name of the exported file.
        which: "best" or "last" weights; "given" of a model that was not trained here.
        members: of how many networks the classifier consists.
        licence: its line.
    """
    given = "given" in run.config
    return render(
        Path(__file__).with_suffix(".md"),
        file=file,
        config=run.config,
        data=_data(run.config),
        members=members,
        names=class_names(run.config),
        evaluations=[
            {"failed": (), "doubts": (), "checked": False, "whole": False, **one}
            | {"figures": _figures(one)}
            for one in run.evaluations()
            if (one["weights"], one["members"]) == (which, members)
        ],
        given=given,
        training={} if given else _training(run, which, members),
        licence=licence,
        version=__version__,
        format_eps=format_eps,
    )


def _data(config: Mapping[str, Any]) -> str:
    """The name of the data; of the user's own folder not where it lies."""
    name: str = config["data"]
    return f"{FOLDER}{Path(name).name}" if name.startswith(FOLDER) else name


def _figures(evaluation: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """The outcome of each attack, and the worst case over several."""
    rows = [(outcome["attack"], outcome) for outcome in evaluation["outcomes"]]
    worst = worst_of(evaluation) if len(rows) > 2 else None
    return rows if worst is None else [*rows, ("**worst case**", worst)]


def _training(run: Run, which: str, members: int) -> dict[str, Any]:
    """How the classifier was trained, by what the card calls each fact."""
    config = run.config
    recipe, versions = config["recipe"], config.get("versions", {})
    rounds, classifier = config["rounds"], f"{which} weights after {members}"
    if isinstance(run, OneNetwork):
        classifier = f"{run.folder.name} alone,"
    learned = run.load_weights(which, run.rounds_done()) if members == run.rounds_done() else None
    start = Path(config.get("first", {}).get("weights", "")).name
    facts = {
        "method": f"{recipe['name']}: {recipe['summary']}",
        "reference": recipe.get("reference") or None,
        "data": _data(config),
        "trained to withstand": f"{config['norm']} eps = {format_eps(config['eps'])}",
        **{called: config.get(key) for key, called in _TRAINING.items()},
        "started from": start or None,
        "classifier": f"{classifier} of {rounds} rounds",
        "weights of the networks": ", ".join(f"{one:.3f}" for one in learned or ()) or None,
        "versions": ", ".join(f"{name} {number}" for name, number in versions.items()),
    }
    return {called: value for called, value in facts.items() if value is not None}
