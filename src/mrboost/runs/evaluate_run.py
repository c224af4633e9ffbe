"""The evaluation of a run: which data, which weights, which attacks. What is found is merged with
the evaluations in its ``results.json``."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypedDict, Unpack

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from mrboost import data as datasets
from mrboost.attacks import Attack
from mrboost.attacks.adaptive import adaptive
from mrboost.attacks.surrogates import on_surrogate
from mrboost.data import Dataset, Split, drawn
from mrboost.data.folder import FOLDER, Pictures
from mrboost.devices import GO_ON, lost_processes, make_fabric
from mrboost.ensemble import Ensemble, Mixture
from mrboost.errors import InputError
from mrboost.evaluation import EvaluationOptions, measure, resolve_attacks
from mrboost.evaluation.doubts import AMONG_OUTCOMES, Doubt, contradictions
from mrboost.evaluation.observers import Measurements
from mrboost.evaluation.result import Evaluation, UnfinishedError, same_images, worst_of
from mrboost.files import digest, require_inside
from mrboost.progress import note
from mrboost.threat import ball

from .folder import Run

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
        kept = None if data_dir else run.config.get("data_dir")
        # A stranger's run may name any folder: nothing is fetched into it
        how: dict[str, Any] = {"download": kept is None, "verify": verify}
        dataset = datasets.load(_name_of_data(run, data_dir), data_dir or kept, **how)
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
    return eps, norm, _step_size(run, eps)


class Where(TypedDict, total=False):
    """Where an evaluation computes, and where its data lie: the options of the command line."""

    dataset: Dataset | None
    device: str
    data_dir: str | Path | None
    verify: bool


@dataclass(frozen=True)
class Subject:
    """A classifier of a run and the images that it is evaluated on, loaded once.

    Attributes:
        run, request: as they were asked for.
        model: the classifier, on its device.
        whole: all test images.
        points: the numbers of those that are evaluated.
        fabric: the processes that share them.
    """

    run: Run
    request: Request
    model: Ensemble | Mixture
    whole: Split
    points: Tensor
    fabric: Fabric

    @classmethod
    def load(cls, run: Run, request: Request, fabric: Fabric, **where: Unpack[Where]) -> Subject:
        """The classifier and the images that are asked for."""
        model = load_model(run, request.which, fabric.device, request.rounds)
        place, verify = where.get("data_dir"), where.get("verify", True)
        whole = load_data(run, place, verify=verify, dataset=where.get("dataset")).test
        every = request.n is None or request.n == len(whole)
        points = torch.arange(len(whole)) if every else numbers(whole, request.n or 0)
        if len(points) < fabric.world_size:
            share = f"{fabric.world_size} processes have only {len(points)} images to share"
            raise InputError(f"{share}: start fewer")
        return cls(run, request, model, whole, points, fabric)

    @property
    def members(self) -> int:
        """How many networks the classifier has."""
        return len(self.model) if isinstance(self.model, Ensemble | Mixture) else 1

    def images(self, points: Tensor) -> Split:
        """The test images of these numbers."""
        return self.whole if len(points) == len(self.whole) else self.whole[points]

    def attacks(self, attack: Sequence[str] | Fitting, eps: float, norm: str) -> dict[str, Attack]:
        """By label, those that fit the model included where the request says so."""
        made = attack(self.model) if callable(attack) else attack
        found = resolve_attacks(made, eps, norm, _step_size(self.run, eps))
        found |= on_surrogate(self.model, eps, norm)
        if self.request.adaptive:
            found |= adaptive(self.model, eps, norm, self.images(self.points)[:8].images())
        return found

    def facts(self, found: Evaluation) -> dict[str, Any]:
        """Which classifier and which images were evaluated, as the results keep it."""
        points = self.points if found.chosen is None else self.points[list(found.chosen)]
        everything = len(points) == len(self.whole)
        test = self.images(points)
        return {
            "weights": self.request.which,
            "members": self.members,
            "of": self.run.fingerprint(self.request.which, self.members),
            "whole": everything,
            "images": digest(test.x, test.y),
            "points": None if everything else points.tolist(),
        }


@dataclass(frozen=True)
class Evaluated:
    """What attacks found of a classifier.

    Attributes:
        subject: the classifier and its images.
        attacks: by label, without ``clean``.
        evaluation: the figures.
        checked: whether doubts were looked for.
        problem: one message for all that failed.
    """

    subject: Subject
    attacks: Mapping[str, Attack]
    evaluation: Evaluation
    checked: bool = True
    problem: str = ""


def evaluate_run(
    run: Run | str | Path,
    attack: Sequence[str] | Fitting,
    request: Request = Request(),  # noqa: B008 — a frozen value
    options: EvaluationOptions = EvaluationOptions(),  # noqa: B008
    **where: Unpack[Where],
) -> Evaluation:
    """Evaluate a run on its test images and add the outcomes to its ``results.json``.

    Of torchrun's processes each takes its share of the images, and the first writes. If an attack
    fails, the outcomes of the others are added before the error is raised.

    Args:
        run: it, or its folder.
        attack: names of attacks, or a function that makes them for the model.
        request: which classifier is evaluated, and on what.
        options: how it is done; ``place_of`` gives a folder for ``keep``.
        where: ``device``, ``data_dir`` and ``verify`` as on the command line; ``dataset``, that of
            the run, if it is loaded already.

    Example:
        >>> evaluate_run("runs/a", ["autoattack"], Request(n=300))  # doctest: +SKIP
    """
    (found,) = evaluate_radii(run, attack, [request.eps], request, options, **where)
    if found.problem:
        raise UnfinishedError(found.problem, found.evaluation)
    return found.evaluation


def evaluate_radii(
    run: Run | str | Path,
    attack: Sequence[str] | Fitting,
    radii: Sequence[float | None],
    request: Request = Request(),  # noqa: B008 — a frozen value
    options: EvaluationOptions = EvaluationOptions(),  # noqa: B008
    **where: Unpack[Where],
) -> Iterator[Evaluated]:
    """``evaluate_run`` within one ball after the other, the smallest first.

    Data and classifier are loaded once, clean images are classified once, and what an attack broke
    within a ball it has broken within all larger ones. So each figure is at most the one that the
    ball gets alone.

    Args:
        run, attack, request, options, where: as for ``evaluate_run``.
        radii: instead of the request's; None is that of the training.

    Yields:
        The evaluation within each ball.
    """
    run = run if isinstance(run, Run) else Run.open(run)
    balls = sorted({ball_asked(run, eps, request.norm)[:2] for eps in radii})
    if not callable(attack):  # a mistyped name is found before anything is loaded
        for eps, norm in balls:
            resolve_attacks(attack, eps, norm, _step_size(run, eps))
    with suppress(OSError):  # damaged results, to which nothing could be added, are refused now
        run.results.keys()
    fabric = make_fabric(where.get("device", "auto"), "32-true", together=True)
    _check_alone(fabric, options, len(balls))
    subject = Subject.load(run, request, fabric, **where)
    smaller: Measurements | None = None
    for number, (eps, norm) in enumerate(balls):
        own = _own_options(options, subject, number)
        attacks = subject.attacks(attack, eps, norm)
        test = subject.images(subject.points)
        part = test[fabric.global_rank :: fabric.world_size]
        measured = measure(
            subject.model, part, None, attacks, own, ball=(eps, norm), smaller=smaller
        )
        smaller = measured if eps > 0 else None
        with lost_processes(GO_ON):
            measured = measured.of_all(fabric, len(test))
        found = measured.evaluation()
        if fabric.global_rank == 0 and found.outcomes:
            facts = subject.facts(found) | {"checked": options.check}
            found = _keep(run, facts, found)
        yield Evaluated(subject, attacks, found, options.check, measured.problem)


def _step_size(run: Run, eps: float) -> float | None:
    """In proportion to eps, the step of the training's data: 1/255 for SVHN, say."""
    return eps * (run.config["judge_step"] / run.config["eps"]) or None


