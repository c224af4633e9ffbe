"""The options of a training, in one list: the command line, ``boost``, ``config.json`` and
``train --resume`` all follow from it.

Adding one: its type in ``TrainingOptions``, a row in ``OPTIONS``, and a field of ``Config`` or of a
part of the recipe, at the place that ``saved_as`` names. Nothing here imports torch, so that
``mrboost --help`` is quick.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypedDict, get_args, get_type_hints

Schedule = Literal["piecewise", "one-cycle"]
Start = Literal["uniform", "half", "gaussian", "clean"]
Past = Literal["last", "best"]
SelectOn = Literal["validation", "test"]
Precision = Literal["auto", "32-true", "bf16-mixed"]
Fast = Literal["auto", "on", "off"]


class TrainingOptions(TypedDict, total=False):
    """The options with their types; what is left out comes from the data and the recipe."""

    model: str | None
    rounds: int | None
    epochs: int | None
    later_epochs: int | None
    eps: float | None
    norm: str | None
    steps: int | None
    step_size: float | None
    batch_size: int | None
    lr: float | None
    later_lr: float | None
    schedule: Schedule | None
    ema: float | None
    clip: float | None
    awp: float | None
    smoothing: float | None
    cutmix: float | None
    padding: int | None
    flip: bool | None
    start: Start | None
    penalty: float | None
    eta: float | None
    aggressive: bool | None
    past: Past | None
    validation: int | None
    select_on: SelectOn | None
    precision: Precision | None
    fast: Fast | None
    seed: int | None


_TYPES = {name: get_args(hint)[0] for name, hint in get_type_hints(TrainingOptions).items()}


def fraction(text: str) -> float:
    """A number on the command line, or a fraction such as 8/255."""
    numerator, slash, denominator = text.partition("/")
    try:
        return float(numerator) / float(denominator) if slash else float(numerator)
    except (ValueError, ZeroDivisionError):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a number or a fraction such as 8/255"
        ) from None


@dataclass(frozen=True)
class Option:
    """One option of a training.

    Args:
        name: as ``boost`` takes it; on the command line ``later_epochs`` is ``--later-epochs``.
        help: what ``--help`` says.
        saved_as: where ``config.json`` holds it, if not under its name: ``recipe.sampler.eta`` is
            the field ``eta`` of the recipe's sampler.
        default: what holds where neither the data nor the recipe say otherwise.
    """

    name: str
    help: str
    saved_as: str = ""
    default: Any = None

    @property
    def type(self) -> Callable[[str], Any]:
        """Makes the value of a text. ``bool`` stands for the pair ``--flip``, ``--no-flip``."""
        makers: dict[type, Callable[[str], Any]] = {int: int, bool: bool, float: fraction}
        return makers.get(_TYPES[self.name], str)

    @property
    def choices(self) -> tuple[str, ...]:
        """The values it may have, where these are few."""
        return get_args(_TYPES[self.name])

    @property
    def metavar(self) -> str:
        """What stands for the value in ``--help``."""
        return {int: "N", float: "X"}.get(_TYPES[self.name], "NAME")

    @property
    def flag(self) -> str:
        """The option on the command line."""
        return "--" + self.name.replace("_", "-")

    @property
    def path(self) -> tuple[str, ...]:
        """The keys that lead to it in ``config.json``."""
        return tuple((self.saved_as or self.name).split("."))

    @property
    def zero_is_off(self) -> bool:
        """Whether 0 takes the part out of the recipe that the option belongs to."""
        return self.name in ("ema", "awp", "smoothing", "cutmix")

    @property
    def changes_recipe(self) -> bool:
        """Whether it changes a part of the recipe, rather than the run around it."""
        return self.path[0] == "recipe"


_MODELS = "cnn-digits, cnn-mnist, cnn9, resnet152, resnet18, wrn-34-10, NAME-silu, 5xNAME"
_STARTS = "of the training attack: uniform, half, gaussian or clean"
_AGGRESSIVE = "attack the learner with the past members (default) or these alone"
_SELECT_ON = "choose the best epoch on validation (default) or, as the paper, on test"
OPTIONS: tuple[Option, ...] = (
    Option("model", f"{_MODELS} (default: the data's)"),
    Option("rounds", "boosting rounds (default: the recipe's)"),
    Option("epochs", "epochs of each round (default: the data's usual number)"),
    Option("later_epochs", "epochs of the rounds after the first (default: equal)"),
    Option("eps", "radius of the ball, like 0.1 or 8/255 (default: the data's)"),
    Option("norm", "Linf or L2 (default: Linf)", default="Linf"),
    Option("steps", "steps of the training attack (default: the recipe's, 10)", "recipe.steps"),
    Option("step_size", "length of those (default: the data's share of eps, more below 10 steps)"),
    Option("batch_size", "images per step (default: the recipe's, 128)"),
    Option("lr", "peak learning rate (default: the recipe's, 0.1)"),
    Option("later_lr", "learning rate of the rounds after the first (default: equal)"),
    Option("schedule", "piecewise or one-cycle (default: the recipe's)", "recipe.schedule"),
    Option("ema", "keep an average of the weights with this decay (0.999; 0: no)", "recipe.ema"),
    Option("clip", "bound the gradient's norm (default: no)", "recipe.clip"),
    Option("awp", "perturb the weights by this share (0.01, say; 0: no)", "recipe.awp.gamma"),
    Option("smoothing", "of the labels (0.1, say; 0: no)", "recipe.objective.loss.share"),
    Option("cutmix", "share of images mixed (0.5, say; 0: no)", "recipe.cutmix.probability"),
    Option("padding", "pixels that crops may be off (default: the data's)", "augment.padding"),
    Option("flip", "mirror images at random (default: the data's)", "augment.flip"),
    Option("start", f"{_STARTS} (default: the recipe's)", "recipe.start"),
    Option("penalty", "lambda of TRADES, MART (default: the recipe's)", "recipe.objective.weight"),
    Option("eta", "inverse temperature of mrboost-exp (default: 0.5)", "recipe.sampler.eta"),
    Option("aggressive", _AGGRESSIVE, "recipe.sampler.aggressive"),
    Option("past", "weights of past members: last (default, as the paper) or best", default="last"),
    Option("validation", "training images held out (default: a tenth, <= 1000)"),
    Option("select_on", _SELECT_ON, default="validation"),
    Option("precision", "auto (default), 32-true or bf16-mixed", default="auto"),
    Option("fast", "attack quick copies: auto (default: where possible), on, off", default="auto"),
    Option("seed", "of every random draw (default: 0)", default=0),
)

BY_NAME: dict[str, Option] = {option.name: option for option in OPTIONS}
