"""A run's classifier as one file for other programs: ONNX, or the ``.pt2`` of ``torch.export``.

Members, weights and normalisation are inside: images in [0, 1] go in, logits come out, in batches
of any size. The file is written beside its place, read again by the program that it is for, and
compared with the classifier itself on test images; only then it is moved into its place, with its
card beside it: what it takes and answers, how robust it was found to be, how it was trained, and
how to load it (``export.md``).
"""

from __future__ import annotations

import json
import logging
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from dataclasses import asdict, dataclass
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mrboost import __version__
from mrboost.data.folder import FOLDER
from mrboost.ensemble import Ensemble, Mixture
from mrboost.errors import InputError, look_up, reason
from mrboost.evaluation.result import format_eps, worst_of
from mrboost.files import replacing
from mrboost.plots.html import render
from mrboost.progress import Meter

from .evaluate_run import load_data
from .folder import GivenModel, OneNetwork, Run, open_classifier

BATCHES = (1, 3, 16)
"""Sizes of the batches that are compared."""
TOLERANCE = 1e-4
"""How far logits may be apart, as a share of the largest one."""
Answer = Callable[[Tensor], Tensor]
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


@dataclass(frozen=True)
class Exported:
    """A file that answers as the classifier does.

    Attributes:
        path: the file.
        card: the page that describes it.
        difference: the largest one between its logits and the classifier's, as a share of the
            largest logit.
        images: what they were compared on.
    """

    path: str
    card: str
    difference: float
    images: str

    def __str__(self) -> str:
        return (
            f"exported {self.path}: its logits are the classifier's up to {self.difference:.1e} of "
            f"the largest one ({TOLERANCE:.0e} is allowed), on {self.images} in batches of "
            f"{', '.join(map(str, BATCHES))}; described in {self.card}"
        )

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def export(
    run_dir: str | Path,
    to: str | Path,
    *,
    which: str = "best",
    rounds: int | None = None,
    data_dir: str | Path | None = None,
    verify: bool = True,
    progress: bool = False,
) -> Exported:
    """Write the classifier of a run as ONNX or as a program of ``torch.export``.

    Args:
        run_dir: the run's folder, or the file of one of its networks.
        to: ``model.onnx``, which needs the packages of ``pip install 'mrboost[onnx]'``, or
            ``model.pt2``. Beside it comes its card, ``model.onnx.md``.
        which: "best" or "last" weights.
        rounds: the ensemble as it was after so many of them; all if not given.
        data_dir, verify: where the run's data lie, of which test images are compared; without them
            noise is.
        progress: shown on standard error.

    Example:
        >>> print(export("runs/a", "a.onnx"))  # doctest: +SKIP
    """
    place = Path(to)
    save = look_up("kind of file", place.suffix, FORMATS, "export --to model.onnx or model.pt2")
    _check_packages(place.suffix)
    run = open_classifier(run_dir)
    if isinstance(run, GivenModel):
        which = "given"
    model = _network(run, which, rounds)
    images, described = _images(run, data_dir, verify=verify)
    card = place.with_name(f"{place.name}.md")
    members = len(model) if isinstance(model, Ensemble) else 1
    page = model_card(run, place.name, which, members, licence=licence_in(card))
    with Meter(progress, "export", unit=" steps") as meter:
        meter.begin(3)
        meter.doing("following the model")
        program = _traced(model, run, str(run_dir))
        meter(1)
        place.parent.mkdir(parents=True, exist_ok=True)
        with replacing(place) as file, replacing(card) as description:
            meter.doing(f"writing {place.name}")
            with _calm(f"{str(run_dir)!r} cannot be written as {place.suffix}"):
                answer = save(program, file, _facts(run))
            meter(1)
            meter.doing(f"checking {place.name}")
            difference = _checked(model, answer, images, place.name)
            meter(1)
            description.write_text(page, "utf-8")
    return Exported(str(place), str(card), difference, described)


def _network(run: Run, which: str, rounds: int | None) -> nn.Module:
    """The classifier, if it is a network that always answers alike."""
    model: Any = run.classifier(which, rounds)
    refuse_draws(run, model)
    if not isinstance(model, nn.Module):
        raise InputError(f"{run.config['model']} is a function of images: export an nn.Module")
    return model.eval()


def refuse_draws(run: Run, model: object) -> None:
    """Refuse a classifier that draws one of its networks at random for each image."""
    if isinstance(model, Mixture):
        one = run.folder / "members" / "01.safetensors"
        raise InputError(
            f"{str(run.folder)!r} answers by one of its {len(model)} networks, drawn at random for "
            f"each image: name one of them ({one}, say)"
        )


