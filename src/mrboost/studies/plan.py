"""Which trainings and evaluations a study consists of, and which of them are finished.

Every training is an ordinary run folder under ``OUT/runs``; studies that need the same training
share it. What is finished is read from the folders alone, so they can be made on several machines
and gathered.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from mrboost import recipes
from mrboost.attacks import named
from mrboost.attacks.adaptive import ON_MIXTURES
from mrboost.data import defaults
from mrboost.data.folder import FOLDER
from mrboost.data.sources import whole_name
from mrboost.errors import InputError, unknown_name
from mrboost.recipes.config import configure
from mrboost.runs import Run, slug
from mrboost.runs.identity import WITHOUT_IMAGES, differences

from .catalogue import Options, Row, Scale, Study

STRONG = "autoattack"
MIXTURE_STEPS = 20


class Stage(NamedTuple):
    """One evaluation: of which weights and how many members, on how many test images (None: all),
    under which attacks: the paper's, and what stands for each in the results."""

    weights: str
    members: int
    n: int | None
    attacks: dict[str, str]

    def outcomes(self, run: Run) -> dict[str, dict[str, Any]]:
        """What the run's results hold of it, by attack; clean accuracy besides."""
        asked = {key: run.config[key] for key in ("eps", "norm")}
        asked |= {"weights": self.weights, "members": self.members}
        found: dict[str, dict[str, Any]] = {}
        for evaluation in run.evaluations():
            n, whole = evaluation["n"], evaluation.get("whole", False)
            same_images = whole if self.n is None else n == self.n or (whole and n < self.n)
            if same_images and asked.items() <= evaluation.items():
                for outcome in evaluation["outcomes"]:
                    found[outcome["attack"]] = outcome | {"whole": whole}
        return found


@dataclass(frozen=True)
class Request:
    """A study as it was asked for.

    Args:
        study, scale: see ``catalogue``.
        out: the folder of the pages and of ``runs/``.
        data: in the place of the scale's.
        seeds: each row is trained with each of them.
        n: test images under attack, in the place of the scale's.
        also: more attacks, on the finished classifiers.
        options: of each training, in the place of the scale's.
    """

    study: Study
    scale: Scale
    out: Path
    data: tuple[str, ...] = ()
    seeds: tuple[int, ...] = (0,)
    n: int | None = None
    also: tuple[str, ...] = ()
    options: Options = field(default_factory=dict)

    def __post_init__(self) -> None:
        for attack in self.also:
            named(attack)  # refuses an unknown name
        if self.n is not None and self.n < 1:
            raise InputError(f"n must be at least 1, got {self.n}")
        if len(set(self.seeds)) < len(self.seeds):
            raise InputError(f"seeds must differ, got {' '.join(map(str, self.seeds))}")
        if "rounds" in self.options and not self.study.staged:
            raise InputError(f"{self.study.name} studies its own rounds: leave --rounds out")

    @property
    def attacks(self) -> set[str]:
        """All attacks of its rows, and those asked for."""
        return {*self.also, *(attack for row in self.study.rows for attack in row.attacks)}

    def images(self, attack: str) -> int | None:
        """How many test images this attack sees; None is all."""
        if attack != STRONG:
            return self.scale.n if self.n is None else self.n
        # AutoAttack is slow: never more than the scale's
        limits = {self.n, self.scale.strong_n} - {None}
        return min(limits, default=None)  # type: ignore[type-var]

    def trainings(self) -> list[Training]:
        """One for each data, row and seed."""
        study = self.study
        names = self.data or ((self.scale.data,) if self.scale.data else study.data)
        paper_data = {name: name if name in study.data else "cifar10" for name in names}
        if len(set(paper_data.values())) < len(names):
            several = " ".join(names)
            raise InputError(f"--data {several} stand for the same data of the paper: give one")
        found = [
            self._training(row, name, paper_data[name], seed)
            for name in names
            for row in study.rows
            for seed in self.seeds
        ]
        later = [name for name in self.options if name.startswith("later_")]
        if later and all(training.options["rounds"] == 1 for training in found):
            words = "is of the rounds after the first, which these lack"
            raise InputError(f"{later[0]} {words}: leave it out")
        return found

    def _training(self, row: Row, data: str, paper_data: str, seed: int) -> Training:
        scale, study = self.scale, self.study
        recipe = recipes.get(row.recipe)
        model = row.model or study.model
        options: dict[str, Any] = {"model": scale.models.get(model, model)}
        options |= {**scale.options, **study.options, **self.options}
        recipe = replace(recipe, steps=options.get("steps", recipe.steps))
        # Only rows that are boosted have another number of rounds than their recipe or study
        boosted = study.staged and recipe.rounds > 1
        if not (boosted and "rounds" in options):
            options["rounds"] = study.options.get("rounds", recipe.rounds)
        if options["rounds"] == 1:
            options.pop("later_epochs", None)
            options.pop("later_lr", None)
        if not recipe.coupled:
            options.pop("past", None)
        options["seed"] = seed
        epochs = "-".join(str(options[k]) for k in ("epochs", "later_epochs") if k in options)
        effort = f"{options['rounds']}x{epochs}"
        folder = f"{slug(data)}-{options['model']}-{row.recipe}-{effort}-seed{seed}"
        return Training(self, row, recipe, data, paper_data, options, self.out / "runs" / folder)


