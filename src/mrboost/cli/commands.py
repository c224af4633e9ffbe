"""What each command of the command line does: ``mrboost train | evaluate | join | reweight |
report | study | recipes | data``."""

from __future__ import annotations

import json
import logging
import os
import shlex
from argparse import Namespace
from itertools import product
from pathlib import Path
from typing import Any, cast

import torch

from mrboost import data as datasets
from mrboost import models, recipes
from mrboost.data import Dataset
from mrboost.devices import end_processes, is_first_process
from mrboost.errors import InputError
from mrboost.evaluation import EvaluationOptions, UnfinishedError
from mrboost.evaluation.page import has_autoattack
from mrboost.evaluation.result import format_eps
from mrboost.models.source import import_module, is_alias
from mrboost.options import OPTIONS, TrainingOptions
from mrboost.progress import COLUMNS, folded, note
from mrboost.recipes.config import saved_options, unregistered
from mrboost.runs import Run, check_kind, slug
from mrboost.runs.compare import curve, curve_table, text_table
from mrboost.runs.evaluate_run import Request, clear, evaluate_run, place_of, reweight_run
from mrboost.runs.folder import GivenModel
from mrboost.runs.given import given_model
from mrboost.runs.join import join
from mrboost.training.boost import boost

from .listings import show_data, show_recipes, source_of

Classifiers = list[tuple[str, int]]
"""Which weights, and how many members."""


def run(options: Namespace) -> None:
    """Run the command that ``arguments.parse`` read."""
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)  # it reports its processes
    for module in getattr(options, "imports", ()):
        _import(module)
    _import_model(options, getattr(options, "model", None) or "")
    try:
        COMMANDS[options.command](options)
    except torch.OutOfMemoryError as error:
        problem = f"out of memory ({str(error).splitlines()[0]})"
        raise InputError(f"{problem}: lower --batch-size") from None


def _where(options: Namespace) -> dict[str, Any]:
    """What the commands that compute have in common."""
    common = {name: getattr(options, name) for name in ("device", "data_dir", "verify")}
    return common | {"progress": not options.quiet}


def _training_options(options: Namespace) -> dict[str, Any]:
    """The options of a training that were given."""
    values = {option.name: getattr(options, option.name, None) for option in OPTIONS}
    return {name: value for name, value in values.items() if value is not None}


def _show(options: Namespace, document: object, text: str) -> None:
    """Print what a command found: with ``--json`` as one document."""
    print(json.dumps(document, indent=2) if options.json else text)


def _train(options: Namespace) -> None:
    given = _training_options(options)
    if options.recipe is None:
        given = _take_from_run(options) | given
    recipe = recipes.get(options.recipe)
    source = source_of(options, options.data or "digits")
    default = f"{slug(source)}-{recipe.name}-seed{given.get('seed', 0)}"
    out = options.out or Path("runs") / default
    how = {"out": out, "resume": options.resume, "first": options.first, **_where(options)}
    boost(recipe, source, **how, **cast(TrainingOptions, given))
    if not is_first_process():
        return
    run = Run.open(out)
    rounds = _rounds(run)
    lines = [folded(f"trained {recipe.name} on {source}: {out}", 2)]
    for row, which in product(rounds, ("best", "last")):
        epoch = row[which]
        if which == "last" and epoch == row["best"]:
            continue
        name = "kept" if which == "best" else which
        found = f"clean {epoch['clean']:.2%}  pgd-20 {epoch['robust']:.2%}"
        place = f"  round {row['round']}  {name}: epoch {epoch['epoch']:>3}"
        lines.append(f"{place}  {run.config['select_on']} {found}")
    same = _same(run, options)
    lines += [_proposal(f"{command} {same}") for command in ("evaluate", "report")]
    summary = {"run": str(out), "recipe": run.config["recipe"]["name"], "rounds": rounds}
    _show(options, summary, "\n".join(lines))


def _take_from_run(options: Namespace) -> dict[str, Any]:
    """The options that the run in --out was trained with; its recipe and data go into
    ``options``."""
    if not (options.resume and options.out):
        raise InputError("give a RECIPE (list: mrboost recipes), or --resume with --out of a run")
    config = Run.open(options.out).config
    if "joined" in config:
        raise InputError(f"{str(options.out)!r} joins networks: train each of them, and join again")
    options.recipe = config["recipe"]["name"]
    options.data = config["data"] if options.data is None else options.data
    options.data_dir = config.get("data_dir") if options.data_dir is None else options.data_dir
    if missing := unregistered(config):
        raise InputError(
            f"{str(options.out)!r} was trained with {missing}, which is not registered here: add "
            "--import MODULE, of the module that registers it"
        )
    return saved_options(config)


