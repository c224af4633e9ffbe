"""What each command of the command line does: ``mrboost train | evaluate | compare | predict |
report | join | reweight | soup | export | study | recipes | data``."""

from __future__ import annotations

import json
import logging
import os
import shlex
from argparse import Namespace
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, cast

from mrboost import data as datasets
from mrboost import models, recipes
from mrboost.data import Dataset
from mrboost.data.folder import FOLDER, Pictures
from mrboost.devices import end_processes, is_first_process, is_out_of_memory
from mrboost.errors import InputError
from mrboost.evaluation import EvaluationOptions
from mrboost.evaluation.inputs import TimeBudget
from mrboost.evaluation.page import has_autoattack
from mrboost.evaluation.result import format_eps
from mrboost.models.source import import_module, is_alias
from mrboost.options import OPTIONS, TrainingOptions
from mrboost.progress import COLUMNS, folded, note
from mrboost.recipes.config import saved_options, unregistered
from mrboost.runs import Run, check_kind, slug
from mrboost.runs.card import Card, check_place, make_card, write_card
from mrboost.runs.compare import SideBySide, curve, curve_table, opened, text_table
from mrboost.runs.evaluate_run import (
    Evaluated,
    Request,
    clear,
    evaluate_radii,
    place_of,
)
from mrboost.runs.export import export
from mrboost.runs.folder import GivenModel, open_classifier
from mrboost.runs.given import given_model
from mrboost.runs.join import join
from mrboost.runs.predict import predict
from mrboost.runs.reweight import reweight_run
from mrboost.runs.verify import verify
from mrboost.training.boost import boost
from mrboost.training.soup import soup

from .arguments import DEFAULT_ATTACKS
from .listings import show_data, show_recipes

Classifiers = list[tuple[str, int]]
"""Which weights, and how many members."""


def run(options: Namespace) -> None:
    """Run the command that ``arguments.parse`` read."""
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)  # it reports its processes
    for module in getattr(options, "imports", ()):
        (models.add if ":" in module else import_module)(module)
    _import_model(options, getattr(options, "model", None) or "")
    try:
        COMMANDS[options.command](options)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        reason = (str(error).splitlines() or ["no more to be had"])[0]
        raise InputError(f"out of memory ({reason:.300}): lower --batch-size") from None


def _where(options: Namespace) -> dict[str, Any]:
    """What the commands that compute have in common."""
    common = {name: getattr(options, name) for name in ("device", "data_dir", "verify")}
    return common | {"progress": not options.quiet}


def _training_options(options: Namespace) -> dict[str, Any]:
    """The options of a training that were given."""
    values = {option.name: getattr(options, option.name, None) for option in OPTIONS}
    return {name: value for name, value in values.items() if value is not None}


def _source(options: Namespace, name: str) -> str:
    """The name of the data with what the command says of a folder's images."""
    given = {key: getattr(options, key) for key in ("size", "test_share", "background")}
    given = {key: value for key, value in given.items() if value is not None}
    if given and not name.startswith(FOLDER):
        raise InputError(f"{min(given)} is for images of a folder:PATH, not {name}: leave it out")
    return str(replace(Pictures.named(name), **given)) if given else name


def _show(options: Namespace, document: object, text: str) -> None:
    """Print what a command found: with ``--json`` as one document."""
    if options.json or text:
        print(json.dumps(document, indent=2) if options.json else text)


def _train(options: Namespace) -> None:
    given = _training_options(options)
    kept = None
    if options.recipe is None:
        given, kept = _take_from_run(options, given)
    recipe = recipes.get(options.recipe)
    source = _source(options, options.data or "digits")
    default = f"{slug(source)}-{recipe.name}-seed{given.get('seed', 0)}"
    out = options.out or Path("runs") / default
    how = {"out": out, "resume": options.resume, "first": options.first, **_where(options)}
    data: str | Dataset = source
    if kept is not None:  # a stranger's run may name any folder: nothing is fetched into it
        how["data_dir"] = kept
        data = datasets.load(source, kept, download=False, verify=options.verify)
    boost(recipe, data, **how, **cast(TrainingOptions, given))
    if not is_first_process():
        return
    run = Run.open(out)
    rounds = run.chosen()
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
    lines += _proposals(options, f"evaluate {same}", f"report {same}")
    summary = {"run": str(out), "recipe": run.config["recipe"]["name"], "rounds": rounds}
    _show(options, summary, "\n".join(lines))


