"""The rounds: initialise a learner, fit it, freeze it, append it. One round is plain training."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import torch
from torch import Tensor, nn

from mrboost import data as datasets
from mrboost import models
from mrboost.attacks import attacked
from mrboost.data import Dataset, Split, validation_split
from mrboost.devices import end_processes, lost_processes, make_fabric, move_model
from mrboost.ensemble import Ensemble, Mixture
from mrboost.errors import InputError
from mrboost.evaluation import evaluate
from mrboost.options import TrainingOptions
from mrboost.progress import note
from mrboost.recipes import Recipe, get
from mrboost.recipes.config import Config, describe, resolve
from mrboost.runs import Run
from mrboost.runs.identity import FIRST_ROUND, differences
from mrboost.seeds import derive, global_stream

from .fit import VALIDATION_STEPS, fit

if TYPE_CHECKING:
    from lightning_fabric import Fabric


def boost(
    recipe: Recipe | str,
    data: Dataset | str = "digits",
    *,
    out: str | Path | None = None,
    resume: bool = False,
    first: str | Path | None = None,
    device: str = "auto",
    data_dir: str | Path | None = None,
    verify: bool = True,
    progress: bool = False,
    **options: Unpack[TrainingOptions],
) -> Ensemble | Mixture:
    """Train a recipe and return the ensemble of its rounds, ready for use.

    Args:
        recipe: a ``Recipe`` or the name of one (``mrboost.recipes.RECIPES``).
        data: a ``Dataset`` or the name of one (``mrboost.data.names()``, or ``folder:PATH``).
        out: a folder to keep the run in, crash-safe; without it nothing is written.
        resume: go on with the run in ``out`` if there is one.
        first: a trained run on the same data, whose first network is the first round of this one.
        device: ``auto``, ``cpu``, ``cuda``, ``cuda:1`` or ``mps``.
        data_dir: where the data's files lie.
        verify: refuse an official archive whose checksum is not the official one.
        progress: show progress on standard error.
        options: those of ``mrboost.options.OPTIONS``; what is left out comes from data and recipe.
    """
    recipe = get(recipe) if isinstance(recipe, str) else recipe
    dataset = datasets.load(data, data_dir, verify=verify) if isinstance(data, str) else data
    config = resolve(recipe, dataset, **options)
    fabric = make_fabric(device, config.precision, together=True)
    if config.batch_size < 2 * fabric.world_size:
        raise InputError(f"batch_size {config.batch_size} is less than 2 images for each process")
    _check_model(_new_learner(config, dataset, 1), config.model, dataset)
    description = describe(config, dataset)
    if data_dir is not None:
        description["data_dir"] = str(Path(data_dir).absolute())
    if first is not None:
        if out is None:
            raise InputError("first is copied into the run folder: give out as well")
        description["first"] = _described(Run.open(first), description)
    lost = "the run is kept up to its last whole epoch; start the same command again with --resume"
    with _run_folder(out, description, resume, fabric) as run, lost_processes(fabric, lost):
        if run is not None and "first" in run.config:
            if run.writes and run.rounds_done() == 0:
                _adopt(run, run.config["first"])
            fabric.barrier()
        members = _rounds(config, dataset, fabric, run, progress and fabric.is_global_zero)
        if fabric.world_size > 1:
            end_processes()
    weights = run.load_weights("best", len(members)) if run is not None else None
    return recipe.combine(members, weights).requires_grad_(False).eval().to(fabric.device)


@contextmanager
def _run_folder(
    out: str | Path | None, description: dict[str, Any], resume: bool, fabric: Fabric
) -> Iterator[Run | None]:
    """The run folder, if there is to be one: made or found, and locked, by the first process, which
    tells the others if it cannot be."""
    if out is None:
        yield None
        return
    with ExitStack() as stack:
        run = None
        problem = ""
        if fabric.is_global_zero:
            try:
                run = stack.enter_context(Run.training(out, description, resume=resume))
            except InputError as error:
                problem = str(error)
            except OSError as error:
                problem = f"cannot write the run folder {str(out)!r}: {error}: choose another --out"
        if problem := fabric.broadcast(problem):
            raise InputError(problem)
        yield run or Run.open(out, writes=False)


def _described(source: Run, description: dict[str, Any]) -> dict[str, str]:
    """A run that is to be the first round: where it is and its weights; refused
    where it does not fit."""
    name = str(source.folder)
    if description["rounds"] < 2:
        raise InputError("first is the first of several rounds: give rounds of 2 or more")
    if source.rounds_done() < 1:
        raise InputError(f"{name!r} has no finished round: go on with mrboost train --resume")
    if changed := differences(source.config, description, only=FIRST_ROUND):
        raise InputError(f"{name!r} cannot be first ({'; '.join(changed)}): give the same")
    return {"run": str(source.folder.absolute()), "of": source.fingerprint("last", 1)}


def _adopt(run: Run, first: dict[str, str]) -> None:
    """Another run's first round as the first of this one."""
    source = Run.open(first["run"])
    if source.fingerprint("last", 1) != first["of"]:
        raise InputError(f"the first round in {first['run']!r} has changed: start a new run")
    run.rewind_metrics(0, 0)
    run.adopt(source, 1, of=1)