def _rounds(run: Run) -> list[dict[str, Any]]:
    """The best and the last epoch of each round."""
    metrics = run.metrics()
    rounds = []
    for round_ in range(1, run.rounds_done() + 1):
        rows = {row["epoch"]: row for row in metrics if row["round"] == round_}
        epochs = run.epochs(round_)
        if missing := set(epochs.values()) - rows.keys():
            problem = f"metrics.jsonl has no line of round {round_}, epoch {min(missing)}"
            raise InputError(f"{run.folder}: {problem}: restore it from a copy")
        rounds.append({"round": round_, **{which: rows[epoch] for which, epoch in epochs.items()}})
    return rounds


def _evaluate(options: Namespace) -> None:
    run, dataset = _target(options)
    classifiers = _classifiers(options, run)
    names = [name.strip() for name in options.attack.split(",")]
    place = _place(options, run, names, classifiers)
    where = _where(options)
    progress = where.pop("progress")
    shown = is_first_process() and not options.json
    document: dict[str, Any] = {"run": str(run.folder), "evaluations": []}
    problems: list[str] = []
    for which, rounds in classifiers:
        classifier = {"weights": which, "members": rounds}
        described = "as it is" if which == "given" else f"{which} weights"
        if run.rounds_done() > 1:
            described += f", {rounds} of {run.rounds_done()} members"
        found: list[dict[str, Any]] = []
        for number, eps in enumerate(options.eps):
            request = Request(which, rounds, options.n, eps, options.norm, options.adaptive)
            how = EvaluationOptions(
                batch_size=options.batch_size,
                progress=progress,
                check=options.check,
                keep=place / str(number),
                resume=options.resume,
                examples=options.examples,
            )
            try:
                result = evaluate_run(run, names, request, how, dataset=dataset, **where)
            except UnfinishedError as error:
                result = error.evaluation
                radius = run.config["eps"] if eps is None else eps
                problems.append(f"{described}, eps = {radius:g}: {error}")
            found.append(classifier | result.to_dict())
            if shown:
                facts, _, table = str(result).partition("\n")
                print(folded(f"{options.target}, {described}: {facts}"), table, sep="\n")
        document["evaluations"] += found
        if len(options.eps) > 1:
            points = curve(found)
            document.setdefault("curves", []).append(classifier | {"points": points})
            if shown:
                print("\n" + curve_table(points))
    end_processes()
    if not is_first_process():
        return
    if options.json:
        print(json.dumps(document, indent=2))
    if problems:
        if any(evaluation["outcomes"] for evaluation in document["evaluations"]):
            problems.append("all else was measured")
        raise InputError("; ".join(problems))
    clear(place)
    if shown:
        for line in _next_steps(run, options):
            print(line)


def _next_steps(run: Run, options: Namespace) -> list[str]:
    """Where the figures are, and what to do next: AutoAttack where it is still to come."""
    given = isinstance(run, GivenModel)
    if options.quiet and not given:
        return []
    same, steps = _same(run, options), [f"kept in {run.folder}"] if given else []
    own_ball = given or (options.eps == [None] and options.norm is None)
    if own_ball and not any(map(has_autoattack, run.results.get("evaluations", ()))):
        steps.append(_proposal(f"evaluate {same} --attack autoattack"))
    return [*steps, _proposal(f"report {same}")]


def _proposal(command: str) -> str:
    """A command to type next; on several lines where it is longer than one."""
    line = f"next: mrboost {command}"
    return line if len(line) <= COLUMNS else line.replace(" --", " \\\n  --")


def _target(options: Namespace) -> tuple[Run, Dataset | None]:
    """The run that is evaluated, or the folder of a model's evaluations, with its data."""
    name = options.target
    is_run = (Path(name) / "config.json").exists() or not (":" in name or name in models.names())
    of_models = {"--data": options.data, "--out": options.out, "--normalize": options.normalize}
    if is_run:
        for option, value in of_models.items():
            if value is not None:
                raise InputError(f"{option} is for a model, and {name!r} is a run: leave it out")
        return Run.open(name), None
    if options.data is None:
        raise InputError(f"give --data NAME or folder:PATH: the images to evaluate {name} on")
    _import_model(options, name)
    dataset = datasets.load(options.data, options.data_dir, verify=options.verify)
    radii = [eps for eps in options.eps if eps is not None]
    weights = Path(options.weights).stem if options.weights else ""
    usual = "-".join(
        slug(part) for part in (options.data, name.replace(".py:", ":"), weights) if part
    )
    given = given_model(
        name,
        dataset,
        options.out or Path("evaluations") / usual,
        weights=options.weights,
        normalize=options.normalize,
        eps=max(radii, default=None),
        norm=options.norm or "Linf",
        data_dir=options.data_dir,
    )
    if not radii and not options.quiet and is_first_process():
        note(f"mrboost: eps = {format_eps(given.config['eps'])}, the usual one for {options.data}")
    return given, dataset


