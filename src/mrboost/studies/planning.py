"""Which trainings a study consists of, what is left of them to do, and what they have given.

Every training is an ordinary run folder under ``OUT/runs``; studies that need the same training
share it. What is finished is read from the folders alone, so they can be made on several machines
and gathered.
"""

from __future__ import annotations

import shlex
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from mrboost import recipes
from mrboost.attacks import named
from mrboost.attacks.mixtures import ON_MIXTURES
from mrboost.data import defaults, load
from mrboost.data.sources import FOLDER, whole_name
from mrboost.errors import InputError
from mrboost.recipes.config import configure
from mrboost.runs import Run, slug
from mrboost.runs.identity import WITHOUT_IMAGES, differences

from .declared import Row, Said, Scale, Study

STRONG = "autoattack"
MIXTURE_STEPS = 20
Stage = tuple[str, int, int | None, tuple[str, ...]]
"""One evaluation: weights, members, test images (None is all), the paper's attacks."""


@dataclass(frozen=True)
class Request:
    """A study as it was asked for: ``options`` override the scale's, ``n`` its number of test
    images; ``also`` are more attacks on the finished classifiers."""

    study: Study
    scale: Scale
    out: Path
    data: tuple[str, ...] = ()
    seeds: tuple[int, ...] = (0,)
    n: int | None = None
    also: tuple[str, ...] = ()
    options: Said = field(default_factory=dict)

    def __post_init__(self) -> None:
        for attack in self.also:
            named(attack)  # a mistyped name is found at once
        if self.n is not None and self.n < 1:
            raise InputError(f"n must be at least 1, got {self.n}")
        if len(set(self.seeds)) < len(self.seeds):
            raise InputError(
                f"seeds must differ, got {' '.join(map(str, self.seeds))}: one twice is no spread"
            )
        given = [*self.options, *self.also, *self.data, *(["n"] if self.n is not None else [])]
        if not self.study.rows and (given := given + ["seeds"] * (self.seeds != (0,))):
            raise InputError(f"{self.study.name} has no trainings: leave {', '.join(given)} out")
        if "rounds" in self.options and not self.study.staged:
            raise InputError(
                f"the rounds of {self.study.name} are part of what it studies: leave --rounds out"
            )

    def images(self, attack: str) -> int | None:
        """How many test images this attack is to see; None is all."""
        if attack == STRONG:  # dear: never more than the scale's
            return (
                min(found)
                if (found := [n for n in (self.n, self.scale.strong_n) if n is not None])
                else None
            )
        return self.scale.n if self.n is None else self.n

    def trainings(self) -> list[Training]:
        """One for each data, row and seed."""
        names = self.data or ((self.scale.data,) if self.scale.data else self.study.data)
        paper_data = {name: name if name in self.study.data else "cifar10" for name in names}
        if len(set(paper_data.values())) < len(names):
            raise InputError(
                f"several of --data {' '.join(names)} would stand for the same data of the "
                "paper: give one"
            )
        found = [
            self._training(row, name, paper_data[name], seed)
            for name in names
            for row in self.study.rows
            for seed in self.seeds
        ]
        later = [name for name in self.options if name.startswith("later_")]
        if later and all(training.options["rounds"] == 1 for training in found):
            raise InputError(
                f"{later[0]} is of the rounds after the first, and those here have one: leave "
                "it out"
            )
        return found

    def _training(self, row: Row, data: str, paper_data: str, seed: int) -> Training:
        scale, study, recipe = self.scale, self.study, recipes.get(row.recipe)
        steps = self.options.get("steps")
        recipe = replace(recipe, steps=(scale.steps or recipe.steps) if steps is None else steps)
        model = row.model or study.model
        options = {
            "model": scale.models.get(model, model),
            **scale.options,
            **study.options,
            **self.options,
        }
        # What is not boosted has the rounds of its recipe or its study
        boosted = study.staged and recipe.rounds > 1
        rounds = (
            options["rounds"]
            if boosted and "rounds" in options
            else study.options.get("rounds", recipe.rounds)
        )
        if rounds == 1:
            options = {key: value for key, value in options.items() if not key.startswith("later_")}
        if not recipe.coupled:
            options.pop("past", None)
        options |= {"rounds": rounds, "seed": seed}
        epochs = "-".join(
            str(options[name]) for name in ("epochs", "later_epochs") if name in options
        )
        folder = f"{slug(data)}-{options['model']}-{recipe.name}-{rounds}x{epochs}-seed{seed}"
        attacks = study.attacks if row.attacks is None else row.attacks
        return Training(
            self, row.label, recipe, data, paper_data, options, attacks, self.out / "runs" / folder
        )


