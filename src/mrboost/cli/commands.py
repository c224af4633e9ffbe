"""What each command of the command line does: ``mrboost train | evaluate | join | reweight |
report | study | recipes | data``."""

from __future__ import annotations

import argparse
import importlib
import json
import logging
import os
import shlex
import sys
from itertools import product
from pathlib import Path
from typing import Any, cast

import torch

from mrboost import recipes
from mrboost.devices import end_processes, is_first_process
from mrboost.errors import InputError
from mrboost.evaluation import Evaluation, EvaluationOptions, UnfinishedError
from mrboost.evaluation.result import format_eps
from mrboost.options import OPTIONS, TrainingOptions
from mrboost.progress import note
from mrboost.recipes.config import saved_options
from mrboost.runs import Run, check_kind, slug
from mrboost.runs.compare import curve, curve_table, text_table
from mrboost.runs.evaluate_run import Request, clear, evaluate_run, place_of, reweight_run
from mrboost.runs.join import join
from mrboost.training.boost import boost

from .listings import show_data, show_recipes


def run(options: argparse.Namespace) -> None:
    """Run the command that ``arguments.parse`` read."""
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)  # it reports its processes
    for module in getattr(options, "imports", ()):
        _import(module)
    try:
        COMMANDS[options.command](options)
    except torch.OutOfMemoryError as error:
        raise InputError(
            f"out of memory ({str(error).splitlines()[0]}): lower --batch-size"
        ) from None


def _where(options: argparse.Namespace) -> dict[str, Any]:
    """What the commands that compute have in common."""
    return {
        "device": options.device,
        "data_dir": options.data_dir,
        "verify": options.verify,
        "progress": not options.quiet,
    }


def _training_options(options: argparse.Namespace) -> dict[str, Any]:
    """The options of a training that were given."""
    values = {option.name: getattr(options, option.name, None) for option in OPTIONS}
    return {name: value for name, value in values.items() if value is not None}


# train


def _train(options: argparse.Namespace) -> None:
    given = _training_options(options)
    if options.recipe is None:
        given = _take_from_run(options) | given
    recipe, source = recipes.get(options.recipe), options.data or "digits"
    default = f"{slug(source)}-{recipe.name}-seed{given.get('seed', 0)}"
    out = options.out or Path("runs") / default
    boost(
        recipe,
        source,
        out=out,
        resume=options.resume,
        first=options.first,
        **_where(options),
        **cast(TrainingOptions, given),
    )
    if not is_first_process():
        return
    run = Run.open(out)
    summary = _summary(run)
    if options.json:
        print(json.dumps(summary, indent=2))
        return
    part = run.config["select_on"]
    print(f"trained {recipe.name} on {source}: {out}")
    for row in summary["rounds"]:
        for which in ("best", "last"):
            epoch = row[which]
            print(
                f"  round {row['round']}  {which}: epoch {epoch['epoch']:>3}  {part} clean "
                f"{epoch['clean']:.2%}  pgd-20 {epoch['robust']:.2%}"
            )
    same = shlex.join([str(out), *(f"--import={module}" for module in options.imports)])
    print(f"next: mrboost evaluate {same}  and  mrboost report {same}")


def _take_from_run(options: argparse.Namespace) -> dict[str, Any]:
    """The options that the run in --out was trained with; its recipe and data go into
    ``options``."""
    if not (options.resume and options.out):
        raise InputError(
            "give a RECIPE to train, or --resume with the --out of a run (list: mrboost recipes)"
        )
    config = Run.open(options.out).config
    if "joined" in config:
        raise InputError(
            f"{str(options.out)!r} joins networks that were trained apart: train those, "
            "and join them"
        )
    options.recipe = config["recipe"]["name"]
    options.data = config["data"] if options.data is None else options.data
    options.data_dir = config.get("data_dir") if options.data_dir is None else options.data_dir
    return saved_options(config)


