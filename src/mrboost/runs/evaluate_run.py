"""The evaluation of a run: which data, which weights, which attacks."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mrboost import data as datasets
from mrboost.attacks import PGD, Attack
from mrboost.attacks.adaptive import adaptive
from mrboost.data import Dataset, Split, drawn, validation_split
from mrboost.data.folder import FOLDER, Pictures
from mrboost.devices import lost_processes, make_fabric
from mrboost.ensemble import Ensemble, Mixture
from mrboost.errors import InputError
from mrboost.evaluation import EvaluationOptions, measure, resolve_attacks
from mrboost.evaluation.result import Evaluation, UnfinishedError
from mrboost.files import digest
from mrboost.threat import ball

from .folder import Run
from .results import save_evaluation
from .reweight import learn_weights

# Makes attacks, by label, for the model that they are to attack
Fitting = Callable[[Ensemble | Mixture], Mapping[str, Attack]]


@dataclass(frozen=True)
class Request:
    """Which classifier of a run is evaluated, on what.

    Attributes:
        which: "best" or "last" weights; "given" of a model that was not trained here.
        rounds: the ensemble as it was after that many of them; all if not given.
        n: how many test images, drawn class by class; all if not given.
        eps, norm: the ball; that of the training if not given.
        adaptive: whether the attacks that fit the model are added.
    """

    which: str = "best"
    rounds: int | None = None
    n: int | None = None
    eps: float | None = None
    norm: str | None = None
    adaptive: bool = False


def load_data(
    run: Run,
    data_dir: str | Path | None = None,
    *,
    verify: bool = True,
    dataset: Dataset | None = None,
) -> Dataset:
    """The data that a run was trained on, or ``dataset``, if it has the same training images."""
    if dataset is None:
        place = data_dir or run.config.get("data_dir")
        dataset = datasets.load(_name_of_data(run, data_dir), place, verify=verify)
    if dataset.fingerprint() != run.config["input"]["fingerprint"]:
        raise InputError(
            f"the training images of {dataset.name} are not those that the run in "
            f"{str(run.folder)!r} was trained on: check --data-dir, or use mrboost.evaluate"
        )
    return dataset


def _name_of_data(run: Run, data_dir: str | Path | None) -> str:
    """The name to load a run's data by; a folder of images may have moved."""
    name: str = run.config["data"]
    if not name.startswith(FOLDER):
        if name not in datasets.names():
            raise InputError(
                f"the run has tensors {name!r}: use mrboost.evaluate(mrboost.load(run), x, y)"
            )
        return name
    pictures = Pictures.named(name)
    path = pictures.path
    if data_dir is not None:
        pictures = replace(pictures, path=Path(data_dir) / path.name)
    elif not path.exists():
        raise InputError(f"no {path}: --data-dir names the folder that holds {path.name} now")
    return str(pictures)


def draw(split: Split, n: int | None) -> Split:
    """``n`` images, each class of several in proportion to its size, the same ones each
    time; all without ``n``."""
    return split if n is None or n == len(split) else split[numbers(split, n)]


def numbers(split: Split, n: int) -> Tensor:
    """Which images ``draw`` takes, if not all."""
    if not 1 <= n < len(split):
        raise InputError(f"n must be 1 to {len(split)}, the number of test images, got {n}")
    return drawn(split, n, seed=0).nonzero().squeeze(1)


def load_model(
    run: Run, which: str, device: str | torch.device, rounds: int | None = None
) -> Ensemble | Mixture:
    """The classifier of a run on its device, as it was after so many rounds."""
    place = make_fabric(device, "32-true").device if isinstance(device, str) else device
    model = run.classifier(which, rounds)
    return model.to(place) if isinstance(model, nn.Module) else model


def ball_asked(run: Run, eps: float | None, norm: str | None) -> tuple[float, str, float | None]:
    """The ball that was asked for, or else that of the training, and the step of PGD in it."""
    norm = run.config["norm"] if norm is None else norm
    ball(norm, run.config["eps"])  # refuses an unknown norm
    if eps is None and norm != run.config["norm"]:
        raise InputError(f"the run's eps is for {run.config['norm']}: give --eps for norm {norm!r}")
    eps = run.config["eps"] if eps is None else eps
    # In proportion to eps, the step of the training's data: 1/255 for SVHN, say
    step_size = eps * (run.config["judge_step"] / run.config["eps"]) or None
    return eps, norm, step_size