@dataclass(frozen=True)
class Training:
    """One run of a study. Its measures have the names of the paper's columns:
    data/weights/members/measure."""

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
        asked = configure(
            self.recipe,
            run.config["data"] if self._is_of_this_data(run) else whole_name(self.data),
            defaults(self.data, run.config["input"]["shape"][1]),
            run.config["train_images"],
            self.options,
        ).describe()
        changed = differences(run.config, asked, ignore=WITHOUT_IMAGES)
        if changed:
            raise InputError(
                f"the run in {str(self.folder)!r} has another configuration "
                f"({'; '.join(changed)}): give the options that it was made with, or choose "
                "another --out"
            )
        return run

    def _is_of_this_data(self, run: Run) -> bool:
        """Folders' paths may differ, between machines say: then the images
        tell, if they are here."""
        asked, made = whole_name(self.data), str(run.config["data"])
        elsewhere = asked != made and asked.startswith(FOLDER) and made.startswith(FOLDER)
        return (
            _fingerprint(asked) in (None, run.config["input"]["fingerprint"])
            if elsewhere
            else asked == made
        )

    def is_trained(self) -> bool:
        run = self.run()
        return run is not None and (
            run.rounds_done() >= self.options["rounds"] or _is_without_weights(run)
        )

    def is_done(self) -> bool:
        return self.is_trained() and not self.pending()

    def command(self) -> str:
        """The training by itself, but for a first round that it may share."""
        said = {"steps": self.recipe.steps, **self.options}
        options = [
            f"--{name.replace('_', '-')} {_shown(name, value)}"
            for name, value in said.items()
            if name != "flip"
        ]
        options += [f"--{'' if said['flip'] else 'no-'}flip"] if "flip" in said else []
        where = ["--data", shlex.quote(self.data), "--out", shlex.quote(str(self.folder))]
        return " ".join(["mrboost train", self.recipe.name, *options, *where])

    def actual(self, attack: str) -> str:
        """The attack that stands for the paper's at this scale."""
        return self.request.scale.attacks.get(attack, attack)

    def kept_as(self, attack: str) -> str:
        """Its name in the run's results: on mixtures, that of the PGD too."""
        name = self.actual(attack)
        return f"{name}, pgd-{MIXTURE_STEPS}" if name in ON_MIXTURES else name

    def stages(self) -> Iterator[Stage]:
        """All its evaluations."""
        rounds = self.options["rounds"]
        for which in self.request.study.weights:
            for members in range(1 if self.request.study.staged else rounds, rounds + 1):
                attacks = dict.fromkeys(
                    self.attacks + (self.request.also if members == rounds else ())
                )
                for n in dict.fromkeys(self.request.images(attack) for attack in attacks):
                    yield (
                        which,
                        members,
                        n,
                        tuple(a for a in attacks if self.request.images(a) == n),
                    )

    def pending(self) -> list[Stage]:
        """The evaluations of a trained run that are not there yet, and can be made."""
        run = self.run()
        assert run is not None
        if _is_without_weights(run):
            return []
        return [
            (which, members, n, attacks)
            for which, members, n, attacks in self.stages()
            if not {self.kept_as(attack) for attack in attacks}
            <= outcomes(run, which, members, n).keys()
        ]

    def measures(self) -> dict[str, float]:
        """Of a trained run: accuracies in per cent, seconds of an epoch."""
        run = self.run()
        assert run is not None
        found = {column: 100 * outcome["accuracy"] for column, outcome in self.outcomes().items()}
        epochs = [row["seconds"] for row in run.metrics()]
        if self.request.study.seconds and epochs:
            found[f"{self.paper_data}/best/1/seconds"] = statistics.median(epochs[1:] or epochs)
        return found

    def outcomes(self) -> dict[str, dict[str, Any]]:
        """Of a trained run: what is known by now under each attack, point by point."""
        run = self.run()
        assert run is not None
        found: dict[str, dict[str, Any]] = {}
        for which, members, n, attacks in self.stages():
            known = outcomes(run, which, members, n)
            # The clean images of the first of them: those are the most
            for attack in ("clean", *attacks):
                if (kept := self.kept_as(attack)) in known:
                    found.setdefault(f"{self.paper_data}/{which}/{members}/{attack}", known[kept])
        return found


def outcomes(run: Run, which: str, members: int, n: int | None) -> dict[str, dict[str, Any]]:
    """What is known of these weights and members on so many test images in the
    run's ball, by attack."""
    found: dict[str, dict[str, Any]] = {}
    wanted = {
        "weights": which,
        "members": members,
        "eps": run.config["eps"],
        "norm": run.config["norm"],
    }
    for evaluation in run.results.get("evaluations", []):
        whole = evaluation.get("whole", False)
        enough = whole if n is None else evaluation["n"] == n or (whole and evaluation["n"] < n)
        if (
            enough
            and all(evaluation.get(key) == value for key, value in wanted.items())
            and run.is_of(evaluation)
        ):
            found |= {
                outcome["attack"]: outcome | {"whole": whole} for outcome in evaluation["outcomes"]
            }
    return found


def _shown(name: str, value: Any) -> str:
    """On the command line: a radius such as 8/255 as one writes it."""
    is_level = name in ("eps", "step_size") and float(value * 255).is_integer()
    return f"{value * 255:.0f}/255" if is_level else str(value)


@cache
def _fingerprint(folder: str) -> str | None:
    """That of a folder's training images, if it is there."""
    return load(folder).fingerprint() if Path(folder.removeprefix(FOLDER)).exists() else None


def _is_without_weights(run: Run) -> bool:
    """Evaluated, and then only its numbers were kept."""
    return bool(run.results.get("evaluations")) and not any(run.folder.glob("members/*"))