def _images(run: Run, data_dir: str | Path | None, *, verify: bool) -> tuple[Tensor, str]:
    """Images to compare answers on, as many as the largest batch has, and what they are."""
    count = max(BATCHES)
    try:
        test = load_data(run, data_dir, verify=verify).test
    except InputError as error:
        noise = torch.rand(
            count, *run.config["input"]["shape"], generator=torch.Generator().manual_seed(0)
        )
        return noise, f"{count} images of noise (the run's are not there: {error})"
    some = test[torch.arange(min(count, len(test)))].images()
    described = f"{len(some)} test images of {run.config['data']}"
    return some[torch.arange(count) % len(some)], described


def _facts(run: Run) -> dict[str, str]:
    """What the file says of itself, each value as JSON."""
    config = run.config
    ball = {"norm": config["norm"], "eps": config["eps"]}
    facts = {"classes": class_names(config), "shape": config["input"]["shape"], **ball}
    return {key: json.dumps(value) for key, value in (facts | {"mrboost": __version__}).items()}


def _traced(model: nn.Module, run: Run, name: str) -> torch.export.ExportedProgram:
    """What the model computes, for any number of images."""
    grey = torch.full((2, *run.config["input"]["shape"]), 0.5)  # not an image of anybody's
    count = torch.export.Dim("batch")
    remedy = "write its forward without branches on values or on the number of images"
    with _calm(f"torch.export cannot follow the model of {name!r}", remedy):
        return torch.export.export(model, (grey,), dynamic_shapes=({0: count},))


def _save_pt2(
    program: torch.export.ExportedProgram, path: Path, facts: Mapping[str, str]
) -> Answer:
    with path.open("wb") as file:  # by its name, torch would want another suffix
        torch.export.save(program, file, extra_files=dict(facts))
    with path.open("rb") as file:
        answer: Answer = torch.export.load(file).module()
    return answer


def _save_onnx(
    program: torch.export.ExportedProgram, path: Path, facts: Mapping[str, str]
) -> Answer:
    runtime = import_module("onnxruntime")
    write: Any = torch.onnx.export
    made = write(program, input_names=["images"], output_names=["logits"], verbose=False)
    made.model.metadata_props.update(facts)
    made.save(str(path))
    options = runtime.SessionOptions()
    options.log_severity_level = 3  # errors alone
    session = runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return lambda images: torch.from_numpy(session.run(["logits"], {"images": images.numpy()})[0])


FORMATS: Mapping[str, Callable[[torch.export.ExportedProgram, Path, Mapping[str, str]], Answer]]
FORMATS = {".onnx": _save_onnx, ".pt2": _save_pt2}
"""How each kind of file is written; the answer is what it says once it is read again."""


def _check_packages(kind: str) -> None:
    """Refuse a kind of file for which packages are missing."""
    for name in ("onnx", "onnxscript", "onnxruntime") if kind == ".onnx" else ():
        try:
            import_module(name)
        except ImportError as error:
            remedy = (
                "pip install 'mrboost[onnx]', or export to a .pt2, which needs no more than torch"
            )
            raise InputError(f"ONNX needs {name} ({reason(error)}): {remedy}") from None


@contextmanager
def _calm(problem: str, remedy: str = "export to another kind of file") -> Iterator[None]:
    """torch's exporter warns of its own insides and of packages that it does without; whatever it
    raises is said in one line."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)  # torch's loggers have levels of their own
    try:
        with warnings.catch_warnings(), redirect_stderr(StringIO()):  # where it prints graphs
            warnings.simplefilter("ignore")
            yield
    except (InputError, OSError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # it raises nearly anything
        raise InputError(f"{problem} ({reason(error)}): {remedy}") from error
    finally:
        logging.disable(before)


def _checked(model: nn.Module, answer: Answer, images: Tensor, name: str) -> float:
    """The largest difference between logits of the model and the file, as a share of the largest
    logit; refuses one that is no rounding."""
    with torch.no_grad():
        batches = [images[:size] for size in BATCHES]
        pairs = [(model(batch.clone()), answer(batch)) for batch in batches]
    mine, theirs = (torch.cat(logits).double() for logits in zip(*pairs, strict=True))
    difference = float((mine - theirs).abs().max() / mine.abs().max())
    if not difference <= TOLERANCE:  # NaN is refused too
        raise InputError(
            f"{name} would not answer as the model does: logits differ by {difference:.1e} of the "
            f"largest one, {TOLERANCE:.0e} is allowed: export to another kind of file "
            f"({', '.join(FORMATS)})"
        )
    return difference


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