def reweight_run(
    run_dir: str | Path,
    *,
    objective: str = "average",
    which: str = "best",
    device: str = "auto",
    data_dir: str | Path | None = None,
    verify: bool = True,
    progress: bool = False,
) -> list[float]:
    """Learn weights for a run's members on its held-out images, attacked, and keep them:
    ``load`` then uses them."""
    run = Run.open(run_dir)
    name, config = str(run.folder), run.config
    model = load_model(run, which, device)
    if not isinstance(model, Ensemble) or len(model) < 2:
        raise InputError(f"{name!r} is no ensemble of several networks: there is nothing to weigh")
    if config["select_on"] != "validation" or not config["validation"]:
        raise InputError(f"{name!r} has no images that all networks held out to learn from")
    dataset = load_data(run, data_dir, verify=verify)
    _, held_out = validation_split(dataset.train, config["validation"])
    place = model.weights.device
    attack = PGD(config["eps"], config["norm"], steps=20, step_size=config["judge_step"])
    x, y = held_out.images().to(place), held_out.y.to(place)
    # Not what was learned before, so that the same is learned again
    equal = Ensemble(model.members).to(place).eval()
    learned = learn_weights(equal, x, y, attack, objective=objective, progress=progress)
    weights: list[float] = learned.weights.tolist()
    how = f"{objective} margin on {len(held_out)} held-out images under {attack.name}"
    run.save_weights(which, weights, how)
    return weights


def evaluate_run(
    run: Run | str | Path,
    attack: Sequence[str] | Fitting,
    request: Request = Request(),  # noqa: B008 — a frozen value
    options: EvaluationOptions = EvaluationOptions(),  # noqa: B008
    *,
    dataset: Dataset | None = None,
    device: str = "auto",
    data_dir: str | Path | None = None,
    verify: bool = True,
) -> Evaluation:
    """Evaluate a run on its test images and add the outcomes to its ``results.json``.

    Of torchrun's processes each takes its share of the images, and the first writes. If an attack
    fails, the outcomes of the others are added before the error is raised.

    Args:
        run: it, or its folder.
        attack: names of attacks, or a function that makes them for the model.
        request: which classifier is evaluated, and on what.
        options: how it is done; ``place_of`` gives a folder for ``keep``.
        dataset: the run's own, if it is loaded already.
        device, data_dir, verify: as on the command line.

    Example:
        >>> evaluate_run("runs/a", ["autoattack"], Request(n=300))  # doctest: +SKIP
    """
    run = run if isinstance(run, Run) else Run.open(run)
    eps, norm, step_size = ball_asked(run, request.eps, request.norm)
    # A mistyped name is found before anything is loaded
    attacks = {} if callable(attack) else resolve_attacks(attack, eps, norm, step_size)
    with suppress(OSError):  # damaged results, to which nothing could be added, are refused now
        run.results.keys()
    fabric = make_fabric(device, "32-true", together=True)
    rank, world = fabric.global_rank, fabric.world_size
    if world > 1 and options.examples is not None:
        raise InputError("examples are written by one process: start this command without torchrun")
    model = load_model(run, request.which, fabric.device, request.rounds)
    dataset = load_data(run, data_dir, verify=verify, dataset=dataset)
    test = draw(dataset.test, request.n)
    if len(test) < world:
        raise InputError(f"{world} processes have only {len(test)} images to share: start fewer")
    if callable(attack):
        attacks = resolve_attacks(attack(model), eps, norm, step_size)
    if request.adaptive:
        attacks |= adaptive(model, eps, norm)
    members = len(model) if isinstance(model, Ensemble | Mixture) else 1
    own = _own_options(options, run, f"{request.which}-{members}", rank, world)
    measured = measure(model, test[rank::world], None, attacks, own, ball=(eps, norm))
    with lost_processes(fabric, "start the same command again with --resume"):
        measured = measured.of_all(fabric, len(test))
    found = measured.evaluation()
    if rank == 0 and found.outcomes:
        facts = _facts(run, request, members, dataset.test, test)
        found = save_evaluation(run, facts | {"checked": options.check}, found)
    if measured.problem:
        raise UnfinishedError(measured.problem, found)
    return found


def _facts(run: Run, request: Request, members: int, whole: Split, test: Split) -> dict[str, Any]:
    """Which classifier and which images were evaluated, as the results keep it."""
    everything = len(test) == len(whole)
    return {
        "weights": request.which,
        "members": members,
        "of": run.fingerprint(request.which, members),
        "whole": everything,
        "images": digest(test.x, test.y),
        "points": None if everything else numbers(whole, len(test)).tolist(),
    }


def _own_options(
    options: EvaluationOptions, run: Run, part: str, rank: int, world: int
) -> EvaluationOptions:
    """Those of this process: a folder of its own for what is finished, and only the first
    process shows progress and looks for doubts."""
    progress, check = options.progress and rank == 0, options.check and rank == 0
    if options.keep is None or not os.access(run.folder, os.W_OK):
        return replace(options, keep=None, resume=False, progress=progress, check=check)
    keep = options.keep / (f"{part}-{rank}-{world}" if world > 1 else part)
    return replace(options, keep=keep, progress=progress, check=check)


def place_of(run: Run, *request: object) -> Path:
    """Where a command keeps what it has finished until it is done: each request has
    a folder of its own."""
    return run.folder / "checkpoint" / "evaluation" / digest(*request)


def clear(place: Path) -> None:
    shutil.rmtree(place, ignore_errors=True)
    with suppress(OSError):  # others are in it
        place.parent.rmdir()
