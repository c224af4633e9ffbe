"""The card of an exported model: what it takes and answers, how robust it was found to be, how it
was trained, and how to load it. A page of Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mrboost import __version__
from mrboost.data.folder import FOLDER
from mrboost.evaluation.result import format_eps, worst_of

from .folder import OneNetwork, Run

_LICENCE = "Licence:"
_TO_STATE = "to be stated by whoever publishes this file"
_MOST_CLASSES = 1000
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
_LOADING = {
    ".onnx": """\
import numpy as np
import onnxruntime

session = onnxruntime.InferenceSession("{file}")
images = np.random.rand(2, {shape}).astype(np.float32)  # yours, in [0, 1]
(logits,) = session.run(["logits"], {{"images": images}})
print(logits.argmax(axis=1))""",
    ".pt2": """\
import torch

model = torch.export.load("{file}").module()
images = torch.rand(2, {shape})  # yours, in [0, 1]
print(model(images).argmax(dim=1))""",
}


def class_names(config: Mapping[str, Any]) -> list[str]:
    """The names of a run's classes, in the order of its logits; numbers where they have none."""
    of_input = config["input"]
    return of_input.get("names") or [str(number) for number in range(of_input["classes"])]


def licence_in(card: Path) -> str:
    """The licence that somebody wrote into an earlier card, which a new one keeps."""
    text = card.read_text("utf-8", "replace") if card.is_file() else ""
    found = re.search(rf"^{_LICENCE} *(.+)$", text, re.MULTILINE)
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
    config = run.config
    parts = [
        f"# {file}",
        _what(config, members),
        "## What it takes and answers",
        *_interface(config),
        "## How to load it",
        f"```python\n{_snippet(file, config)}\n```",
        "## How robust it is",
        *_figures(run, which, members),
        "## How it was trained",
        *_training(run, which, members),
        "## Licence",
        f"{_LICENCE} {licence}",
        f"Written by mrboost {__version__}.",
    ]
    return "\n\n".join(parts) + "\n"


def _what(config: Mapping[str, Any], members: int) -> str:
    networks = f"the mean of the logits of {members} networks" if members > 1 else "one network"
    of = f"An image classifier of {config['input']['classes']} classes: {networks}"
    if "given" in config:
        return f"{of}."
    return (
        f"{of}, trained on {_data(config)} to answer alike wherever an image is changed by up to "
        f"{format_eps(config['eps'])} in {config['norm']}."
    )


def _data(config: Mapping[str, Any]) -> str:
    """The name of the data; of the user's own folder not where it lies."""
    name: str = config["data"]
    return f"{FOLDER}{Path(name).name}" if name.startswith(FOLDER) else name


def _interface(config: Mapping[str, Any]) -> Iterator[str]:
    channels, height, width = config["input"]["shape"]
    colours = {1: "grey", 3: "red, green and blue"}.get(channels, f"{channels} channels")
    yield (
        f"Images: float32, shape (N, {channels}, {height}, {width}), {colours}, values in [0, 1] "
        "(8-bit pixels divided by 255). Do not normalise them: that is inside. N is any number."
    )
    names = class_names(config)
    listed = ", ".join(f"{number} = {name}" for number, name in enumerate(names[:_MOST_CLASSES]))
    yield (
        f"Answers: logits, shape (N, {len(names)}); softmax makes probabilities of them. In order: "
        f"{listed}{', …' if len(names) > _MOST_CLASSES else ''}."
    )


def _snippet(file: str, config: Mapping[str, Any]) -> str:
    shape = ", ".join(map(str, config["input"]["shape"]))
    return _LOADING[Path(file).suffix].format(file=file, shape=shape)


def _figures(run: Run, which: str, members: int) -> Iterator[str]:
    """A table for each ball and sample of images that this classifier was evaluated on."""
    found = [
        evaluation
        for evaluation in run.results.get("evaluations", [])
        if (evaluation["weights"], evaluation["members"]) == (which, members)
        and run.is_of(evaluation)
    ]
    if not found:
        yield (
            "Not measured: `mrboost evaluate RUN --attack autoattack` does so, and the next export "
            "writes the figures here."
        )
    for evaluation in found:
        ball = "several balls"
        if evaluation["eps"] is not None:
            ball = f"{evaluation['norm']} eps = {format_eps(evaluation['eps'])}"
        of = "all" if evaluation.get("whole") else "a sample of"
        yield f"On {of} {evaluation['n']:,} test images of {_data(run.config)}, {ball}:"
        yield _table(["attack", "accuracy", "95 % interval"], list(_accuracies(evaluation)))
        yield from _reservations(evaluation)


def _accuracies(evaluation: Mapping[str, Any]) -> Iterator[list[str]]:
    rows = [(outcome["attack"], outcome) for outcome in evaluation["outcomes"]]
    worst = worst_of(evaluation)
    if len(rows) > 2 and worst is not None:
        rows.append(("**worst case**", worst))
    for name, one in rows:
        low, high = one["interval"]
        yield [name, f"{one['accuracy']:.2%}", f"{low:.1%} – {high:.1%}"]


def _reservations(evaluation: Mapping[str, Any]) -> Iterator[str]:
    if evaluation.get("failed"):
        yield f"Failed: {', '.join(evaluation['failed'])}. So there is no worst case."
    doubts = [f"- {doubt['message']}" for doubt in evaluation.get("doubts", [])]
    if doubts:
        yield "\n".join(["Reasons to doubt these figures:", "", *doubts])
    elif evaluation.get("checked"):
        yield "Reasons to doubt these figures were looked for, and none was found."
    else:
        yield "Reasons to doubt these figures were not looked for."


def _training(run: Run, which: str, members: int) -> Iterator[str]:
    config = run.config
    if "given" in config:
        yield "Elsewhere: mrboost has only evaluated it."
        return
    recipe = config["recipe"]
    rows = [["method", f"{recipe['name']}: {recipe['summary']}"]]
    rows += [["reference", recipe["reference"]]] if recipe.get("reference") else []
    rows += [["data", _data(config)]]
    rows += [["trained to withstand", f"{config['norm']} eps = {format_eps(config['eps'])}"]]
    rows += [
        [called, str(config[key])]
        for key, called in _TRAINING.items()
        if config.get(key) is not None
    ]
    if "weights" in config.get("first", {}):
        rows += [["started from", Path(config["first"]["weights"]).name]]
    classifier = f"{which} weights after {members} of {config['rounds']} rounds"
    if isinstance(run, OneNetwork):
        classifier = f"{run.folder.name} alone, of {config['rounds']} rounds"
    rows += [["classifier", classifier]]
    learned = run.load_weights(which, run.rounds_done())
    if learned and members == run.rounds_done():
        rows += [["weights of the networks", ", ".join(f"{weight:.3f}" for weight in learned)]]
    versions = config.get("versions", {})
    rows += [["versions", ", ".join(f"{name} {number}" for name, number in versions.items())]]
    yield _table(["", ""], rows)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
