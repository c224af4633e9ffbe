"""Evaluations of a run: which data, which weights, and the file that keeps them."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mrboost import data as datasets
from mrboost.attacks import PGD, Attack
from mrboost.attacks.adaptive import adaptive
from mrboost.data import Dataset, Split, drawn, validation_split
from mrboost.devices import company, make_fabric
from mrboost.ensemble import Ensemble, Mixture
from mrboost.errors import InputError
from mrboost.evaluation import measure, resolve_attacks
from mrboost.evaluation.doubts import AMONG_OUTCOMES, Doubt, contradictions
from mrboost.evaluation.result import Evaluation, attack_of, same_images, worst_of
from mrboost.files import digest
from mrboost.progress import note
from mrboost.threat import ball

from .folder import Run
from .reweight import learn_weights

Fitting = Callable[[Ensemble | Mixture], Mapping[str, Attack]]
"""Attacks by label, made for the model that they are to attack."""


def load_data(run: Run, data_dir: str | Path | None = None, *, verify: bool = True) -> Dataset:
    """The data that a run was trained on, checked to be the same training images."""
    name, place = run.config["data"], data_dir or run.config.get("data_dir")
    if name.startswith("folder:") and data_dir is not None:
        name = f"folder:{Path(data_dir) / Path(name).name}"
    elif name.startswith("folder:") and not (path := Path(name.removeprefix("folder:"))).exists():
        raise InputError(
            f"{path}, which the run in {str(run.folder)!r} was trained on, does not exist: "
            f"--data-dir names the folder that holds {path.name} now"
        )
    elif not name.startswith("folder:") and name not in datasets.names():
        raise InputError(
            f"the run in {str(run.folder)!r} was trained on tensors called {name!r}, which only "
            "its maker has: use mrboost.evaluate(mrboost.load(run), x, y)"
        )
    return _checked(run, datasets.load(name, place, verify=verify))


def _checked(run: Run, dataset: Dataset) -> Dataset:
    if dataset.fingerprint() != run.config["input"]["fingerprint"]:
        raise InputError(
            f"the training images of {dataset.name} are not those that the run in "
            f"{str(run.folder)!r} was trained on: check --data-dir, or use mrboost.evaluate for "
            "other images"
        )
    return dataset


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
    return run.classifier(which, rounds).to(place)


def _ball(run: Run, eps: float | None, norm: str | None) -> tuple[float, str]:
    """What was asked for, or else that of the training."""
    norm = run.config["norm"] if norm is None else norm
    ball(norm, run.config["eps"])  # refuses an unknown norm
    if eps is None and norm != run.config["norm"]:
        raise InputError(f"the run's eps is for {run.config['norm']}: give --eps for norm {norm!r}")
    return run.config["eps"] if eps is None else eps, norm


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
    model = load_model(run, which, device)
    if not isinstance(model, Ensemble) or len(model) < 2:
        kind = "a randomised classifier" if isinstance(model, Mixture) else "one network"
        raise InputError(f"{str(run.folder)!r} holds {kind}: there is nothing to weigh")
    if run.config["select_on"] != "validation" or not run.config["validation"]:
        kept = (
            "no images that all networks of it held out"
            if "joined" in run.config
            else "no images that it held out"
        )
        raise InputError(
            f"the run in {str(run.folder)!r} has {kept}, and no others may be learned from"
        )
    dataset = load_data(run, data_dir, verify=verify)
    _, held_out = validation_split(dataset.train, run.config["validation"])
    place = model.weights.device
    attack = PGD(
        run.config["eps"], run.config["norm"], steps=20, step_size=run.config["judge_step"]
    )
    x, y = held_out.images().to(place), held_out.y.to(place)
    # Not what was learned before, so that the same is learned again
    equal = Ensemble(model.members).to(place).eval()
    learned = learn_weights(equal, x, y, attack, objective=objective, progress=progress)
    weights: list[float] = learned.weights.tolist()
    run.save_weights(
        which, weights, f"{objective} margin on {len(held_out)} held-out images under {attack.name}"
    )
    return weights


def evaluate_run(
    run_dir: str | Path,
    attack: Sequence[str] | Fitting,
    *,
    which: str = "best",
    rounds: int | None = None,
    dataset: Dataset | None = None,
    n: int | None = None,
    eps: float | None = None,
    norm: str | None = None,
    batch_size: int | None = None,
    device: str = "auto",
    data_dir: str | Path | None = None,
    verify: bool = True,
    progress: bool = False,
    check: bool = True,
    fit: bool = False,
    keep: Path | None = None,
    resume: bool = False,
    examples: str | Path | None = None,
) -> Evaluation:
    """Evaluate a run on its test images and add the outcomes to its ``results.json``.

    ``rounds`` takes the ensemble as it was after that many of them; ``fit`` adds the attacks that
    fit the model; ``dataset`` is the run's own, if it is loaded already; ``keep`` is a folder for
    what is finished, ``place_of`` this request, and ``resume`` goes on with what it holds. Of
    several processes that torchrun started, each takes its share of the images, and the first
    writes. If an attack fails, the outcomes of the others are added first.
    """
    run = Run.open(run_dir)
    eps, norm = _ball(run, eps, norm)
    if not callable(attack):
        resolve_attacks(attack, eps, norm)  # a mistyped name is found before anything is loaded
    with suppress(OSError):  # it may not be ours to read
        _ = run.results  # so is a damaged file, that nothing could be added to
    fabric = make_fabric(device, "32-true", together=True)
    rank, world = fabric.global_rank, fabric.world_size
    if world > 1 and examples is not None:
        raise InputError("examples are written by one process: start this command without torchrun")
    model = load_model(run, which, fabric.device, rounds)
    whole = (
        load_data(run, data_dir, verify=verify) if dataset is None else _checked(run, dataset)
    ).test
    test = draw(whole, n)
    if len(test) < world:
        raise InputError(f"{world} processes have only {len(test)} images to share: start fewer")
    # The data's: 1/255 for SVHN, say
    step_size = eps * (run.config["judge_step"] / run.config["eps"]) or None
    attacks = resolve_attacks(attack(model) if callable(attack) else attack, eps, norm, step_size)
    attacks |= adaptive(model, eps, norm) if fit else {}
    if keep is not None:
        part = "-".join(map(str, (which, len(model), *([rank, world] if world > 1 else []))))
        keep = keep / part if os.access(run.folder, os.W_OK) else None
    all_of_them = len(test) == len(whole)
    facts = {
        "weights": which,
        "members": len(model),
        "of": run.fingerprint(which, len(model)),
        "whole": all_of_them,
        "checked": check,
        "images": digest(test.x, test.y),
        "points": None if all_of_them else numbers(whole, len(test)).tolist(),
    }
    measured = measure(
        model,
        test[rank::world],
        None,
        attacks,
        eps=eps,
        norm=norm,
        batch_size=batch_size,
        progress=progress and rank == 0,
        check=check and rank == 0,
        keep=keep,
        resume=resume,
        examples=examples,
    )
    with company(fabric, "start the same command again with --resume"):
        measured = measured.of_all(fabric, len(test))
    return measured.result(lambda found: found if rank > 0 else _keep(run, facts, found))


def place_of(run: Run, *request: object) -> Path:
    """Where a command keeps what it has finished until it is done: each request has
    a folder of its own."""
    return run.folder / "checkpoint" / "evaluation" / digest(*request)


def clear(place: Path) -> None:
    shutil.rmtree(place, ignore_errors=True)
    with suppress(OSError):  # others are in it
        place.parent.rmdir()


def _keep(run: Run, facts: Mapping[str, Any], result: Evaluation) -> Evaluation:
    """Add the outcomes to the run's results; what they say against earlier ones is
    added to the doubts."""
    new = {**facts, **result.to_dict()}
    try:
        run.save_results(
            lambda results: results | {"evaluations": _merged(results.get("evaluations", []), new)}
        )
    except OSError as error:  # a run that one may only read can be evaluated all the same
        note(f"note: the result is not kept in {str(run.folder)!r}: {error.strerror}")
        return result
    return (
        replace(result, doubts=tuple(Doubt(**doubt) for doubt in new["doubts"]))
        if facts["checked"]
        else result
    )


def _merged(kept: Sequence[dict[str, Any]], new: dict[str, Any]) -> list[dict[str, Any]]:
    """Merge ``new`` by what was measured: weights, members, ball and images; a repeated attack
    replaces the older figure, and what was doubted of the model stays until it is checked again.
    The worst case is over all of them.

    Figures of a classifier that is no longer there, since its members were reweighted, are dropped.
    """
    others = []
    for old in kept:
        if (
            all(old[key] == new[key] for key in ("weights", "members"))
            and old.get("of") != new["of"]
        ):
            continue
        if all(
            old[key] == new[key] for key in ("weights", "members", "eps", "norm", "n")
        ) and same_images(old, new):
            again = {outcome["attack"] for outcome in new["outcomes"]}
            outcomes = [*(o for o in old["outcomes"] if o["attack"] not in again), *new["outcomes"]]
            failed = dict.fromkeys([*old.get("failed", ()), *new["failed"]])
            whole = {outcome["attack"] for outcome in outcomes}
            new["failed"] = [name for name in failed if name not in whole]
            new["outcomes"] = list(_furthest(outcomes, failed))
            if not new["checked"]:
                new |= {"checked": old.get("checked", True), "doubts": old.get("doubts", [])}
        else:
            others.append(old)
    if new["checked"]:
        of_model = [doubt for doubt in new["doubts"] if doubt["check"] not in AMONG_OUTCOMES]
        draws = any(doubt["check"] == "random" for doubt in of_model)
        new["doubts"] = [*of_model, *map(asdict, contradictions(new["outcomes"], draws=draws))]
    new["worst"] = worst_of(new)
    return [*others, new]


def _furthest(
    outcomes: Sequence[dict[str, Any]], failed: Collection[str]
) -> Iterator[dict[str, Any]]:
    """Of several outcomes of an attack that failed once, the one that came furthest."""
    attacks = [attack_of(outcome["attack"], failed) for outcome in outcomes]
    stages = [
        math.inf if outcome["attack"] == attack else len(outcome["stages"])
        for outcome, attack in zip(outcomes, attacks, strict=True)
    ]
    for i, outcome in enumerate(outcomes):
        rivals = [(stages[j], j) for j in range(len(outcomes)) if attacks[j] == attacks[i]]
        if max(rivals) == (stages[i], i):
            yield outcome
