"""Train and evaluate what the run folders of a study do not hold yet."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from mrboost import data as datasets
from mrboost.attacks import PGD, Attack, named
from mrboost.attacks.adaptive import attacks_on
from mrboost.data import Dataset
from mrboost.devices import device_name, make_fabric, under_torchrun
from mrboost.ensemble import Ensemble, Mixture
from mrboost.errors import InputError
from mrboost.evaluation import EvaluationOptions
from mrboost.progress import note
from mrboost.recipes.config import describe, resolve
from mrboost.runs import Run
from mrboost.runs.evaluate_run import Request, clear, evaluate_run, place_of
from mrboost.runs.identity import first_round
from mrboost.training.boost import boost

from .plan import MIXTURE_STEPS, Training


def carry_out(
    trainings: Sequence[Training],
    *,
    device: str = "auto",
    data_dir: str | Path | None = None,
    verify: bool = True,
    progress: bool = False,
) -> None:
    """Train and evaluate what is not finished yet.

    Args:
        trainings: those of a ``Request``, or some of them.
        device, data_dir, verify: as on the command line.
        progress: whether to say on standard error how far it is.
    """
    if under_torchrun():
        raise InputError("split a study with --part 1/4 and so on, not with torchrun")
    waiting = [training for training in trainings if training.state() != "finished"]
    # Missing data and options that a row cannot take are found before any training
    names = {training.data for training in waiting}
    data = {name: datasets.load(name, data_dir, verify=verify) for name in names}
    for training in waiting:
        resolve(training.recipe, data[training.data], **training.options)
    where: dict[str, Any] = {"device": device, "data_dir": data_dir, "progress": progress}
    for training in waiting:
        if progress:
            number = trainings.index(training) + 1
            note(f"{training.request.study.name}: {number} of {len(trainings)}, {training}")
        _carry_out(training, data[training.data], where)


def _carry_out(training: Training, dataset: Dataset, where: dict[str, Any]) -> None:
    """One training, and its evaluations."""
    if training.trained_run() is None:
        first = find_first_round(training, dataset)
        options = {**where, **training.options}
        boost(training.recipe, dataset, out=training.folder, resume=True, first=first, **options)
    run = Run.open(training.folder)
    device, progress = where["device"], where["progress"]
    here = {device_name(make_fabric(device).device)}
    with run.changing_results() as results:
        results["hardware"] = sorted(here.union(results.get("hardware", [])))
    for stage in training.pending(run):
        saved = place_of(run, *stage)
        n = stage.n and min(stage.n, len(dataset.test))
        check = training.request.scale.check and stage.members == training.options["rounds"]
        evaluate_run(
            run,
            partial(attacks_of, run, stage.attacks.values()),
            Request(stage.weights, stage.members, n),
            EvaluationOptions(keep=saved, resume=True, check=check, progress=progress),
            dataset=dataset,
            device=device,
        )
        clear(saved)


def find_first_round(training: Training, dataset: Dataset) -> Path | None:
    """A finished run of the same study whose first round is that of this training, or None.

    In its first round a boosted row trains one network, as the row of that network alone does.
    """
    if training.options["rounds"] < 2 or training.folder.exists():
        return None
    wanted = first_round(describe(resolve(training.recipe, dataset, **training.options), dataset))
    for path in sorted(training.folder.parent.glob("*/members/01.safetensors")):
        run = Run.open(path.parents[1])
        if first_round(run.config) == wanted:
            return run.folder
    return None


def attacks_of(run: Run, names: Iterable[str], model: Ensemble | Mixture) -> dict[str, Attack]:
    """The attacks by their names in the results. PGD has the data's usual step: in the paper 1/255
    on SVHN, 2/255 elsewhere."""
    eps, norm, step = run.config["eps"], run.config["norm"], run.config["judge_step"]
    known: dict[str, Attack] = {}
    if isinstance(model, Mixture):
        found = attacks_on(model, PGD(eps, norm, steps=MIXTURE_STEPS, step_size=step))
        known = {f"{name}, pgd-{MIXTURE_STEPS}": attack for name, attack in found.items()}
    return {name: known.get(name) or named(name, eps, norm, step) for name in names}