def _rounds(
    config: Config, dataset: Dataset, fabric: Fabric, run: Run | None, progress: bool
) -> list[nn.Module]:
    """The members of the classifier after all rounds: past ones as later rounds met them, the
    newest one's best epoch.

    Past members are what Algorithm 2 has: the weights after the last step of their round, unless
    ``config.past`` says otherwise. Where rounds do not depend on each other, each member is its own
    best.
    """
    train, held_out = dataset.train, dataset.test
    if config.select_on == "validation":
        train, held_out = validation_split(dataset.train, config.validation)
    kept = config.past or "best"
    past = list[nn.Module]()
    newest = list[nn.Module]()
    if run is not None and (done := run.rounds_done()) > 0:
        past = [move_model(member, fabric.device) for member in run.members(done, kept)]
        newest = [move_model(run.members(done, "best")[-1], fabric.device)]
        _score_rounds(config, run, held_out, fabric.device, progress)
    common: dict[str, Any] = {"fabric": fabric, "run": run, "progress": progress}
    for round_ in range(len(past) + 1, config.rounds + 1):
        learner = _new_learner(config, dataset, round_)
        config.recipe.init(learner, past)
        of_round = config.of_round(round_)
        fitted = fit(learner, past, train, held_out, of_round, round_=round_, **common)
        learner.requires_grad_(False).eval()
        newest = [deepcopy(learner)]
        newest[0].load_state_dict(fitted.best)
        learner.load_state_dict(fitted.best if kept == "best" else fitted.last)
        past.append(learner)
        if run is not None:
            epochs = {"best": fitted.best_epoch, "last": fitted.epochs}
            run.save_member(round_, fitted.best, fitted.last, epochs)
            run.clear_checkpoint()
            fabric.barrier()
            _score_rounds(config, run, held_out, fabric.device, progress)
    return past[:-1] + newest


def _score_rounds(
    config: Config, run: Run, held_out: Split, device: torch.device, progress: bool
) -> None:
    """Score the classifier after each finished round that has no score yet, on the held-out
    images; one row a round."""
    if not run.writes:
        return
    rows = {row["round"]: row for row in run.results.get("rounds", [])}
    for count in range(1, run.rounds_done() + 1):
        if count in rows:
            continue
        attack = {f"pgd-{VALIDATION_STEPS}": config.judge(VALIDATION_STEPS)}
        model = move_model(run.classifier("best", count), device)
        scores = evaluate(model, held_out, None, attack, check=False)
        rows[count] = {"round": count, "n": scores.n, "on": config.select_on} | {
            o.attack: {"accuracy": o.accuracy, "margin": o.margin, "min_margin": o.min_margin}
            for o in scores.outcomes
        }
        run.save_results(lambda results: results | {"rounds": [rows[key] for key in sorted(rows)]})
        if progress and config.rounds > 1:
            clean, robust = scores.outcomes
            note(
                f"ensemble of {count}: {config.select_on} clean {clean.accuracy:.2%}  "
                f"{robust.attack} {robust.accuracy:.2%}  margin under attack {robust.margin:.2f} "
                f"(least {robust.min_margin:.2f})"
            )


def _new_learner(config: Config, dataset: Dataset, round_: int) -> nn.Module:
    mean, std = dataset.channel_stats()
    with global_stream(derive(config.seed, "initialise", round_), torch.device("cpu")):
        return models.build(config.model, dataset.shape, dataset.num_classes, mean=mean, std=std)


def _check_model(learner: nn.Module, name: str, dataset: Dataset) -> None:
    """Refuse a model that does not give one logit per class, or spoils its images, before an
    epoch is spent on it."""
    images = dataset.train[:2].images().cpu()
    given = images.clone()
    with attacked(learner), torch.no_grad():
        logits = learner(given)
    shape = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
    if shape != (2, dataset.num_classes):
        raise InputError(
            f"model {name!r} must return logits of shape (2, {dataset.num_classes}) for 2 images "
            f"of {dataset.name}, it gave {shape}: check the function that was registered"
        )
    if not torch.equal(given, images):
        raise InputError(f"model {name!r} changes its images: compute x - mean, not x.sub_(mean)")