def _check_alone(fabric: Fabric, options: EvaluationOptions, balls: int) -> None:
    """Refuse what one process does, or one evaluation."""
    alone = {"examples are written": options.examples, "a time is kept": options.time_budget}
    for what, asked in alone.items():
        if asked is not None and fabric.world_size > 1:
            raise InputError(f"{what} by one process: start this command without torchrun")
        if asked is not None and balls > 1:
            raise InputError(f"{what} for one eps: give one")


def _own_options(options: EvaluationOptions, subject: Subject, number: int) -> EvaluationOptions:
    """Those of this process and this ball: a folder of its own for what is finished, and only the
    first process shows progress and looks for doubts."""
    rank, world = subject.fabric.global_rank, subject.fabric.world_size
    progress, check = options.progress and rank == 0, options.check and rank == 0
    if world > 1:
        options = replace(options, name=f"evaluate (process {rank} of {world}, its images)")
    if options.keep is None or not os.access(subject.run.folder, os.W_OK):
        return replace(options, keep=None, resume=False, progress=progress, check=check)
    part = f"{number}/{subject.request.which}-{subject.members}"
    keep = options.keep / (f"{part}-{rank}-{world}" if world > 1 else part)
    if keep.is_relative_to(subject.run.folder):
        require_inside(keep, subject.run.folder)
    return replace(options, keep=keep, progress=progress, check=check)


