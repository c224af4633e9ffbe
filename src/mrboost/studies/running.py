"""Carrying a study out: the trainings that it consists of, what is left of them to do, and what they have given.

Every training is an ordinary run folder under ``OUT/runs``; studies that need the same training share it. What is
finished is read from the folders alone, so they can be made on several machines and gathered.
"""

from __future__ import annotations

import os
import platform
import shutil
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from mrboost import data as datasets
from mrboost import recipes
from mrboost.attacks import PGD, Attack, named
from mrboost.boosting import boost
from mrboost.config import as_said, differences
from mrboost.data import Dataset
from mrboost.devices import make_fabric
from mrboost.ensemble import Ensemble, Mixture
from mrboost.errors import InputError, unknown_name
from mrboost.mixtures import attacks_on
from mrboost.results import evaluate_run, unfinished
from mrboost.runs import Run, slug

from .declared import Row, Said, Scale, Study

STRONG = "autoattack"


@dataclass(frozen=True)
class Request:
    """A study as it was asked for; ``options`` override the scale's, ``n`` its number of test images."""

    study: Study
    scale: Scale
    out: Path
    data: tuple[str, ...] = ()
    seeds: tuple[int, ...] = (0,)
    n: int | None = None
    options: Said = field(default_factory=dict)

    def images(self, attack: str) -> int | None:
        """How many test images this attack is to see; None is all."""
        usual = self.scale.strong_n if attack == STRONG else self.scale.n
        return usual if self.n is None else min(self.n, usual or self.n)

    def trainings(self) -> list[Training]:
        """One for each data, row and seed."""
        names = self.data or ((self.scale.data,) if self.scale.data else self.study.data)
        paper_data = {name: name if name in self.study.data else "cifar10" for name in names}
        if len(set(paper_data.values())) < len(paper_data):
            raise InputError(f"several of --data {' '.join(names)} would stand for the paper's cifar10: give one")
        return [
            self._training(row, name, paper_data[name], seed)
            for name in names
            for row in self.study.rows
            for seed in self.seeds
        ]

    def _training(self, row: Row, data: str, paper_data: str, seed: int) -> Training:
        scale, study, recipe = self.scale, self.study, recipes.get(row.recipe)
        recipe = recipe if scale.steps is None else replace(recipe, steps=scale.steps)
        model = row.model or study.model
        options = {"model": scale.models.get(model, model), **scale.options, **study.options, **self.options}
        boosted = study.staged and recipe.rounds > 1  # what is not boosted has the rounds of its recipe or its study
        rounds = options["rounds"] if boosted and "rounds" in options else study.options.get("rounds", recipe.rounds)
        options |= {"rounds": rounds, "seed": seed}
        folder = f"{slug(data)}-{options['model']}-{recipe.name}-{rounds}x{options['epochs']}-seed{seed}"
        place = self.out / "runs" / folder
        attacks = study.attacks if row.attacks is None else row.attacks
        return Training(self, row.label, recipe, data, paper_data, options, attacks, place)


@dataclass(frozen=True)
class Training:
    """One run of a study. Its measures have the names of the paper's columns: data/weights/members/measure."""

    request: Request
    label: str
    recipe: recipes.Recipe
    data: str
    paper_data: str
    options: Said
    attacks: tuple[str, ...]
    folder: Path

    def __str__(self) -> str:
        return f"{self.label} on {self.data}, seed {self.options['seed']}"

    def run(self) -> Run | None:
        """The run, if there is one; that of another configuration is refused."""
        if not (self.folder / "config.json").exists():
            return None
        run = Run.open(self.folder)
        said = {key: value for key, value in self.options.items() if key != "model"}  # the folder's name has it
        said |= {"recipe": self.recipe.name, "steps": self.recipe.steps}
        recipe = run.config["recipe"]
        saved = as_said(run.config) | {"recipe": recipe["name"], "steps": recipe.get("steps")}
        changed = differences({key: saved.get(key) for key in said}, said)
        if changed:
            raise InputError(
                f"the run in {str(self.folder)!r} has another configuration ({'; '.join(changed)}): give the options "
                "that it was made with, or choose another --out"
            )
        return run

    def is_trained(self) -> bool:
        run = self.run()
        return run is not None and run.rounds_done() >= self.options["rounds"]

    def _stages(self) -> Iterator[tuple[str, int, int | None, tuple[str, ...]]]:
        """Weights, members, test images and the paper's attacks of each evaluation."""
        rounds = self.options["rounds"]
        for which in self.request.study.weights:
            for members in range(1 if self.request.study.staged else rounds, rounds + 1):
                for n in dict.fromkeys(self.request.images(attack) for attack in self.attacks):
                    chosen = tuple(attack for attack in self.attacks if self.request.images(attack) == n)
                    yield which, members, n, chosen

    def _actual(self, attack: str) -> str:
        return self.request.scale.attacks.get(attack, attack)

    def pending(self) -> list[tuple[str, int, int | None, tuple[str, ...]]]:
        """The evaluations of a trained run that are not there yet."""
        run = self.run()
        assert run is not None
        return [
            (which, members, n, attacks)
            for which, members, n, attacks in self._stages()
            if not {self._actual(attack) for attack in attacks} <= outcomes(run, which, members, n).keys()
        ]

    def is_done(self) -> bool:
        return self.is_trained() and not self.pending()

    def measures(self) -> dict[str, float]:
        """What is known by now: accuracies in per cent, seconds of an epoch."""
        run = self.run()
        if run is None or not self.is_trained():
            return {}
        found: dict[str, float] = {}
        if self.request.study.seconds:
            epochs = [row["seconds"] for row in run.metrics()]
            found[f"{self.paper_data}/best/1/seconds"] = statistics.median(epochs[1:] or epochs)
        for which, members, n, attacks in self._stages():
            known = outcomes(run, which, members, n)
            for attack in ("clean", *attacks):
                column = f"{self.paper_data}/{which}/{members}/{attack}"
                if self._actual(attack) in known and column not in found:
                    found[column] = 100 * known[self._actual(attack)]["accuracy"]
        return found

    def evaluate(self, dataset: Dataset, **where: Any) -> None:
        """Make the evaluations that are pending."""
        run = self.run()
        assert run is not None
        for which, members, n, attacks in self.pending():
            evaluate_run(
                self.folder, partial(self._fitting, attacks, run), which=which, rounds=members,
                n=None if n is None else min(n, len(dataset.test)), dataset=dataset, resume=True,
                check=self.request.scale.check and members == self.options["rounds"], **where,
            )  # fmt: skip

    def _fitting(self, names: Sequence[str], run: Run, model: Ensemble | Mixture) -> dict[str, Attack]:
        """The attacks by name, PGD with the run's own step: the paper's is 1/255 on SVHN and 2/255 elsewhere."""
        eps, norm, step = (run.config[key] for key in ("eps", "norm", "step_size"))
        special = attacks_on(model, PGD(eps, norm, steps=20, step_size=step)) if isinstance(model, Mixture) else {}
        found: dict[str, Attack] = {}
        for name in map(self._actual, names):
            attack = special.get(name) or named(name, eps, norm)
            stepping = isinstance(attack, PGD) and name.startswith("pgd-")
            found[name] = replace(attack, step_size=step) if stepping else attack  # type: ignore[type-var]
        return found