def _take_from_run(options: Namespace, given: dict[str, Any]) -> tuple[dict[str, Any], str | None]:
    """The options that the run in --out was trained with, with those that are given, and the folder
    of its data if none is; its recipe and data go into ``options``."""
    if not (options.resume and options.out):
        raise InputError("give a RECIPE (list: mrboost recipes), or --resume with --out of a run")
    config = Run.open(options.out).config
    if "joined" in config:
        raise InputError(f"{str(options.out)!r} joins networks: train each of them, and join again")
    options.recipe = config["recipe"]["name"]
    options.data = config["data"] if options.data is None else options.data
    if missing := unregistered(config):
        raise InputError(
            f"{str(options.out)!r} was trained with {missing}, which is not registered here: add "
            "--import MODULE, of the module that registers it"
        )
    kept = config.get("data_dir") if options.data_dir is None else None
    return saved_options(config) | given, kept


def _evaluate(options: Namespace) -> None:
    if options.verify_card is not None:
        _verify(options)
        return
    if options.seed is not None:
        raise InputError("--seed draws the images of --verify CARD: leave it out, or name a card")
    if options.card:
        check_place(options.card)
    run, dataset = _target(options)
    classifiers = _classifiers(options, run)
    usual = "autoattack" if options.time_budget else DEFAULT_ATTACKS
    names = [name.strip() for name in (options.attack or usual).split(",")]
    place = _place(options, run, names, classifiers)
    how, where = _how(options, place), _where(options)
    del where["progress"]
    shown = is_first_process() and not options.json
    document: dict[str, Any] = {"run": str(run.folder), "evaluations": []}
    problems: list[str] = []
    for which, rounds in classifiers:
        classifier = {"weights": which, "members": rounds}
        described = "as it is" if which == "given" else f"{which} weights"
        if run.rounds_done() > 1:
            described += f", {rounds} of {run.rounds_done()} members"
        found: list[dict[str, Any]] = []
        request = Request(which, rounds, options.n, None, options.norm, options.adaptive)
        results = evaluate_radii(run, names, options.eps, request, how, dataset=dataset, **where)
        for eps, one in zip(options.eps, results, strict=True):
            if one.problem:
                radius = run.config["eps"] if eps is None else eps
                problems.append(f"{described}, eps = {radius:g}: {one.problem}")
            found.append(classifier | one.evaluation.to_dict())
            if shown:
                facts, _, table = str(one.evaluation).partition("\n")
                print(folded(f"{options.target}, {described}: {facts}"), table, sep="\n")
            if options.card and not one.problem and is_first_process():
                document["card"] = _write_card(one, options)
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
    same, commands = _same(run, options), []
    own_ball = given or (options.eps == [None] and options.norm is None)
    # A model that only answers is none for AutoAttack
    may = own_ball and not (given and isinstance(run.classifier(), models.BlackBox))
    if may and not any(map(has_autoattack, run.results.get("evaluations", ()))):
        commands.append(f"evaluate {same} --attack autoattack")
    kept = [f"kept in {run.folder}"] if given else []
    return [*kept, *_proposals(options, *commands, f"report {same}")]


def _proposals(options: Namespace, *commands: str) -> list[str]:
    """Commands to type next, which --quiet leaves out; on several lines where one is longer."""
    lines = [] if options.quiet else [f"next: mrboost {command}" for command in commands]
    return [line if len(line) <= COLUMNS else line.replace(" --", " \\\n  --") for line in lines]


def _how(options: Namespace, place: Path | None) -> EvaluationOptions:
    """How it is evaluated; what is finished is kept in ``place``."""
    budget = TimeBudget(options.time_budget) if options.time_budget else None
    return EvaluationOptions(
        batch_size=options.batch_size,
        progress=not options.quiet,
        check=options.check,
        keep=None if budget else place,
        resume=options.resume,
        examples=options.examples,
        time_budget=budget,
    )


def _write_card(found: Evaluated, options: Namespace) -> list[str]:
    command = shlex.join(["mrboost", *options.arguments])
    paths = [str(path) for path in write_card(make_card(found, command), options.card)]
    if not options.json:
        print(f"card: {' and '.join(paths)}; what only the authors know is empty in it")
    return paths


def _verify(options: Namespace) -> None:
    """Measure some images of a card again; an error where it does not hold."""
    of_card = "attack norm adaptive rounds staged card examples resume time_budget eps"
    _refuse(options, of_card, "comes from the card with --verify: leave it out")
    card = Card.read(options.verify_card)
    ball = card.config["evaluation"]
    options.eps, options.norm = [ball["eps"]], ball["norm"]
    run, dataset = _target(options)
    how, where = _how(options, None), _where(options)
    del where["progress"]
    found = verify(card, run, options.n, options.seed, how, dataset=dataset, **where)
    _show(options, {"card": str(options.verify_card)} | found.to_dict(), str(found))
    if problems := found.problems:
        raise InputError(f"{options.verify_card} does not hold: {'; '.join(problems)}")


def _refuse(options: Namespace, names: str, why: str) -> None:
    """Refuse the first of these options that was given."""
    for name in names.split():
        if getattr(options, name) not in (None, False, [None]):
            raise InputError(f"--{name.replace('_', '-')} {why}")


def _compare(options: Namespace) -> None:
    table = SideBySide.of(opened(options.targets))
    _show(options, table.to_dict(), text_table(options.targets))


