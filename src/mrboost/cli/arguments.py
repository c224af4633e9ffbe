"""The arguments of every command, and one-line errors for what no command takes.

Nothing here imports torch, so that ``--help`` and mistyped options are answered at once. Names of
datasets and attacks are therefore written out; a test holds them equal to the registries.
"""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from mrboost import __version__
from mrboost.errors import InputError, unknown_name
from mrboost.options import BY_NAME, Option, fraction

DATASETS = "cifar10, cifar100, digits, mnist, svhn"
ATTACKS = (
    "pgd-20, pgd-100, pgd-mce-20, fgsm, cw, apgd-ce, apgd-dlr, apgd-mce, apgd-t, fab, fab-t, "
    "square, rays, quick, autoattack, autoattack-plus, autoattack-rand"
)
DEFAULT_ATTACKS = "fgsm,pgd-20,pgd-100,cw"

TRAINING_GROUPS: Mapping[str, str] = {
    "network and training": "model rounds epochs batch_size lr schedule ema clip validation "
    "select_on",
    "training attack": "loss sampler eps norm steps step_size start",
    "regularisation": "awp penalty smoothing cutmix padding flip",
    "boosting after the first round": "later_epochs later_lr past aggressive eta",
    "reproducibility and speed": "seed precision fast",
}
"""The training options as ``--help`` groups them."""


class _Parser(argparse.ArgumentParser):
    """argparse with one-line errors that suggest what was meant, and without abbreviations."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        if "invalid choice" in message and self._subparsers is not None:
            commands = self._subparsers._group_actions[0].choices or ()
            given = message.split("'")[1]
            raise unknown_name("command", given, commands, hint=f"see {self.prog} --help")
        raise InputError(f"{message} (see {self.prog} --help)")

    def names(self) -> list[str]:
        """The long options without their dashes."""
        return [name[2:] for name in self._option_string_actions if name.startswith("--")]


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The options of a command line; ``options.command`` names the command."""
    parser, commands = _build()
    for argument in arguments:
        if argument.startswith("--") and argument.endswith("=--"):  # of which argparse makes a list
            raise InputError(f"{argument} names no value: {argument[:-3]} takes another than --")
    options, unknown = parser.parse_known_args(arguments)
    if unknown:
        raise _unknown_argument(unknown[0], options.command, commands)
    options.arguments = list(arguments)
    return options


def _unknown_argument(argument: str, command: str, commands: Mapping[str, _Parser]) -> InputError:
    """The error for what a command does not take: what was meant, or which command takes it."""
    name = argument.split("=")[0].lstrip("-")
    own = commands[command].names()
    takers = [other for other, parser in commands.items() if name in parser.names()]
    close = difflib.get_close_matches(name, own, n=1, cutoff=0.7)
    if len(name) > 2:
        close += [option for option in own if option.startswith(name[:3])]
    remedy = ""
    if argument.startswith("-"):
        if name in own:
            remedy = f": give it after {command}"
        elif close:
            remedy = f": did you mean --{close[0]}?"
        elif takers:
            remedy = f": it is an option of mrboost {', '.join(takers)}, not of {command}"
    see = f"(see {commands[command].prog} --help)"
    return InputError(f"unknown argument {argument!r}{remedy} {see}")