def _summary(run: Run) -> dict[str, Any]:
    """The best and the last epoch of each round."""
    metrics = run.metrics()
    rounds = []
    for round_ in range(1, run.rounds_done() + 1):
        rows = {row["epoch"]: row for row in metrics if row["round"] == round_}
        epochs = run.epochs(round_)
        if missing := set(epochs.values()) - rows.keys():
            raise InputError(
                f"{run.folder / 'metrics.jsonl'} has no line of round {round_}, epoch "
                f"{min(missing)}: restore it from a copy; the weights are there, mrboost evaluate "
                "works"
            )
        rounds.append({"round": round_, **{which: rows[epoch] for which, epoch in epochs.items()}})
    return {"run": str(run.folder), "recipe": run.config["recipe"]["name"], "rounds": rounds}


# evaluate


def _evaluate(options: argparse.Namespace) -> None:
    run = Run.open(options.target)
    kinds, stages = _classifiers(options, run)
    names = [name.strip() for name in options.attack.split(",")]
    place = _place(options, run, names, kinds, stages)
    documents: list[dict[str, Any]] = []
    curves: list[dict[str, Any]] = []
    problems: list[str] = []
    several = len(kinds) * len(stages) * len(options.eps) > 1
    for which, rounds in product(kinds, stages):
        classifier = {"weights": which, "members": rounds}
        found: list[dict[str, Any]] = []
        for eps in options.eps:
            request = Request(which, rounds, options.n, eps, options.norm, options.adaptive)
            keep = place / (f"{eps:g}" if len(options.eps) > 1 else "")
            result, problem = _evaluate_one(options, run, names, request, keep)
            found.append(classifier | result.to_dict())
            if problem and several:
                of = f"{which} weights, members: {rounds}, eps = {format_eps(result.eps or 0)}: "
                problem = of + problem
            problems += [problem] if problem else []
            if not options.json and is_first_process():
                print(f"{options.target}, {_described(run, which, rounds)}: {result}")
        documents += found
        if len(options.eps) > 1:
            curves.append(classifier | {"points": curve(found)})
            if not options.json and is_first_process():
                print("\n" + curve_table(curves[-1]["points"]))
    end_processes()
    if not is_first_process():
        return
    if options.json:
        document: dict[str, Any] = {"run": options.target, "evaluations": documents}
        print(json.dumps(document | ({"curves": curves} if curves else {}), indent=2))
    if problems:
        some = any(document["outcomes"] for document in documents)
        raise InputError("; ".join([*problems, *(["all else was measured"] if some else [])]))
    clear(place)


def _place(
    options: argparse.Namespace, run: Run, names: list[str], kinds: list[str], stages: list[int]
) -> Path:
    """Where this evaluation keeps what it has finished; with --resume, it says whether there is
    something."""
    asked = {
        "attack": names,
        "adaptive": options.adaptive,
        "n": options.n,
        "eps": [run.config["eps"] if eps is None else eps for eps in options.eps],
        "norm": options.norm or run.config["norm"],
    }
    place = place_of(run, kinds, stages, asked, os.environ.get("WORLD_SIZE"))
    if options.resume and not options.quiet and is_first_process():
        if any(place.rglob("*.safetensors")):
            note(f"mrboost: goes on with what is saved in {place}")
        else:
            note("mrboost: nothing is saved of this evaluation, it starts anew")
    return place


def _described(run: Run, which: str, rounds: int) -> str:
    """The classifier in words."""
    members = run.rounds_done()
    if members < 2:
        return f"{which} weights"
    some = f"the first {rounds} of " if rounds < members else ""
    return f"{which} weights of {some}{members} members"


def _evaluate_one(
    options: argparse.Namespace, run: Run, names: list[str], request: Request, keep: Path
) -> tuple[Evaluation, str]:
    """What was found of one classifier in one ball, and what failed, if something did."""
    how = EvaluationOptions(
        batch_size=options.batch_size,
        progress=not options.quiet,
        check=options.check,
        keep=keep,
        resume=options.resume,
        examples=None if options.examples is None else Path(options.examples),
    )
    try:
        found = evaluate_run(
            run,
            names,
            request,
            how,
            device=options.device,
            data_dir=options.data_dir,
            verify=options.verify,
        )
    except UnfinishedError as error:
        return error.evaluation, str(error)
    return found, ""


