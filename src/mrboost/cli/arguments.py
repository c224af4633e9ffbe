"""What the command line accepts: every command's arguments and their help, and one-line errors.

argparse rather than a CLI generator, because only its ``error`` can be made to say one line.
"""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from mrboost import __version__, data
from mrboost.attacks.registry import EXAMPLES
from mrboost.errors import InputError, unknown_name
from mrboost.evaluation import DEFAULT_ATTACKS
from mrboost.options import OPTIONS, fraction

Command = Callable[[argparse.Namespace], None]


class _Parser(argparse.ArgumentParser):
    """argparse with one-line errors that suggest what was meant, and options by
    their whole names only."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        if "invalid choice" in message and self._subparsers is not None:
            chosen, names = message.split("'")[1], self._subparsers._group_actions[0].choices or ()
            raise unknown_name("command", chosen, names, hint=f"see {self.prog} --help")
        raise InputError(f"{message} (see {self.prog} --help)")

    def options(self) -> dict[str, str]:
        """The long options by their bare names."""
        return {
            o.lstrip("-"): o
            for action in self._actions
            for o in action.option_strings
            if o.startswith("--")
        }


def _unknown(argument: str, command: str, commands: Mapping[str, _Parser]) -> InputError:
    """The error for what a command does not take: what was meant, or which
    other command takes it."""
    remedy, name = "", argument.split("=")[0].lstrip("-")
    mine, others = (
        commands[command].options(),
        [prog for prog, parser in commands.items() if name in parser.options()],
    )
    if argument.startswith("-"):
        close = difflib.get_close_matches(name, mine, n=1, cutoff=0.7)
        close += [
            option
            for option in mine
            if len(name) > 2 and len(option) > 2 and option.startswith(name[:3])
        ]
        if name in mine:
            remedy = f": give it after {command}"
        elif close:
            remedy = f": did you mean {mine[close[0]]}?"
        elif others:
            remedy = f": it is an option of mrboost {', '.join(others)}, not of {command}"
    return InputError(
        f"unknown argument {argument!r}{remedy} (see {commands[command].prog} --help)"
    )


def parse(arguments: Sequence[str] | None, run: Mapping[str, Command]) -> argparse.Namespace:
    """The options of a command line; ``options.run`` is the command to call with them."""
    parser, commands = _build()
    options, unknown = parser.parse_known_args(arguments)
    if unknown:
        raise _unknown(unknown[0], options.command, commands)
    options.run = run[options.command]
    return options


def _build() -> tuple[_Parser, Mapping[str, _Parser]]:
    parser = _Parser(
        prog="mrboost",
        description="Train classifiers that withstand adversarial inputs, measure how well they "
        "do, and report it.",
        epilog="A first try, a minute on a laptop: mrboost train at-mce --data digits, then "
        "evaluate and report the folder that it names.",
    )
    parser.add_argument("--version", action="version", version=f"mrboost {__version__}")
    sub = parser.add_subparsers(
        dest="command", required=True, metavar="COMMAND", parser_class=_Parser
    )
    _train_command(sub)
    _evaluate_command(sub)
    _join_command(sub)
    _reweight_command(sub)
    _report_command(sub)
    _study_command(sub)
    _recipes_command(sub)
    _data_command(sub)
    return parser, sub.choices


def _train_command(sub: Any) -> None:
    p = _command(
        sub,
        "train",
        "Train a recipe on a dataset. The run folder is crash-safe: the same command with "
        "--resume goes on.",
    )
    p.add_argument(
        "recipe",
        nargs="?",
        metavar="RECIPE",
        help="one of: mrboost recipes; optional with --resume",
    )
    p.add_argument(
        "--data", metavar="NAME", help=f"{', '.join(data.names())} or folder:PATH (default: digits)"
    )
    _training_options(p)
    p.add_argument("--seed", type=int, metavar="N", help="of every random draw (default: 0)")
    p.add_argument(
        "--out", type=Path, metavar="DIR", help="run folder (default: runs/DATA-RECIPE-seedN)"
    )
    p.add_argument("--resume", action="store_true", help="go on with the run in --out")
    p.add_argument(
        "--first",
        type=Path,
        metavar="RUN",
        help="boost a trained network: that of RUN is the first round",
    )
    _shared(p)


def _training_options(p: Any) -> None:
    for option in OPTIONS:
        if option.name == "seed":  # a study has several
            continue
        if option.type is bool:
            p.add_argument(option.flag, action=argparse.BooleanOptionalAction, help=option.help)
        else:
            p.add_argument(option.flag, type=option.type, metavar=option.metavar, help=option.help)


def _evaluate_command(sub: Any) -> None:
    p = _command(
        sub,
        "evaluate",
        "Accuracy of a trained run on test images, clean and attacked. It is kept in the run's "
        "results.json.",
    )
    p.add_argument("target", metavar="RUN", help="the folder that train wrote")
    p.add_argument(
        "--attack",
        metavar="NAME[,NAME…]",
        default=",".join(DEFAULT_ATTACKS),
        help=f"{', '.join(EXAMPLES)}, any pgd-N (default: %(default)s)",
    )
    p.add_argument(
        "--n",
        type=int,
        metavar="N",
        help="test images, drawn from each class in proportion (default: all)",
    )
    p.add_argument(
        "--eps",
        type=_fractions,
        metavar="X[,X…]",
        default=[None],
        help="radius (default: that of the training); several give a curve",
    )
    p.add_argument("--norm", metavar="NORM", help="Linf or L2 (default: that of the training)")
    p.add_argument(
        "--rounds", type=int, metavar="T", help="only the first T members (default: all)"
    )
    p.add_argument(
        "--staged", action="store_true", help="the ensemble after each round, one table each"
    )
    p.add_argument(
        "--weights", default="best", metavar="W", help="best (default), last, or best,last"
    )
    p.add_argument(
        "--adaptive",
        action="store_true",
        help="also attacks that fit the model: AutoAttack, MCE, members",
    )
    p.add_argument(
        "--no-check",
        dest="check",
        action="store_false",
        help="do not look for reasons to doubt the figures",
    )
    p.add_argument(
        "--examples",
        type=Path,
        metavar="FILE",
        help="keep the adversarial images: .safetensors or .npz",
    )
    p.add_argument(
        "--resume", action="store_true", help="go on with an evaluation that was interrupted"
    )
    p.add_argument(
        "--batch-size", type=int, metavar="N", help="images at a time (default: chosen to fit)"
    )
    _shared(p)
    p.epilog = (
        "In the table, margin is the mean of the true logit minus the largest other one on the "
        "attacked images, least the smallest: below 0 an image is misclassified. AutoAttack stops "
        "at an image's first mistake."
    )


def _join_command(sub: Any) -> None:
    p = _command(
        sub,
        "join",
        "Networks that were trained apart as one ensemble: a run folder like any other.",
    )
    p.add_argument(
        "targets",
        nargs="+",
        metavar="RUN",
        help="folders that train wrote, of one model and dataset",
    )
    p.add_argument(
        "--out", type=Path, metavar="DIR", required=True, help="run folder of the ensemble"
    )
    _imports(p)
    p.add_argument("--json", action="store_true", help="print one JSON document")


def _reweight_command(sub: Any) -> None:
    p = _command(
        sub,
        "reweight",
        "Learn weights for the members of a boosted run. They replace the equal ones in "
        "evaluate, report and load.",
    )
    p.add_argument("target", metavar="RUN", help="the folder that train wrote")
    p.add_argument(
        "--objective", default="average", metavar="O", help="average (default) or minimum margin"
    )
    p.add_argument(
        "--weights",
        default="best",
        metavar="W",
        help="of the members' best (default) or last epochs",
    )
    _shared(p)


def _report_command(sub: Any) -> None:
    p = _command(
        sub, "report", "One self-contained HTML page on one run, or on several side by side."
    )
    p.add_argument("targets", nargs="+", metavar="RUN", help="folders that train wrote")
    p.add_argument(
        "--out", type=Path, metavar="FILE", help="the page (default: report.html in the first run)"
    )
    p.add_argument(
        "--n",
        type=int,
        default=500,
        metavar="N",
        help="test images for the eps curve (default: 500)",
    )
    p.add_argument(
        "--attack",
        metavar="NAME",
        default="pgd-20",
        help="for the eps curve: apgd-ce or autoattack, say, are stronger and slower (default: "
        "%(default)s)",
    )
    p.add_argument("--plots", type=Path, metavar="DIR", help="keep the plots as SVG files too")
    _shared(p)


def _study_command(sub: Any) -> None:
    p = _command(
        sub,
        "study",
        "Make a table or figure of the paper again, its numbers beside ours. The same command "
        "goes on with it.",
    )
    p.add_argument("name", nargs="?", metavar="NAME", help="one of: mrboost study --list")
    p.add_argument("--list", action="store_true", help="list the studies and the scales")
    p.add_argument(
        "--plan",
        action="store_true",
        help="say what would be trained and evaluated, and do nothing",
    )
    p.add_argument(
        "--scale", default="short", metavar="S", help="full, short (default) or smoke: see --list"
    )
    p.add_argument(
        "--data",
        nargs="+",
        default=(),
        metavar="NAME",
        help="in the place of the scale's; or folder:PATH",
    )
    p.add_argument(
        "--only",
        nargs="+",
        default=(),
        metavar="ROW",
        help="train these rows of the table, or recipes",
    )
    p.add_argument(
        "--part", type=_part, metavar="I/N", help="every N-th training from the I-th, and no page"
    )
    p.add_argument(
        "--seeds",
        nargs="+",
        type=int,
        default=(0,),
        metavar="N",
        help="train each row with each (default: 0)",
    )
    p.add_argument(
        "--n", type=int, metavar="N", help="test images under attack (default: the scale's)"
    )
    p.add_argument(
        "--also",
        nargs="+",
        default=(),
        metavar="ATTACK",
        help="more attacks, on the finished classifiers",
    )
    p.add_argument(
        "--out", type=Path, metavar="DIR", help="for the pages and runs/ (default: studies/SCALE)"
    )
    _shared(p)
    _training_options(
        p.add_argument_group("options of each training", "in the place of the scale's")
    )


def _recipes_command(sub: Any) -> None:
    p = _command(sub, "recipes", "List the methods, or show how one is composed.")
    p.add_argument(
        "--show", metavar="NAME", help="the parts, the formula and the reference of one recipe"
    )
    p.add_argument("--markdown", action="store_true", help="a table of how each is composed")
    p.add_argument("--json", action="store_true", help="print one JSON document")


def _data_command(sub: Any) -> None:
    p = _command(sub, "data", "List the datasets, or say what one holds and where it was found.")
    p.add_argument("name", nargs="?", metavar="NAME", help="a dataset or folder:PATH")
    _data_place(p)
    p.add_argument("--json", action="store_true", help="print one JSON document")


def _command(sub: Any, name: str, description: str) -> _Parser:
    first = description.split(".")[0].split(":")[0]
    p: _Parser = sub.add_parser(name, help=first[0].lower() + first[1:], description=description)
    return p


def _shared(p: _Parser) -> None:
    p.add_argument(
        "--device", default="auto", metavar="D", help="auto (default), cpu, cuda, cuda:1 or mps"
    )
    _data_place(p)
    _imports(p)
    p.add_argument("--json", action="store_true", help="print one JSON document on standard output")
    p.add_argument("--quiet", action="store_true", help="no progress on standard error")


def _imports(p: _Parser) -> None:
    p.add_argument(
        "--import",
        dest="imports",
        action="append",
        default=[],
        metavar="MODULE",
        help="import this first: a module of yours, by name or path, that registers models",
    )


def _data_place(p: _Parser) -> None:
    p.add_argument(
        "--data-dir",
        metavar="DIR",
        help="where the data lie (default: $MRBOOST_DATA, then the cache)",
    )
    p.add_argument(
        "--no-verify",
        dest="verify",
        action="store_false",
        help="take an official archive with another checksum",
    )


def _part(text: str) -> tuple[int, int]:
    """``2/4``: the second of four."""
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise argparse.ArgumentTypeError(f"{text!r} is not a part such as 2/4")
    return int(match[1]), int(match[2])


def _fractions(text: str) -> list[float]:
    return sorted({fraction(part) for part in text.split(",")})