def _target(options: Namespace) -> tuple[Run, Dataset | None]:
    """The run that is evaluated, or the folder of a model's evaluations, with its data."""
    name = options.target
    if Path(name).is_file():
        asked = options.data_dir
        model = _of_one_network(options)  # which may name any folder: nothing is fetched into it
        return _given(options, model, download=options.data_dir == asked)
    is_run = (Path(name) / "config.json").exists() or not (":" in name or name in models.names())
    if is_run:
        why = f"is for a model, and {name!r} is a run: leave it out"
        _refuse(options, "data out normalize surrogate", why)
        return Run.open(name), None
    if options.data is None:
        raise InputError(f"give --data NAME or folder:PATH: the images to evaluate {name} on")
    _import_model(options, name)  # never what a file alone names
    _import_model(options, options.surrogate or "")
    return _given(options, name)


def _of_one_network(options: Namespace) -> str:
    """The model that the file of one network of a run names; what it was trained on and for is
    evaluated unless the options say otherwise."""
    config = open_classifier(options.target).config
    why = f"is for a model, and {options.target!r} has its own: leave it out"
    _refuse(options, "weights normalize", why)
    options.weights = options.target
    options.data_dir = options.data_dir or config.get("data_dir")
    options.data = options.data or config["data"]
    path = Path(options.target).absolute()
    run = path.parents[1] if path.parent.name == "members" else path.parent
    usual = slug(f"{slug(options.data)}-{run.name}-{path.stem}")
    options.out = options.out or Path("evaluations") / usual
    if options.norm in (None, config["norm"]):
        options.norm = config["norm"]
        options.eps = [config["eps"] if eps is None else eps for eps in options.eps]
    return str(config["model"])


def _given(options: Namespace, name: str, *, download: bool = True) -> tuple[GivenModel, Dataset]:
    """A folder for the evaluations of a model."""
    how = {"download": download, "verify": options.verify}
    dataset = datasets.load(options.data, options.data_dir, **how)
    radii = [eps for eps in options.eps if eps is not None]
    weights = Path(options.weights).stem if options.weights else ""
    usual = "-".join(
        slug(part.replace(".py:", ":"))
        for part in (options.data, name, weights, options.surrogate)
        if part
    )
    given = given_model(
        name,
        dataset,
        options.out or Path("evaluations") / usual,
        weights=options.weights,
        normalize=options.normalize,
        surrogate=options.surrogate,
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
    told = options.quiet or options.time_budget or not is_first_process()
    if options.resume and not told:
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
    if len(kinds) * len(stages) * len(options.eps) > 1:
        why = "is for one classifier in one ball: give one of --weights and --eps"
        _refuse(options, "examples card time_budget", why)
    if 0 < members < planned and is_first_process():
        note(f"note: {members} of {planned} rounds are finished, mrboost train --resume goes on")
    return list(product(kinds, stages))


def _join(options: Namespace) -> None:
    members = len(join(options.targets, options.out, newest=options.newest))
    following = _proposals(options, f"evaluate {shlex.quote(str(options.out))} --staged")
    text = "\n".join([f"joined {members} networks: {options.out}", *following])
    _show(options, {"run": str(options.out), "members": members}, text)


def _soup(options: Namespace) -> None:
    found = soup(options.target, options.out, which=options.weights, **_where(options))
    following = _proposals(options, f"evaluate {shlex.quote(str(options.out))}")
    _show(options, found.to_dict(), "\n".join([str(found), *following]))


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


def _export(options: Namespace) -> None:
    where = {"data_dir": options.data_dir, "verify": options.verify}
    found = export(
        options.target,
        options.to,
        which=options.weights,
        rounds=options.rounds,
        progress=not options.quiet,
        **where,
    )
    _show(options, found.to_dict(), str(found))


def _predict(options: Namespace) -> None:
    found = predict(
        options.target,
        options.images,
        attack=options.attack.split(",") if options.attack else (),
        eps=options.eps,
        norm=options.norm,
        which=options.weights,
        rounds=options.rounds,
        device=options.device,
        progress=not options.quiet,
    )
    _show(options, found.to_dict(), str(found))
    found.check()


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


def _data(options: Namespace) -> None:
    options.name = options.name and _source(options, options.name)
    show_data(options)


def _import_model(options: Namespace, name: str) -> None:
    """Import a model that is named as ``file.py:function``, here and in commands to come."""
    if ":" in name and not is_alias(name):
        models.add(name)
        options.imports = [*options.imports, name]


COMMANDS = {
    "train": _train,
    "evaluate": _evaluate,
    "compare": _compare,
    "predict": _predict,
    "join": _join,
    "reweight": _reweight,
    "report": _report,
    "soup": _soup,
    "export": _export,
    "study": _study,
    "recipes": show_recipes,
    "data": _data,
}