def _classifiers(options: argparse.Namespace, run: Run) -> tuple[list[str], list[int]]:
    """Which weights and how many members are asked for."""
    kinds = list(dict.fromkeys(options.weights.split(",")))
    for which in kinds:
        check_kind(which)
    if options.staged and options.rounds is not None:
        raise InputError("--staged is after each round and --rounds after one: give one of them")
    members, planned = run.rounds_done(), run.config["rounds"]
    last = max(1, members)  # of none, the first is said to be missing
    stages = [last if options.rounds is None else options.rounds]
    if options.staged:
        stages = list(range(1, last + 1))
    if options.examples and len(kinds) * len(stages) * len(options.eps) > 1:
        raise InputError(
            "--examples holds those of one classifier and ball: leave out --staged, give one "
            "of --weights and --eps"
        )
    if 0 < members < planned and is_first_process():
        note(f"note: {members} of {planned} rounds are finished, mrboost train --resume goes on")
    return kinds, stages


def _join(options: argparse.Namespace) -> None:
    members = len(join(options.targets, options.out))
    if options.json:
        print(json.dumps({"run": str(options.out), "members": members}, indent=2))
    else:
        print(f"joined {members} networks: {options.out}")
        print(f"next: mrboost evaluate {shlex.quote(str(options.out))} --staged")


def _reweight(options: argparse.Namespace) -> None:
    weights = reweight_run(
        options.target, objective=options.objective, which=options.weights, **_where(options)
    )
    if options.json:
        print(json.dumps({"run": options.target, "weights": weights}, indent=2))
    else:
        print(f"{options.target}: weights {', '.join(f'{weight:.3f}' for weight in weights)}")
        print(
            "earlier figures of all members are not of these weights: mrboost evaluate "
            "measures them"
        )


# report


def _report(options: argparse.Namespace) -> None:
    from mrboost.report import write_report  # matplotlib takes a second that no other command needs

    out = options.out or Path(options.targets[0]) / "report.html"
    path = write_report(
        options.targets,
        out,
        n=options.n,
        attack=options.attack,
        plots_dir=options.plots,
        **_where(options),
    )
    print(
        json.dumps({"report": str(path)})
        if options.json
        else f"{text_table(options.targets)}\nreport: {path}"
    )


# study


def _study(options: argparse.Namespace) -> None:
    from mrboost import studies

    if options.list:
        print(json.dumps(list(studies.STUDIES)) if options.json else studies.listing())
        return
    if options.name is None:
        raise InputError("give the NAME of a study (list: mrboost study --list)")
    scale = studies.get_scale(options.scale)
    request = studies.Request(
        studies.get(options.name),
        scale,
        options.out or Path("studies") / scale.name,
        tuple(options.data),
        tuple(options.seeds),
        options.n,
        tuple(options.also),
        _training_options(options),
    )
    trainings = request.trainings()
    chosen = studies.choose(trainings, options.only, options.part)
    for training in chosen if options.part else trainings:
        training.run()  # refuses, before any training, a run of another configuration
    found: dict[str, Any] = {
        "study": request.study.name,
        "scale": scale.name,
        "runs": [str(training.folder) for training in chosen],
    }
    if options.plan:
        text = studies.describe_plan(chosen)
        found["commands"] = [training.command() for training in chosen]
    else:
        studies.carry_out(chosen, **_where(options))
        text = (
            f"{len(chosen)} trainings done: gather {request.out / 'runs'} of all parts, then the "
            "command without --part"
        )
        if options.part is None:
            page = studies.compose(request, shlex.join(["mrboost", *options.arguments]))
            markdown, html = page.write(request.out, request.study.name)
            found |= {"markdown": str(markdown), "html": str(html)}
            text = f"{markdown.read_text('utf-8')}\npages: {markdown} and {html}"
    print(json.dumps(found, indent=2) if options.json else text)


def _import(module: str) -> None:
    """Import a module of the user's by its name, from the current folder, or by its path."""
    path = Path(module.removesuffix(".py"))
    name = path.name.lstrip(".")
    sys.path.insert(0, str(Path.cwd() / path.parent))
    try:
        importlib.import_module(name)
    except (ImportError, ValueError) as error:
        raise InputError(
            f"cannot import {module!r} ({error}): run from the folder of {name}.py"
        ) from None
    finally:
        sys.path.pop(0)


COMMANDS = {
    "train": _train,
    "evaluate": _evaluate,
    "join": _join,
    "reweight": _reweight,
    "report": _report,
    "study": _study,
    "recipes": show_recipes,
    "data": show_data,
}
