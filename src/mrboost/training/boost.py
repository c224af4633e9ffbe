"""The rounds: initialise a learner, fit it, freeze it, append it. One round is plain training.

The first round may come from elsewhere: it is the first network of another run, which the run
adopts, or it starts from given weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import torch
from torch import nn

from mrboost import data as datasets
from mrboost import models
from mrboost.data import Dataset, Source, Split, validation_split
from mrboost.devices import GO_ON, end_processes, lost_processes, make_fabric, move_model
from mrboost.ensemble import Ensemble, Mixture
from mrboost.errors import InputError
from mrboost.evaluation.batches import scores
from mrboost.files import checksum
from mrboost.models.source import fill, read_weights
from mrboost.options import TrainingOptions
from mrboost.progress import note
from mrboost.recipes import Recipe, get
from mrboost.recipes.config import Config, describe, resolve
from mrboost.runs import Run
from mrboost.runs.identity import FIRST_ROUND, differences
from mrboost.seeds import derive, global_stream

from .fit import VALIDATION_STEPS, Observer, Tell, fit, teller
from .step import check_parts

if TYPE_CHECKING:
    from lightning_fabric import Fabric

_LOST = f"the run is kept up to its last whole epoch; {GO_ON}"


def boost(
    recipe: Recipe | str,
    data: Dataset | str | Source | tuple[Source, Source] = "digits",
    *,
    out: str | Path | None = None,
    resume: bool = False,
    first: str | Path | None = None,
    device: str = "auto",
    data_dir: str | Path | None = None,
    verify: bool = True,
    progress: bool = False,
    on_epoch: Observer | None = None,
    on_round: Observer | None = None,
    **options: Unpack[TrainingOptions],
) -> Ensemble | Mixture:
    """Train a recipe and return the ensemble of its rounds, ready for use.

    Args:
        recipe: a ``Recipe`` or the name of one (``mrboost.recipes.RECIPES``).
        data: a ``Dataset``, a name (``mrboost.data.names()``, ``folder:PATH``), or a ``DataLoader``
            or dataset of torch's, or a pair of them to train and to test on, which are read once.
        out: a folder to keep the run in; without it nothing is written.
        resume: go on with the run in ``out`` if there is one.
        first: with several rounds a trained run on the same data, whose first network is the first
            round; otherwise weights to start from: those of a run's first network, or a file.
        device: ``auto``, ``cpu``, ``cuda``, ``cuda:1`` or ``mps``.
        data_dir: where the data's files lie.
        verify: refuse an official archive whose checksum is not the official one.
        progress: show progress on standard error.
        on_epoch: called after each epoch with a copy of its line of metrics.jsonl, which has round,
            epoch, loss, clean, robust, seconds and more, and with ``best_epoch``, ``epochs`` and
            ``rounds``, when all is saved, in the first of several processes. It cannot change the
            training: what it raises becomes a warning. ``mrboost.loggers`` has two.
        on_round: likewise after each round: ``round``, ``epoch`` (chosen), ``robust`` and more.
        options: those of ``mrboost.options.OPTIONS``; what is left out comes from data and recipe.
    """
    recipe = get(recipe) if isinstance(recipe, str) else recipe
    dataset = _dataset(data, data_dir, verify, progress)
    config = resolve(recipe, dataset, **options)
    fabric = make_fabric(device, config.precision, together=True)
    check_parts(config, _new_learner(config, dataset, 1), dataset, fabric.world_size)
    description = describe(config, dataset, data_dir)
    first_process = fabric.is_global_zero
    if first is not None:
        origin = _describe_first(first, description, rounds=config.rounds, out=out)
        _start_from(origin, _new_learner(config, dataset, 1), config.model, first_process)
        description["first"] = origin
    with _run_folder(out, description, resume, fabric) as run, lost_processes(_LOST):
        origin = (description if run is None else run.config).get("first", {})
        if run is not None:
            _adopt(run, origin)
            fabric.barrier()
        watched = (on_epoch, on_round) if first_process else (None, None)
        told = teller("on_epoch", watched[0]), teller("on_round", watched[1])
        members = _rounds(config, dataset, fabric, run, origin, progress and first_process, told)
        if fabric.world_size > 1:
            end_processes()
    weights = run.load_weights("best", len(members)) if run is not None else None
    trained = recipe.combine(members, weights, eps=config.eps, norm=config.norm)
    return trained.requires_grad_(False).eval().to(fabric.device)


def _dataset(
    data: Dataset | str | Source | tuple[Source, Source],
    data_dir: str | Path | None,
    verify: bool,
    progress: bool,
) -> Dataset:
    """Data in whatever form they come."""
    if isinstance(data, Dataset):
        return data
    if isinstance(data, str):
        return datasets.load(data, data_dir, verify=verify)
    pair = data if isinstance(data, tuple) else (data,)
    return datasets.from_loader(*pair, progress=progress)


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


def _rounds(
    config: Config,
    dataset: Dataset,
    fabric: Fabric,
    run: Run | None,
    first: dict[str, str],
    progress: bool,
    told: tuple[Tell, Tell],
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
    on_epoch, on_round = told
    for round_ in range(len(past) + 1, config.rounds + 1):
        learner = _new_learner(config, dataset, round_)
        config.recipe.init(learner, past)
        if round_ == 1 and not (run and run.load_checkpoint()):
            _start_from(first, learner, config.model)
        fitted = fit(
            learner,
            past,
            train,
            held_out,
            config.of_round(round_),
            fabric=fabric,
            round_=round_,
            run=run,
            progress=progress,
            tell=on_epoch,
        )
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
        place = {"round": round_, "rounds": config.rounds, "epoch": fitted.best_epoch}
        on_round({**place, "epochs": fitted.epochs, "robust": fitted.robust})
    return past[:-1] + newest


def _score_rounds(
    config: Config, run: Run, held_out: Split, device: torch.device, progress: bool
) -> None:
    """Score the classifier after each finished round that has no score yet, on the held-out
    images; one row a round."""
    if not run.writes:
        return
    rows = {row["round"]: row for row in run.results.get("rounds", [])}
    judge = config.judge(VALIDATION_STEPS)
    for count in range(1, run.rounds_done() + 1):
        if count in rows:
            continue
        model = move_model(run.classifier("best", count), device)
        row: dict[str, Any] = {"round": count, "n": len(held_out), "on": config.select_on}
        with global_stream(derive(config.seed, "score", count), device):
            for name, attack in (("clean", None), (judge.name, judge)):
                correct, margins = scores(model, held_out, attack)
                row[name] = {
                    "accuracy": correct.mean().item(),
                    "margin": margins.mean().item(),
                    "min_margin": margins.min().item(),
                }
        rows[count] = row
        with run.changing_results() as results:
            results["rounds"] = [rows[key] for key in sorted(rows)]
        if progress and config.rounds > 1:
            robust = row[judge.name]
            note(
                f"ensemble of {count}: clean {row['clean']['accuracy']:.1%}  {judge.name} "
                f"{robust['accuracy']:.1%}  margin {robust['margin']:.2f} "
                f"(least {robust['min_margin']:.2f})"
            )


def _new_learner(config: Config, dataset: Dataset, round_: int) -> nn.Module:
    mean, std = dataset.channel_stats()
    with global_stream(derive(config.seed, "initialise", round_), torch.device("cpu")):
        return models.build(config.model, dataset.shape, dataset.num_classes, mean=mean, std=std)


def _describe_first(
    first: str | Path, description: dict[str, Any], *, rounds: int, out: str | Path | None
) -> dict[str, str]:
    """The configuration's entry: a run or a file of weights, and the checksum of the weights.

    Args:
        first: a run folder or a file of weights. With several rounds, a run's first network is the
            first round; otherwise it gives the weights to start from.
        description: the configuration of the training, which a run has to agree with.
        rounds: those of the training.
        out: its folder.
    """
    path = Path(first)
    if path.is_file() or rounds == 1:
        if not path.is_file():
            (path,) = Run.open(first).member_files(1, "best")
        return {"weights": str(path.absolute()), "of": checksum(read_weights(path))}
    if out is None:
        raise InputError("first is copied into the run folder: give out as well")
    source = Run.open(first)
    name = str(source.folder)
    if source.rounds_done() < 1:
        raise InputError(f"{name!r} has no finished round: go on with mrboost train --resume")
    if changed := differences(source.config, description, only=FIRST_ROUND):
        raise InputError(f"{name!r} cannot be first ({'; '.join(changed)}): give the same")
    return {"run": str(source.folder.absolute()), "of": source.fingerprint("last", 1)}


def _adopt(run: Run, first: dict[str, str]) -> None:
    """Another run's first round as the first of this one, which has none yet."""
    if "run" not in first or not run.writes or run.rounds_done() > 0:
        return
    source = Run.open(first["run"])
    if source.fingerprint("last", 1) != first["of"]:
        raise InputError(f"the first round in {first['run']!r} has changed: start a new run")
    run.rewind_metrics(0, 0)
    run.adopt(source, 1, of=1)


def _start_from(first: dict[str, str], learner: nn.Module, model: str, tell: bool = False) -> None:
    """Give a learner the weights that the first round starts from, if it starts from any. Those of
    a run's network bring their normalisation; a last layer for other classes is left out."""
    if "weights" not in first:
        return
    path = first["weights"]
    state = read_weights(path)
    if checksum(state) != first["of"]:
        raise InputError(f"the weights in {path} have changed: start a new run")
    mine = learner.state_dict()
    bare = "0.mean" in mine and "0.mean" not in state
    network = learner[1] if bare and isinstance(learner, nn.Sequential) else learner
    left = fill(network, state, f"{path} does not fit model {model!r}", new_head=True)
    if left and tell:
        note(f"note: {', '.join(left)} of {path} are for other classes, and start anew")