def _keep(run: Run, facts: Mapping[str, Any], result: Evaluation) -> Evaluation:
    """Add an evaluation to the run's results; ``facts`` say of which weights, members and images it
    is, and whether doubts were looked for. What its outcomes and earlier ones say against each
    other is added to its doubts."""
    new = {**facts, **result.to_dict()}
    try:
        with run.changing_results() as results:
            results["evaluations"] = _merged(results.get("evaluations", []), new)
    except OSError as error:  # a run that one may only read can be evaluated all the same
        note(f"note: the result is not kept in {str(run.folder)!r}: {error.strerror}")
        return result
    if not facts["checked"]:
        return result
    return replace(result, doubts=tuple(Doubt(**doubt) for doubt in new["doubts"]))


def _merged(kept: Sequence[dict[str, Any]], new: dict[str, Any]) -> list[dict[str, Any]]:
    """All evaluations, the new one last and together with those of the same classifier, ball and
    images.

    A repeated attack replaces the older figure, and what was doubted of the model stays until it
    is checked again. Figures of a classifier that is no longer there, since its members were
    reweighted, are dropped.
    """
    others = []
    for old in kept:
        same_members = all(old[key] == new[key] for key in ("weights", "members"))
        if same_members and old.get("of") != new["of"]:
            continue
        same_ball = all(old[key] == new[key] for key in ("eps", "norm", "n"))
        if same_members and same_ball and same_images(old, new):
            _take_over(old, new)
        else:
            others.append(old)
    if new["checked"]:
        of_model = [doubt for doubt in new["doubts"] if doubt["check"] not in AMONG_OUTCOMES]
        draws = any(doubt["check"] == "random" for doubt in of_model)
        new["doubts"] = [*of_model, *map(asdict, contradictions(new["outcomes"], draws=draws))]
    new["worst"] = worst_of(new)
    return [*others, new]


def _take_over(old: dict[str, Any], new: dict[str, Any]) -> None:
    """Outcomes of other attacks, and doubts where they were not looked for again."""
    again = {outcome["attack"] for outcome in new["outcomes"]}
    earlier = [outcome for outcome in old["outcomes"] if outcome["attack"] not in again]
    new["outcomes"] = [*earlier, *new["outcomes"]]
    measured = {outcome["attack"] for outcome in new["outcomes"]}
    failed = dict.fromkeys([*old.get("failed", ()), *new["failed"]])
    new["failed"] = [name for name in failed if name not in measured]
    if not new["checked"]:
        new["checked"] = old.get("checked", True)
        new["doubts"] = old.get("doubts", [])


def place_of(run: Run, *request: object) -> Path:
    """Where a command keeps what it has finished until it is done: each request has
    a folder of its own."""
    return run.folder / "checkpoint" / "evaluation" / digest(*request)


def clear(place: Path) -> None:
    shutil.rmtree(place, ignore_errors=True)
    with suppress(OSError):  # others are in it
        place.parent.rmdir()
