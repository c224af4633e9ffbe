"""Train and evaluate what the run folders of a study do not hold yet."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from mrboost import data as datasets
from mrboost.attacks import PGD, Attack, named
from mrboost.attacks.adaptive import attacks_on
from mrboost.data import Dataset
from mrboost.devices import make_fabric, under_torchrun
from mrboost.ensemble import Ensemble, Mixture
from mrboost.errors import InputError
from mrboost.evaluation import EvaluationOptions, UnfinishedError
from mrboost.progress import note
from mrboost.recipes.config import describe, resolve
from mrboost.runs import Run
from mrboost.runs.evaluate_run import Request, clear, evaluate_run, place_of
from mrboost.runs.identity import first_round
from mrboost.training.boost import boost

from .plan import MIXTURE_STEPS, Stage, Training


def carry_out(
    trainings: Sequence[Training],
    *,
    device: str = "auto",
    data_dir: str | Path | None = None,
    verify: bool = True,
    progress: bool = False,
) -> None:
    """Train and evaluate what is not finished yet."""
    if under_torchrun():
        raise InputError(
            "a study is split over machines with --part 1/4 and so on, not with torchrun"
        )
    waiting = [training for training in trainings if not training.is_done()]
    # Missing data and options that a row cannot take are found before any training
    data = {
        name: datasets.load(name, data_dir, verify=verify) for name in {t.data for t in waiting}
    }
    for training in waiting:
        resolve(training.recipe, data[training.data], **training.options)
    hardware = device_name(device)
    where: dict[str, Any] = {"device": device, "data_dir": data_dir, "progress": progress}
    for number, training in enumerate(trainings, start=1):
        if training not in waiting:
            continue
        if progress:
            note(f"{training.request.study.name}: {number} of {len(trainings)}, {training}")
        dataset = data[training.data]
        if training.trained_run() is None:
            boost(
                training.recipe,
                dataset,
                out=training.folder,
                resume=True,
                first=find_first_round(training, dataset),
                **where,
                **training.options,
            )
        run = Run.open(training.folder)
        run.save_results(
            lambda results: results | {"hardware": sorted({*results.get("hardware", []), hardware})}
        )
        for stage in training.pending(run):
            _evaluate(training, run, stage, dataset, where)


def _evaluate(
    training: Training, run: Run, stage: Stage, dataset: Dataset, where: dict[str, Any]
) -> None:
    saved = place_of(run, *stage)
    n = None if stage.n is None else min(stage.n, len(dataset.test))
    try:
        evaluate_run(
            run.folder,
            partial(attacks_of, training, run, stage.attacks),
            Request(stage.weights, stage.members, n),
            EvaluationOptions(
                keep=saved,
                resume=True,
                check=training.request.scale.check and stage.members == training.options["rounds"],
                progress=where["progress"],
            ),
            dataset=dataset,
            device=where["device"],
            data_dir=where["data_dir"],
        )
    except UnfinishedError as error:
        raise InputError(f"{run.folder}: {error}") from error
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


def attacks_of(
    training: Training, run: Run, names: Sequence[str], model: Ensemble | Mixture
) -> dict[str, Attack]:
    """The attacks by their names in the results. PGD has the data's usual step: in the paper 1/255
    on SVHN, 2/255 elsewhere."""
    eps, norm, step = run.config["eps"], run.config["norm"], run.config["judge_step"]
    on_mixtures: Mapping[str, Attack] = {}
    if isinstance(model, Mixture):
        on_mixtures = attacks_on(model, PGD(eps, norm, steps=MIXTURE_STEPS, step_size=step))
    found = {}
    for name in names:
        attack = training.attack_at_scale(name)
        found[training.result_name(name)] = (
            on_mixtures[attack] if attack in on_mixtures else named(attack, eps, norm, step)
        )
    return found


def device_name(device: str) -> str:
    """The name of the GPU, or the kind of processor and its cores."""
    found = make_fabric(device).device
    if found.type == "cuda":
        return torch.cuda.get_device_name(found)
    return f"{platform.machine()} {found.type}, {os.cpu_count()} cores"