@dataclass(frozen=True)
class Training:
    """One training of a study, its run folder and its evaluations."""

    request: Request
    row: Row
    recipe: recipes.Recipe
    data: str
    paper_data: str
    options: Options
    folder: Path

    def __str__(self) -> str:
        return f"{self.row.label} on {self.data}, seed {self.options['seed']}"

    def run(self) -> Run | None:
        """The run, if there is one; that of another configuration is refused."""
        if not (self.folder / "config.json").exists():
            return None
        run = Run.open(self.folder)
        usual = defaults(self.data, run.config["input"]["shape"][1])
        images = run.config["train_images"]
        made, data = run.config["data"], whole_name(self.data)
        if data.startswith(FOLDER) and Path(data).name == Path(made).name:
            data = made  # it may lie elsewhere on another machine: what counts are its images
        asked = configure(self.recipe, data, usual, images, self.options)
        if changed := differences(run.config, asked.describe(), ignore=WITHOUT_IMAGES):
            problem = f"{str(self.folder)!r} has another configuration ({'; '.join(changed)})"
            raise InputError(f"{problem}: give the options of its making, or another --out")
        return run

    def trained_run(self) -> Run | None:
        """The run, if its training is finished."""
        run = self.run()
        if run is None or _has_results_only(run) or run.rounds_done() >= self.options["rounds"]:
            return run
        return None

    def state(self) -> str:
        """What is left to do."""
        run = self.trained_run()
        if run is None:
            return "to be trained"
        return "trained" if self.pending(run) else "finished"

    def command(self) -> str:
        """The command of this training; a first round may come from another row's run."""
        words = ["mrboost train", self.recipe.name]
        for name, value in {"steps": self.recipe.steps, **self.options}.items():
            flag = name.replace("_", "-")
            if isinstance(value, bool):
                words.append(f"--{flag}" if value else f"--no-{flag}")
            elif name in ("eps", "step_size") and float(value * 255).is_integer():
                words.append(f"--{flag} {value * 255:.0f}/255")  # as one writes it
            else:
                words.append(f"--{flag} {value}")
        words += ["--data", shlex.quote(self.data), "--out", shlex.quote(str(self.folder))]
        return " ".join(words)

    def stages(self) -> Iterator[Stage]:
        """All its evaluations."""
        request, rounds = self.request, self.options["rounds"]
        for weights in request.study.weights:
            for members in range(1 if request.study.staged else rounds, rounds + 1):
                more = request.also if members == rounds else ()
                by_images: dict[int | None, dict[str, str]] = {}
                for attack in self.row.attacks + more:
                    name = request.scale.attacks.get(attack, attack)
                    if name in ON_MIXTURES:
                        name += f", pgd-{MIXTURE_STEPS}"
                    by_images.setdefault(request.images(attack), {})[attack] = name
                for n, attacks in by_images.items():
                    yield Stage(weights, members, n, attacks)

    def pending(self, run: Run) -> list[Stage]:
        """The evaluations of its trained run that are not there yet, and can be made."""
        if _has_results_only(run):
            return []
        return [s for s in self.stages() if not set(s.attacks.values()) <= s.outcomes(run).keys()]

    def outcomes(self, run: Run) -> dict[str, dict[str, Any]]:
        """What is known by now of its trained run, by the names of the paper's columns:
        data/weights/members/attack."""
        found: dict[str, dict[str, Any]] = {}
        for stage in self.stages():
            known = stage.outcomes(run)
            for attack, name in {"clean": "clean", **stage.attacks}.items():
                if name in known:
                    column = f"{self.paper_data}/{stage.weights}/{stage.members}/{attack}"
                    found.setdefault(column, known[name])
        return found


def choose(
    trainings: Sequence[Training], only: Sequence[str] = (), part: tuple[int, int] | None = None
) -> list[Training]:
    """Those of the rows ``only``, by label or recipe, and of these every n-th from the i-th for
    part (i, n)."""
    first, step = part or (1, 1)
    if only:
        rows = [training.row for training in trainings]
        labels = {name.lower(): row.label for row in rows for name in (row.recipe, row.label)}
        for name in only:
            if name.lower() not in labels:
                raise unknown_name("row", name, set(labels.values()), hint="or a row's recipe")
        wanted = {labels[name.lower()] for name in only}
        trainings = [training for training in trainings if training.row.label in wanted]
    return list(trainings)[first - 1 :: step]


def describe_plan(trainings: Sequence[Training]) -> str:
    """What each training is, and what is left of it to do."""
    states = [training.state() for training in trainings]
    lines = [f"trainings: {len(trainings)}, finished: {states.count('finished')}"]
    for training, state in zip(trainings, states, strict=True):
        lines += ["", f"{training}: {state}", f"  {training.command()}"]
        for weights, members, n, attacks in training.stages():
            images = "all" if n is None else f"{n:,}"
            names = ", ".join(attacks.values())
            lines.append(f"  {weights} weights, members {members}, {images} test images: {names}")
    return "\n".join(lines)


def _has_results_only(run: Run) -> bool:
    """Evaluated, and then its weights were deleted."""
    return bool(run.results.get("evaluations")) and not any(run.folder.glob("members/*"))