def _same(run: Run, options: Namespace) -> str:
    """The run and what to import for it, as another command takes them."""
    return shlex.join([str(run.folder), *(f"--import={module}" for module in options.imports)])


def _place(options: Namespace, run: Run, names: list[str], classifiers: Classifiers) -> Path:
    """Where this evaluation keeps what it has finished; with --resume, it says whether there is
    something."""
    radii = [run.config["eps"] if eps is None else eps for eps in options.eps]
    ball = (radii, options.norm or run.config["norm"])
    processes = os.environ.get("WORLD_SIZE")
    place = place_of(run, classifiers, names, options.adaptive, options.n, ball, processes)
    if options.resume and not options.quiet and is_first_process():
        saved = "nothing is saved of this evaluation, it starts anew"
        if any(place.rglob("*.safetensors")):
            saved = f"goes on with what is saved in {place}"
        note(f"mrboost: {saved}")
    return place


def _classifiers(options: Namespace, run: Run) -> Classifiers:
    """Which weights, and how many members, are asked for."""
    if isinstance(run, GivenModel):
        kinds = ["given"]
    else:
        kinds = list(dict.fromkeys((options.weights or "best").split(",")))
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
        raise InputError("--examples are those of one classifier: give one of --weights and --eps")
    if 0 < members < planned and is_first_process():
        note(f"note: {members} of {planned} rounds are finished, mrboost train --resume goes on")
    return list(product(kinds, stages))


def _join(options: Namespace) -> None:
    members = len(join(options.targets, options.out))
    following = f"next: mrboost evaluate {shlex.quote(str(options.out))} --staged"
    text = f"joined {members} networks: {options.out}\n{following}"
    _show(options, {"run": str(options.out), "members": members}, text)


def _reweight(options: Namespace) -> None:
    how = {"objective": options.objective, "which": options.weights, **_where(options)}
    weights = reweight_run(options.target, **how)
    text = f"{options.target}: weights {', '.join(f'{weight:.3f}' for weight in weights)}"
    advice = "earlier figures are not of these weights: mrboost evaluate measures them"
    _show(options, {"run": options.target, "weights": weights}, f"{text}\n{advice}")


def _report(options: Namespace) -> None:
    from mrboost.report import write_report  # matplotlib takes a second that no other command needs

    out = options.out or Path(options.targets[0]) / "report.html"
    how = {"n": options.n, "attack": options.attack, "plots_dir": options.plots}
    path = write_report(options.targets, out, **how, **_where(options))
    _show(options, {"report": str(path)}, f"{text_table(options.targets)}\nreport: {path}")


def _study(options: Namespace) -> None:
    from mrboost import studies

    if options.list:
        _show(options, list(studies.STUDIES), studies.listing())
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
    folders = [str(training.folder) for training in chosen]
    found: dict[str, Any] = {"study": options.name, "scale": scale.name, "runs": folders}
    if options.plan:
        found["commands"] = [training.command() for training in chosen]
        _show(options, found, studies.describe_plan(chosen))
        return
    studies.carry_out(chosen, **_where(options))
    advice = f"gather {request.out / 'runs'} of all parts, then the command without --part"
    text = f"{len(chosen)} trainings done: {advice}"
    if options.part is None:
        command = shlex.join(["mrboost", *options.arguments])
        markdown, html = studies.write_page(request, command)
        found |= {"markdown": str(markdown), "html": str(html)}
        text = f"{markdown.read_text('utf-8')}\npages: {markdown} and {html}"
    _show(options, found, text)


def _import_model(options: Namespace, name: str) -> None:
    """Import a model that is named as ``file.py:function``, here and in commands to come."""
    if ":" in name and not is_alias(name):
        models.add(name)
        options.imports = [*options.imports, name]


def _import(module: str) -> None:
    """Import a module of the user's by its name or path; of ``file.py:function`` the function is
    a model then."""
    if ":" in module:
        models.add(module)
    else:
        import_module(module)


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