def _build() -> tuple[_Parser, Mapping[str, _Parser]]:
    purpose = "Train classifiers that withstand adversarial inputs, and measure how well they do."
    first_try = "A first try: mrboost train at-mce --data digits, a minute on a laptop."
    parser = _Parser(prog="mrboost", description=purpose, epilog=first_try)
    parser.add_argument("--version", action="version", version=f"mrboost {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for add_arguments in _COMMANDS:
        name = add_arguments.__name__.removeprefix("_")
        description = " ".join((add_arguments.__doc__ or "").split())
        first = re.split("[.:]", description)[0]
        short = first[0].lower() + first[1:]
        command = commands.add_parser(name, help=short, description=description)
        add_arguments(command)
        _add(command, "--json", "print one JSON document on standard output")
        command.usage = _usage(command)
    return parser, commands.choices


def _usage(command: _Parser) -> str:
    """What a command needs, without the options that it may have: they follow in groups."""
    shape = {"?": "[{}]", "+": "{0} [{0} …]"}
    parts = [
        " ".join(
            [*action.option_strings, shape.get(str(action.nargs), "{}").format(action.metavar)]
        )
        for action in command._actions
        if action.required or not action.option_strings
    ]
    return " ".join([command.prog, *parts, "[options]"])


def _add(to: Any, option: str, text: str, kind: Any = str, **settings: Any) -> None:
    """Add one option: ``"--rounds T"`` takes a value called T, ``"--staged"`` is a switch."""
    name, _, metavar = option.partition(" ")
    if metavar:
        settings |= {"metavar": metavar, "type": kind}
    else:
        settings.setdefault("action", "store_true")
    to.add_argument(name, help=text, **settings)


def _add_training_option(to: Any, option: Option) -> None:
    if option.type is bool:
        _add(to, option.flag, option.help, action=argparse.BooleanOptionalAction)
    else:
        _add(to, f"{option.flag} {option.metavar}", option.help, option.type)


def _train(p: _Parser) -> None:
    """Train a recipe on a dataset. The run folder is crash-safe: the same command with --resume
    goes on."""
    p.add_argument("recipe", nargs="?", metavar="RECIPE", help="see mrboost recipes")
    _add(p, "--data NAME", f"{DATASETS} or folder:PATH (default: digits)")
    _folder_options(p)
    _add(p, "--out DIR", "run folder (default: runs/DATA-RECIPE-seedN)", Path)
    _add(p, "--resume", "go on with the run in --out")
    first = "boost the network of a run, or fine-tune it or weights from a file (.safetensors, .pt)"
    _add(p, "--first RUN|FILE", first, Path)
    for title, names in TRAINING_GROUPS.items():
        group = p.add_argument_group(title)
        for name in names.split():
            _add_training_option(group, BY_NAME[name])
    _common(p)


def _evaluate(p: _Parser) -> None:
    """Accuracy of a trained run, or of any model, on test images, clean and attacked. It is kept in
    the results.json of the run, or of a folder of its own."""
    model = "folder that train wrote, or a model: file.py:function, module:function, timm:NAME, …"
    p.add_argument("target", metavar="RUN|MODEL", help=model)
    of_model = p.add_argument_group("a model of your own")
    _add(of_model, "--data NAME", f"{DATASETS} or folder:PATH")
    expects = "what it expects: mean and deviation, or those of each channel, or imagenet"
    _add(of_model, "--normalize MEAN,STD", expects)
    surrogate = "a differentiable stand-in for it, to follow its gradients: file.py:function, …"
    _add(of_model, "--surrogate MODEL", surrogate)
    _add(of_model, "--out DIR", "folder of its results (default: evaluations/DATA-MODEL)", Path)
    attacks = p.add_argument_group("attacks")
    default = f"{DEFAULT_ATTACKS}; with --time-budget autoattack"
    _add(attacks, "--attack NAME[,NAME…]", f"{ATTACKS}, any pgd-N (default: {default})")
    _add(attacks, "--adaptive", "also attacks that fit the model: AutoAttack, MCE, members, …")
    radius = "radius (default: that of the training, or of the data); several give a curve"
    _add(attacks, "--eps X[,X…]", radius, _fractions, default=[None])
    _add(attacks, "--norm NORM", "Linf, L2 or L1 (default: that of the training)")
    which = p.add_argument_group("classifier and images")
    _add(which, "--n N", "test images, drawn from each class in proportion (default: all)", int)
    _add(which, "--rounds T", "only the first T members (default: all)", int)
    _add(which, "--staged", "the ensemble after each round, one table each")
    weights = "of a run: best (default), last, or best,last; of a model: a file of them"
    _add(which, "--weights W", weights)
    how = p.add_argument_group("procedure")
    check = "do not look for reasons to doubt the figures"
    _add(how, "--no-check", check, dest="check", action="store_false")
    _add(how, "--examples FILE", "keep the adversarial images: .safetensors or .npz", Path)
    limit = "stop after so long, 90s, 2m or 1h: the figure is then that of a random sample"
    _add(how, "--time-budget T", limit, _seconds)
    _add(how, "--resume", "go on with an evaluation that was interrupted")
    _add(how, "--batch-size N", "images at a time (default: chosen to fit)", int)
    card = p.add_argument_group("publishing")
    form = "write RobustBench's form and all that the figure depends on: PATH.json and PATH.md"
    _add(card, "--card PATH", form, Path)
    again = "measure some images of a card again (--n of them, default: 100)"
    _add(card, "--verify CARD", again, Path, dest="verify_card")
    _add(card, "--seed N", "draw the same images for --verify again", int)
    _common(p)
    p.epilog = (
        "In the table, margin and least are the mean and the smallest difference between the true "
        "logit and the largest other one on attacked images: below 0, one is misclassified."
    )


def _join(p: _Parser) -> None:
    """Networks that were trained apart as one ensemble: a run folder like any other."""
    runs = "folders that train wrote, of one model and dataset"
    p.add_argument("targets", nargs="+", metavar="RUN", help=runs)
    _add(p, "--out DIR", "run folder of the ensemble", Path, required=True)
    _add(p, "--newest", "the network of each run's last round alone")
    _imports(p)
    _quiet(p)


def _soup(p: _Parser) -> None:
    """The mean of the weights of a run's networks as one network: a run folder like any other."""
    p.add_argument("target", metavar="RUN", help="a run of several networks, boosted say")
    _add(p, "--out DIR", "run folder of the network", Path, required=True)
    _add(p, "--weights W", "of their last (default) or best epochs", default="last")
    _common(p)


def _reweight(p: _Parser) -> None:
    """Learn weights for the members of a boosted run. They replace the equal ones in evaluate,
    report and load."""
    p.add_argument("target", metavar="RUN", help="the folder that train wrote")
    _add(p, "--objective O", "average (default) or minimum margin", default="average")
    _add(p, "--weights W", "of the members' best (default) or last epochs", default="best")
    _common(p)


def _report(p: _Parser) -> None:
    """One self-contained HTML page on one run, or on several side by side."""
    p.add_argument("targets", nargs="+", metavar="RUN", help="folders that train wrote")
    _add(p, "--out FILE", "the page (default: report.html in the first run)", Path)
    _add(p, "--n N", "test images for the eps curve (default: 500)", int, default=500)
    stronger = "for the eps curve: apgd-ce, say, is stronger and slower (default: %(default)s)"
    _add(p, "--attack NAME", stronger, default="pgd-20")
    _add(p, "--plots DIR", "keep the plots as SVG files too", Path)
    _common(p)


def _compare(p: _Parser) -> None:
    """Evaluations of runs and cards side by side, and which of their differences are more than
    chance."""
    of = "folders that train or evaluate wrote, or cards (.json) that evaluate --card wrote"
    p.add_argument("targets", nargs="+", metavar="RUN|CARD", help=of)


def _export(p: _Parser) -> None:
    """Write the classifier of a run as one file for other programs: ONNX or torch.export's .pt2,
    images in [0, 1] in, logits out. It is checked against the classifier before it is kept."""
    p.add_argument(
        "target", metavar="RUN", help="the folder that train wrote, or one network's file"
    )
    to = "model.onnx (pip install 'mrboost[onnx]') or model.pt2; its card comes beside it"
    _add(p, "--to FILE", to, Path, required=True)
    _classifier(p)
    group = p.add_argument_group("data and output")
    _data_folder(group)
    _imports(group)
    _quiet(group)


def _predict(p: _Parser) -> None:
    """Labels of image files, how confident the classifier is, and, with --attack, whether an attack
    changes them."""
    p.add_argument(
        "target", metavar="RUN", help="the folder that train wrote, or one network's file"
    )
    images = "files, folders, or patterns; they are resized to what the classifier takes"
    p.add_argument("images", nargs="+", metavar="IMAGE", help=images)
    attacks = p.add_argument_group("attacks")
    _add(attacks, "--attack NAME[,NAME…]", "pgd-20, apgd-ce or another that evaluate knows")
    _add(attacks, "--eps X", "radius (default: that of the training)", fraction)
    _add(attacks, "--norm NORM", "Linf, L2 or L1 (default: that of the training)")
    _classifier(p)
    group = p.add_argument_group("device and output")
    _device(group)
    _imports(group)
    _quiet(group)


def _study(p: _Parser) -> None:
    """Make a table of the paper again, its numbers beside ours. The same command goes on with
    it."""
    p.add_argument("name", nargs="?", metavar="NAME", help="one of: mrboost study --list")
    _add(p, "--list", "list the studies and the scales")
    _add(p, "--plan", "say what would be trained and evaluated, and do nothing")
    _add(p, "--scale S", "full, short (default) or smoke: see --list", default="short")
    several: dict[str, Any] = {"nargs": "+", "default": ()}
    which = p.add_argument_group("trainings")
    _add(which, "--data NAME", "in the place of the scale's; or folder:PATH", **several)
    _add(which, "--only ROW", "train these rows of the table, or recipes", **several)
    _add(which, "--part I/N", "every N-th training from the I-th, and no page", _part)
    _add(which, "--seeds N", "train each row with each (default: 0)", int, nargs="+", default=(0,))
    _add(which, "--n N", "test images under attack (default: the scale's)", int)
    _add(which, "--also ATTACK", "more attacks, on the finished classifiers", **several)
    _add(which, "--out DIR", "for the pages and runs/ (default: studies/SCALE)", Path)
    options = p.add_argument_group("options of each training", "in the place of the scale's")
    for names in TRAINING_GROUPS.values():
        for name in names.split():
            if name not in ("seed", "loss", "sampler"):  # these are the rows' own
                _add_training_option(options, BY_NAME[name])
    _common(p)


def _recipes(p: _Parser) -> None:
    """List the methods, or show how one is composed."""
    _add(p, "--show NAME", "the parts, the formula and the reference of one recipe")
    _add(p, "--markdown", "a table of how each is composed")
    _imports(p)


def _data(p: _Parser) -> None:
    """List the datasets, or say what one holds and where it was found."""
    p.add_argument("name", nargs="?", metavar="NAME", help="a dataset or folder:PATH")
    _add(p, "--download", "get its official files where they are not here, as train does too")
    _folder_options(p)
    _data_folder(p)


def _common(p: _Parser) -> None:
    """The arguments of all commands that compute."""
    group = p.add_argument_group("device, data and output")
    _device(group)
    _data_folder(group)
    _imports(group)
    _quiet(group)


def _classifier(p: _Parser) -> None:
    group = p.add_argument_group("classifier")
    _add(group, "--weights W", "best (default) or last", default="best")
    _add(group, "--rounds T", "only the first T members (default: all)", int)


def _device(to: Any) -> None:
    _add(to, "--device D", "auto (default), cpu, cuda, cuda:1 or mps", default="auto")


def _quiet(to: Any) -> None:
    _add(to, "--quiet", "what was found alone: no progress, and not what to type next")


def _folder_options(to: Any) -> None:
    group = to.add_argument_group("images of a folder:PATH, kept in its name")
    _add(group, "--size N", "resize the shorter side to N pixels, and cut out the centre", int)
    share = "for testing, of each class, where there is no test folder: 0.2 say"
    _add(group, "--test-share X", share, fraction)
    _add(group, "--background C", "of transparent images: white (default) or black")


def _imports(to: Any) -> None:
    module = "import this first: a module of yours, by name or path, that registers models, "
    module += "recipes, losses, samplers or attacks"
    _add(to, "--import MODULE", module, dest="imports", action="append", default=[])


def _data_folder(to: Any) -> None:
    _add(to, "--data-dir DIR", "where the data lie (default: $MRBOOST_DATA, then the cache)")
    other = "take an official archive with another checksum"
    _add(to, "--no-verify", other, dest="verify", action="store_false")


_COMMANDS = (
    *(_train, _evaluate, _compare, _predict, _report, _join, _reweight, _soup, _export),
    *(_study, _recipes, _data),
)
"""Each adds the arguments of the command of its name; its docstring is what ``--help`` says."""


def _part(text: str) -> tuple[int, int]:
    """``2/4``: the second of four."""
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise argparse.ArgumentTypeError(f"{text!r} is not a part such as 2/4")
    return int(match[1]), int(match[2])


def _seconds(text: str) -> float:
    """``90s``, ``2m`` or ``1h``, in seconds."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text)
    if match is None or float(match[1]) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time such as 90s, 2m or 1h")
    return float(match[1]) * {"s": 1, "m": 60, "h": 3600}[match[2]]


def _fractions(text: str) -> list[float]:
    return sorted({fraction(part) for part in text.split(",")})