def outcomes(run: Run, which: str, members: int, n: int | None) -> dict[str, dict[str, Any]]:
    """What is known of these weights and members on so many test images at the run's radius, by attack."""
    found: dict[str, dict[str, Any]] = {}
    if not run.results.get("evaluations"):
        return found
    of = _fingerprint(run.folder, which, members, max(p.stat().st_mtime_ns for p in run.folder.glob("members/*")))
    wanted = {"weights": which, "members": members, "of": of, "eps": run.config["eps"]}
    for evaluation in run.results["evaluations"]:
        whole = evaluation.get("whole", False)
        enough = whole if n is None else evaluation["n"] == n or (whole and evaluation["n"] < n)
        if enough and all(evaluation.get(key) == value for key, value in wanted.items()):
            found |= {outcome["attack"]: outcome for outcome in evaluation["outcomes"]}
    return found


@cache
def _fingerprint(folder: Path, which: str, members: int, stamp: int) -> str:  # noqa: ARG001 — files may change
    return Run.open(folder).fingerprint(which, members)


def choose(
    trainings: Sequence[Training], only: Sequence[str] = (), part: tuple[int, int] | None = None
) -> list[Training]:
    """Those of the rows ``only``, by label or recipe, and of these every n-th from the i-th for part (i, n)."""
    if only:
        names = {name.lower(): t.label for t in trainings for name in (t.recipe.name, t.label)}
        for name in only:
            if name.lower() not in names:
                raise unknown_name("row", name, {t.label for t in trainings}, hint="or a row's recipe")
        labels = {names[name.lower()] for name in only}
        trainings = [t for t in trainings if t.label in labels]
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
    if "TORCHELASTIC_RUN_ID" in os.environ:
        raise InputError("a study is split over machines with --part 1/4 and so on, not with torchrun")
    waiting = [training for training in trainings if not training.is_done()]
    # All of it first: data that is missing should not be found out after a day.
    loaded = {name: datasets.load(name, data_dir, verify=verify) for name in {t.data for t in waiting}}
    for number, training in enumerate(trainings, start=1):
        if training not in waiting:
            continue
        if progress:
            tqdm.write(f"{training.request.study.name}: {number} of {len(trainings)}, {training}", file=sys.stderr)
        dataset = loaded[training.data]
        where: dict[str, Any] = {"device": device, "data_dir": data_dir, "progress": progress}
        if not training.is_trained():
            boost(training.recipe, dataset, out=training.folder, resume=True, **where, **training.options)
        training.evaluate(dataset, **where)
        run = Run.open(training.folder)
        shutil.rmtree(unfinished(run), ignore_errors=True)
        hardware = sorted({*run.results.get("hardware", []), device_name(device)})
        run.save_results({**run.results, "hardware": hardware})


def device_name(device: str) -> str:
    """The device in words."""
    where = make_fabric(device).device
    if where.type == "cuda":
        return torch.cuda.get_device_name(where)
    return f"{platform.machine()} {where.type}, {os.cpu_count()} cores"


def cost(runs: Sequence[Run]) -> Mapping[str, float]:
    """Seconds of all epochs, with their validation, and of all evaluations."""
    return {
        "training": sum(row["seconds"] for run in runs for row in run.metrics()),
        "evaluation": sum(
            outcome["seconds"]
            for run in runs
            for evaluation in run.results.get("evaluations", [])
            for outcome in evaluation["outcomes"]
        ),
    }
