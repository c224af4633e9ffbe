"""The command line: ``mrboost train | evaluate | report | recipes | data``.

Every mistake of the user ends in one line on standard error and exit status 2. argparse rather than a CLI generator,
because only its ``error`` can be made to say one line.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import io
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, cast

import torch

from . import __version__, data, models, recipes
from .attacks.named import EXAMPLES
from .boosting import boost
from .config import Options, describe_parts
from .errors import InputError, unknown_name
from .evaluation import DEFAULT_ATTACKS, format_eps
from .results import evaluate_run
from .runs import Run, check_kind
from .schedules import SCHEDULES


class _Parser(argparse.ArgumentParser):
    """argparse with one-line errors that suggest what was meant."""

    def error(self, message: str) -> NoReturn:
        if "invalid choice" in message and self._subparsers is not None:
            chosen, names = message.split("'")[1], self._subparsers._group_actions[0].choices or ()
            raise unknown_name("command", chosen, names, hint=f"see {self.prog} --help")
        raise InputError(f"{message} (see {self.prog} --help)")

    def suggest(self, unknown: str) -> str:
        options = [option for action in self._actions for option in action.option_strings]
        close = difflib.get_close_matches(unknown.split("=")[0], options, n=1)
        return f"unknown argument {unknown!r}" + (f": did you mean {close[0]}?" if close else "")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the exit status is 0, 2 for the user's mistakes, 130 after Ctrl-C."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that knows ASCII alone still gets its table
    try:
        options = _parse(arguments)
        for module in getattr(options, "imports", ()):
            _import(module)
        options.run(options)
    except BrokenPipeError:  # the reader, head say, has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (InputError, OSError) as error:
        print(f"mrboost: error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except torch.OutOfMemoryError as error:
        print(f"mrboost: error: out of memory ({str(error).splitlines()[0]}): lower --batch-size", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nmrboost: interrupted; whole epochs are kept, --resume goes on from there", file=sys.stderr)
        return 130
    return 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser, commands = _build()
    options, unknown = parser.parse_known_args(arguments)
    if unknown:
        command = commands[options.command]
        raise InputError(f"{command.suggest(unknown[0])} (see {command.prog} --help)")
    return options


def _build() -> tuple[_Parser, dict[str, _Parser]]:
    parser = _Parser(
        prog="mrboost",
        description="Train classifiers that withstand adversarial inputs, measure how well they do, and report it.",
        epilog="A first try, two minutes on a laptop: mrboost train at-mce --data digits, then evaluate and report "
        "the folder that it names.",
    )
    parser.add_argument("--version", action="version", version=f"mrboost {__version__}")
    sub = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=_Parser)
    commands = {}
    for add in (_train_command, _evaluate_command, _report_command, _recipes_command, _data_command):
        command = add(sub)
        commands[command.prog.split()[-1]] = command
    return parser, commands


# train


def _train_command(sub: Any) -> _Parser:
    p = _command(
        sub,
        "train",
        _train,
        "Train a recipe on a dataset. The run folder is crash-safe: the same command with --resume goes on.",
    )
    p.add_argument("recipe", nargs="?", metavar="RECIPE", help="one of: mrboost recipes; optional with --resume")
    p.add_argument("--data", metavar="NAME", help=f"{', '.join(data.names())} or folder:PATH (default: digits)")
    p.add_argument("--model", metavar="NAME", help=f"{', '.join(models.names())} (default: the data's usual one)")
    p.add_argument("--rounds", type=int, metavar="T", help="boosting rounds (default: 1)")
    p.add_argument("--epochs", type=int, metavar="E", help="epochs of each round (default: the data's usual number)")
    p.add_argument("--eps", type=_fraction, metavar="X", help="radius of the ball, like 0.1 or 8/255")
    p.add_argument("--norm", metavar="NORM", help="Linf or L2 (default: Linf)")
    p.add_argument("--step-size", type=_fraction, metavar="X", help="step of the training attack (default: eps/4)")
    p.add_argument("--batch-size", type=int, metavar="N", help="images per step (default: the recipe's, 128)")
    p.add_argument("--lr", type=float, metavar="X", help="peak learning rate (default: the recipe's, 0.1)")
    p.add_argument("--schedule", metavar="S", help=f"{' or '.join(SCHEDULES)} (default: the recipe's, piecewise)")
    p.add_argument("--ema", type=float, metavar="D", help="keep an average of the weights with this decay, 0.999 say")
    p.add_argument("--clip", type=float, metavar="X", help="bound the gradient's norm (default: no)")
    p.add_argument("--seed", type=int, metavar="N", help="of every random draw (default: 0)")
    p.add_argument("--validation", type=int, metavar="N", help="training images held out (default: a tenth, <= 1000)")
    p.add_argument(
        "--select-on", metavar="PART", help="choose the best epoch on validation (default) or, as the paper, on test"
    )
    p.add_argument("--precision", metavar="P", help="auto (default), 32-true or bf16-mixed")
    p.add_argument("--out", type=Path, metavar="DIR", help="run folder (default: runs/DATA-RECIPE-seedN)")
    p.add_argument("--resume", action="store_true", help="go on with the run in --out")
    _shared(p, quiet=True)
    return p


def _train(options: argparse.Namespace) -> None:
    said = {key: value for key in Options.__annotations__ if (value := getattr(options, key)) is not None}
    name, source, data_dir = options.recipe, options.data, options.data_dir
    if name is None:
        if not (options.resume and options.out):
            raise InputError("give a RECIPE to train, or --resume with the --out of a run (list: mrboost recipes)")
        config = Run.open(options.out).config
        name, source = config["recipe"]["name"], config["data"] if source is None else source
        data_dir = config.get("data_dir") if data_dir is None else data_dir
        said = _as_said(config) | said
    recipe, source = recipes.get(name), "digits" if source is None else source
    out = options.out or Path("runs") / f"{_slug(source)}-{recipe.name}-seed{said.get('seed', 0)}"
    boost(
        recipe, source, out=out, resume=options.resume, device=options.device, data_dir=data_dir,
        verify=options.verify, progress=not options.quiet, **cast(Options, said),
    )  # fmt: skip
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
                f"  round {row['round']}  {which}: epoch {epoch['epoch']:>3}  {part} clean {epoch['clean']:.2%}  "
                f"pgd-20 {epoch['robust']:.2%}"
            )
    print(f"next: mrboost evaluate {out}  and  mrboost report {out}")


def _as_said(config: dict[str, Any]) -> dict[str, Any]:
    """The options that give this configuration again."""
    schedules = {json.dumps(describe_parts(value)): name for name, value in SCHEDULES.items()}
    parts = {key: config["recipe"].get(key) for key in ("ema", "clip")}
    parts["schedule"] = schedules.get(json.dumps(config["recipe"].get("schedule")))
    return {
        key: value for key, value in (config | parts).items() if key in Options.__annotations__ and value is not None
    }


def _summary(run: Run) -> dict[str, Any]:
    """The best and the last epoch of each round."""
    rounds = []
    for round_ in range(1, run.rounds_done() + 1):
        rows = [row for row in run.metrics() if row["round"] == round_]
        best = max(rows, key=lambda row: (row["robust"], -row["epoch"]))
        rounds.append({"round": round_, "best": best, "last": rows[-1]})
    return {"run": str(run.folder), "recipe": run.config["recipe"]["name"], "rounds": rounds}


# evaluate


def _evaluate_command(sub: Any) -> _Parser:
    p = _command(
        sub,
        "evaluate",
        _evaluate,
        "Accuracy of a trained run on test images, clean and attacked; kept in results.json.",
    )
    p.add_argument("target", metavar="RUN", help="the folder that train wrote")
    p.add_argument(
        "--attack",
        metavar="NAME[,NAME…]",
        default=",".join(DEFAULT_ATTACKS),
        help=f"{', '.join(EXAMPLES)}, any pgd-N (default: %(default)s)",
    )
    p.add_argument("--n", type=int, metavar="N", help="test images, drawn evenly from the classes (default: all)")
    p.add_argument("--eps", type=_fraction, metavar="X", help="radius (default: that of the training)")
    p.add_argument("--norm", metavar="NORM", help="Linf or L2 (default: that of the training)")
    p.add_argument("--rounds", type=int, metavar="T", help="only the first T members (default: all)")
    p.add_argument("--staged", action="store_true", help="the ensemble after each round, one table each")
    p.add_argument("--weights", default="best", metavar="W", help="best (default), last, or best,last")
    p.add_argument("--batch-size", type=int, metavar="N", help="images at a time (default: chosen to fit)")
    _shared(p, quiet=True)
    return p


def _evaluate(options: argparse.Namespace) -> None:
    members = Run.open(options.target).rounds_done()
    stages = range(1, members + 1) if options.staged else [options.rounds or members or 1]
    documents: list[dict[str, Any]] = []
    kinds = options.weights.split(",")
    for which in kinds:
        check_kind(which)
    planned = Run.open(options.target).config["rounds"]
    if 0 < members < planned:
        print(f"note: {members} of {planned} rounds are finished, mrboost train --resume goes on", file=sys.stderr)
    for which in kinds:
        for rounds in stages:
            result = evaluate_run(
                options.target,
                options.attack.split(","),
                which=which,
                rounds=rounds,
                n=options.n,
                eps=options.eps,
                norm=options.norm,
                batch_size=options.batch_size,
                device=options.device,
                data_dir=options.data_dir,
                verify=options.verify,
                progress=not options.quiet,
            )
            documents.append({"weights": which, "members": rounds, **result.to_dict()})
            if not options.json:
                of = f" of the first {rounds} of {members} members" if members > 1 else ""
                print(f"{options.target}, {which} weights{of}: {result}")
    if options.json:
        print(json.dumps({"run": options.target, "evaluations": documents}, indent=2))


# report


def _report_command(sub: Any) -> _Parser:
    p = _command(sub, "report", _report, "One self-contained HTML page on one run, or on several side by side.")
    p.add_argument("targets", nargs="+", metavar="RUN", help="folders that train wrote")
    p.add_argument("--out", type=Path, metavar="FILE", help="the page (default: report.html in the first run)")
    p.add_argument("--n", type=int, default=500, metavar="N", help="test images for the eps curve (default: 500)")
    p.add_argument("--plots", type=Path, metavar="DIR", help="keep the plots as SVG files too")
    _shared(p, quiet=True)
    return p


def _report(options: argparse.Namespace) -> None:
    from .report import text_table, write_report  # matplotlib takes a second that no other command needs

    out = options.out or Path(options.targets[0]) / "report.html"
    path = write_report(
        options.targets,
        out,
        n=options.n,
        device=options.device,
        data_dir=options.data_dir,
        verify=options.verify,
        plots_dir=options.plots,
        progress=not options.quiet,
    )
    print(json.dumps({"report": str(path)}) if options.json else f"{text_table(options.targets)}\nreport: {path}")


# recipes and data


def _recipes_command(sub: Any) -> _Parser:
    p = _command(sub, "recipes", _recipes, "List the methods, or show how one is composed.")
    p.add_argument("--show", metavar="NAME", help="the parts, the formula and the reference of one recipe")
    p.add_argument("--markdown", action="store_true", help="a table of how each is composed")
    p.add_argument("--json", action="store_true", help="print one JSON document")
    return p


def _recipes(options: argparse.Namespace) -> None:
    chosen = [recipes.get(options.show)] if options.show else list(recipes.RECIPES.values())
    if options.json:
        described = [describe_parts(recipe) for recipe in chosen]
        print(json.dumps(described[0] if options.show else described, indent=2))
    elif options.markdown:
        print(_composition(chosen))
    elif options.show:
        for key, value in describe_parts(chosen[0]).items():
            if key != "part":
                print(f"{key:<13} {_inline(value)}")
    else:
        for recipe in chosen:
            print(f"{recipe.name:<22} {recipe.summary}")


def _composition(chosen: Sequence[recipes.Recipe]) -> str:
    parts = ("sampler", "objective", "scope", "init", "combine", "rounds", "model")
    lines = [f"| recipe | {' | '.join(parts)} | reference |", "|---" * (len(parts) + 2) + "|"]
    for recipe in chosen:
        described = describe_parts(recipe)
        cells = [_inline(described[part]).replace("{}", "DATA") for part in parts]
        lines.append(f"| `{recipe.name}` | {' | '.join(cells)} | {recipe.reference.split(',')[0]} |")
    return "\n".join(lines)


def _data_command(sub: Any) -> _Parser:
    p = _command(sub, "data", _data, "List the datasets, or say what one holds and where it was found.")
    p.add_argument("name", nargs="?", metavar="NAME", help="a dataset or folder:PATH")
    _data_place(p)
    p.add_argument("--json", action="store_true", help="print one JSON document")
    return p


def _data(options: argparse.Namespace) -> None:
    names = [options.name] if options.name else data.names()
    described = [data.describe(name, options.data_dir, verify=options.verify) for name in names]
    if options.name and options.name.startswith("folder:") and described[0]["found"] is None:
        raise InputError(f"{options.name} does not exist: {described[0]['remedy']}")
    if options.json:
        print(json.dumps(described[0] if options.name else described, indent=2))
        return
    for facts in described:
        if options.name:
            for key, value in facts.items():
                print(f"{key:<10} {_inline(value)}")
        else:
            print(f"{facts['name']:<10} {_inline(facts.get('found') or 'not here: mrboost data ' + facts['name'])}")


# shared


def _command(sub: Any, name: str, run: Callable[[argparse.Namespace], None], description: str) -> _Parser:
    p: _Parser = sub.add_parser(name, help=description.split(".")[0].split(":")[0].lower(), description=description)
    p.set_defaults(run=run)
    return p


def _shared(p: _Parser, *, quiet: bool) -> None:
    p.add_argument("--device", default="auto", metavar="D", help="auto (default), cpu, cuda, cuda:1 or mps")
    _data_place(p)
    p.add_argument(
        "--import",
        dest="imports",
        action="append",
        default=[],
        metavar="MODULE",
        help="import this first: a module of yours that registers models",
    )
    p.add_argument("--json", action="store_true", help="print one JSON document on standard output")
    if quiet:
        p.add_argument("--quiet", action="store_true", help="no progress on standard error")


def _data_place(p: _Parser) -> None:
    p.add_argument("--data-dir", metavar="DIR", help="where the data lie (default: $MRBOOST_DATA, then the cache)")
    p.add_argument(
        "--no-verify", dest="verify", action="store_false", help="take an official archive with another checksum"
    )


def _fraction(text: str) -> float:
    """A number, or a fraction such as 8/255."""
    numerator, slash, denominator = text.partition("/")
    try:
        return float(numerator) / float(denominator) if slash else float(numerator)
    except (ValueError, ZeroDivisionError):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number or a fraction such as 8/255") from None


def _import(module: str) -> None:
    name = module.removesuffix(".py")
    sys.path.insert(0, str(Path.cwd()))
    try:
        importlib.import_module(name)
    except (ImportError, ValueError) as error:
        raise InputError(f"cannot import {module!r} ({error}): run from the folder of {name}.py") from None
    finally:
        sys.path.pop(0)


def _slug(text: str) -> str:
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in Path(text.removeprefix("folder:")).name)


def _inline(value: object) -> str:
    """A described part on one line: ``Learner(loss=cross_entropy)``."""
    if isinstance(value, dict):
        inside = ", ".join(f"{key}={_inline(item)}" for key, item in value.items() if key != "part")
        return f"{value['part']}({inside})" if "part" in value else inside
    if isinstance(value, list | tuple):
        return ", ".join(_inline(item) for item in value)
    return f"{value:g} ({format_eps(value)})" if isinstance(value, float) and "/" in format_eps(value) else str(value)
