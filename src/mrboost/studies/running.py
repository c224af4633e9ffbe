"""Carrying a study out: train and evaluate what its run folders do not hold yet."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from mrboost import data as datasets
from mrboost.attacks import PGD, Attack, named
from mrboost.attacks.mixtures import attacks_on
from mrboost.data import Dataset
from mrboost.devices import make_fabric, under_torchrun
from mrboost.ensemble import Ensemble, Mixture
from mrboost.errors import InputError, unknown_name
from mrboost.evaluation import EvaluationOptions, UnfinishedError
from mrboost.progress import note
from mrboost.recipes.config import resolve
from mrboost.runs import Run
from mrboost.runs.evaluate_run import Request, clear, evaluate_run, place_of
from mrboost.training.boost import boost

from .planning import MIXTURE_STEPS, Training
from .twins import find_first_round


def choose(
    trainings: Sequence[Training], only: Sequence[str] = (), part: tuple[int, int] | None = None
) -> list[Training]:
    """Those of the rows ``only``, by label or recipe, and of these every n-th from the
    i-th for part (i, n)."""
    if only:
        if not trainings:
            raise InputError("this study has no trainings: leave --only out")
        names = {name.lower(): t.label for t in trainings for name in (t.recipe.name, t.label)}
        for name in only:
            if name.lower() not in names:
                raise unknown_name(
                    "row", name, {t.label for t in trainings}, hint="or a row's recipe"
                )
        labels = {names[name.lower()] for name in only}
        trainings = [t for t in trainings if t.label in labels]
    if part is not None and not trainings:
        raise InputError("this study has no trainings: leave --part out")
    return list(trainings if part is None else trainings[part[0] - 1 :: part[1]])


def carry_out(
    trainings: Sequence[Training],
    *,
    device: str = "auto",
    data_dir: str | Path | None = None,
    verify: bool = True,
    progress: bool = False,
) -> None:
    """Train and evaluate what is not done yet."""
    if under_torchrun():
        raise InputError(
            "a study is split over machines with --part 1/4 and so on, not with torchrun"
        )
    waiting = [training for training in trainings if not training.is_done()]
    # All of it first: data that is missing should not be found out after a day.
    loaded = {
        name: datasets.load(name, data_dir, verify=verify) for name in {t.data for t in waiting}
    }
    for training in waiting:
        # Likewise options that a row cannot take
        resolve(training.recipe, loaded[training.data], **training.options)
    here = device_name(device)
    where: dict[str, Any] = {"device": device, "data_dir": data_dir, "progress": progress}
    for number, training in enumerate(trainings, start=1):
        if training not in waiting:
            continue
        if progress:
            note(f"{training.request.study.name}: {number} of {len(trainings)}, {training}")
        dataset = loaded[training.data]
        if not training.is_trained():
            twin = find_first_round(training, dataset)
            boost(
                training.recipe,
                dataset,
                out=training.folder,
                resume=True,
                first=twin,
                **where,
                **training.options,
            )
        run = Run.open(training.folder)
        run.save_results(
            lambda results: results | {"hardware": sorted({*results.get("hardware", []), here})}
        )
        _evaluate(training, run, dataset, where)


def _evaluate(training: Training, run: Run, dataset: Dataset, where: dict[str, Any]) -> None:
    for which, members, n, attacks in training.pending():
        place = place_of(run, which, members, n, attacks)
        try:
            evaluate_run(
                run.folder,
                partial(attacks_of, training, run, attacks),
                Request(which, members, None if n is None else min(n, len(dataset.test))),
                EvaluationOptions(
                    keep=place,
                    resume=True,
                    check=training.request.scale.check and members == training.options["rounds"],
                    progress=where["progress"],
                ),
                dataset=dataset,
                device=where["device"],
                data_dir=where["data_dir"],
            )
        except UnfinishedError as error:
            raise InputError(f"{run.folder}: {error}") from error
        clear(place)


def attacks_of(
    training: Training, run: Run, names: Sequence[str], model: Ensemble | Mixture
) -> dict[str, Attack]:
    """The attacks by name in the results, PGD with the data's step: in the paper 1/255 on
    SVHN, 2/255 elsewhere."""
    eps, norm, step = run.config["eps"], run.config["norm"], run.config["judge_step"]
    inner = PGD(eps, norm, steps=MIXTURE_STEPS, step_size=step)
    special = attacks_on(model, inner) if isinstance(model, Mixture) else {}
    return {
        training.kept_as(name): special.get(training.actual(name))
        or named(training.actual(name), eps, norm, step)
        for name in names
    }


def device_name(device: str) -> str:
    """The device in words."""
    where = make_fabric(device).device
    if where.type == "cuda":
        return torch.cuda.get_device_name(where)
    return f"{platform.machine()} {where.type}, {os.cpu_count()} cores"
