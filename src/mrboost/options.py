"""The options of a training, in one list: the command line, ``boost``, ``config.json`` and
``train --resume`` all follow from it.

Adding one: a line in ``TrainingOptions``, and a field of ``Config`` or of a part of the recipe, at
the place that ``saved_as`` names. Nothing here imports torch, so that ``mrboost --help`` is quick.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypedDict, get_args, get_type_hints

Schedule = Literal["piecewise", "one-cycle"]
Start = Literal["uniform", "half", "gaussian", "clean"]
Past = Literal["last", "best"]
SelectOn = Literal["validation", "test"]
Precision = Literal["auto", "32-true", "bf16-mixed"]
Fast = Literal["auto", "on", "off"]

Name = str | None
Whole = int | None
Number = float | None
Switch = bool | None


def fraction(text: str) -> float:
    """A number on the command line, or a fraction such as 8/255."""
    numerator, slash, denominator = text.partition("/")
    try:
        return float(numerator) / float(denominator) if slash else float(numerator)
    except (ValueError, ZeroDivisionError):
        problem = f"{text!r} is not a number or a fraction such as 8/255"
        raise argparse.ArgumentTypeError(problem) from None


@dataclass(frozen=True)
class Option:
    """One option of a training.

    Attributes:
        help: the line of ``--help``.
        saved_as: where ``config.json`` holds it, if not under its name: ``recipe.sampler.eta`` is
            the field ``eta`` of the recipe's sampler.
        default: what holds where neither the data nor the recipe say otherwise.
        zero_is_off: 0 takes the part out of the recipe that the option belongs to.
        name: as ``boost`` takes it; on the command line ``later_epochs`` is ``--later-epochs``.
        kind: its type: ``int``, ``float``, ``str``, ``bool`` or a ``Literal``.
    """

    help: str
    saved_as: str = ""
    default: Any = None
    zero_is_off: bool = False
    name: str = ""
    kind: Any = None

    @property
    def type(self) -> Callable[[str], Any]:
        """Makes the value of a text. ``bool`` stands for the pair ``--flip``, ``--no-flip``."""
        makers: dict[type, Callable[[str], Any]] = {int: int, bool: bool, float: fraction}
        return makers.get(self.kind, str)

    @property
    def choices(self) -> tuple[str, ...]:
        """The values it may have, where these are few."""
        return get_args(self.kind)

    @property
    def metavar(self) -> str:
        """What stands for the value in ``--help``."""
        return {int: "N", float: "X"}.get(self.kind, "NAME")

    @property
    def flag(self) -> str:
        """The option on the command line."""
        return "--" + self.name.replace("_", "-")

    @property
    def path(self) -> tuple[str, ...]:
        """The keys that lead to it in ``config.json``."""
        return tuple((self.saved_as or self.name).split("."))

    @property
    def changes_recipe(self) -> bool:
        """Whether it changes a part of the recipe, rather than the run around it."""
        return self.path[0] == "recipe"


_MODELS = "cnn-digits, cnn-mnist, cnn9, resnet152, resnet18, wrn-34-10, NAME-silu, 5xNAME"
_LOSS = "in the objective, and in its attack where both have one: mce, say (default: the recipe's)"
_SAMPLER = "whom training attacks, with the recipe's loss: learner, all, … (default: the recipe's)"
_STEPS = "steps of the training attack (default: the recipe's, 10)"
_STEP_SIZE = "length of those (default: the data's share of eps, more below 10 steps)"
_SCHEDULE = "piecewise or one-cycle (default: the recipe's)"
_EMA = "keep an average of the weights with this decay, 0.999 say; 0: no"
_AWP = "move the weights adversarially by this share, 0.01 say; 0: no"
_SMOOTHING = "smooth the labels by this share, 0.1 say; 0: no"
_CUTMIX = "mix this share of the images, 0.5 say; 0: no"
_PADDING = "pixels that crops may be off (default: the data's)"
_FLIP = "mirror images at random (default: the data's)"
_START = "of the training attack: uniform, half, gaussian, clean (default: the recipe's)"
_PENALTY = "lambda of TRADES and MART (default: the recipe's)"
_ETA = "inverse temperature of mrboost-exp's draws (default: 0.5)"
_AGGRESSIVE = "attack the learner with the past members (default) or these alone"
_PAST = "weights of past members: last (default, as the paper) or best"
_SELECT_ON = "choose the best epoch on validation (default) or, as the paper, on test"
_PRECISION = "auto (default), 32-true or bf16-mixed"
_FAST = "attack quick copies: auto (default: where possible), on or off"


class TrainingOptions(TypedDict, total=False):
    """The options with their types; what is left out comes from the data and the recipe."""

    model: Annotated[Name, Option(f"{_MODELS} (default: the data's)")]
    rounds: Annotated[Whole, Option("boosting rounds (default: the recipe's)")]
    epochs: Annotated[Whole, Option("epochs of each round (default: the data's usual number)")]
    later_epochs: Annotated[Whole, Option("epochs of the rounds after the first (default: equal)")]
    eps: Annotated[Number, Option("radius of the ball, like 0.1 or 8/255 (default: the data's)")]
    norm: Annotated[Name, Option("Linf, L2 or L1 (default: Linf)", default="Linf")]
    steps: Annotated[Whole, Option(_STEPS, "recipe.steps")]
    step_size: Annotated[Number, Option(_STEP_SIZE)]
    batch_size: Annotated[Whole, Option("images per step (default: the recipe's, 128)")]
    loss: Annotated[Name, Option(_LOSS, "recipe.objective.loss")]
    sampler: Annotated[Name, Option(_SAMPLER, "recipe.sampler")]
    lr: Annotated[Number, Option("peak learning rate (default: the recipe's, 0.1)")]
    later_lr: Annotated[Number, Option("learning rate after the first round (default: equal)")]
    schedule: Annotated[Schedule | None, Option(_SCHEDULE, "recipe.schedule")]
    ema: Annotated[Number, Option(_EMA, "recipe.ema", zero_is_off=True)]
    clip: Annotated[Number, Option("bound the gradient's norm (default: no)", "recipe.clip")]
    awp: Annotated[Number, Option(_AWP, "recipe.awp.gamma", zero_is_off=True)]
    smoothing: Annotated[
        Number, Option(_SMOOTHING, "recipe.objective.loss.share", zero_is_off=True)
    ]
    cutmix: Annotated[Number, Option(_CUTMIX, "recipe.cutmix.probability", zero_is_off=True)]
    padding: Annotated[Whole, Option(_PADDING, "augment.padding")]
    flip: Annotated[Switch, Option(_FLIP, "augment.flip")]
    start: Annotated[Start | None, Option(_START, "recipe.start")]
    penalty: Annotated[Number, Option(_PENALTY, "recipe.objective.weight")]
    eta: Annotated[Number, Option(_ETA, "recipe.sampler.eta")]
    aggressive: Annotated[Switch, Option(_AGGRESSIVE, "recipe.sampler.aggressive")]
    past: Annotated[Past | None, Option(_PAST, default="last")]
    validation: Annotated[Whole, Option("training images held out (default: a tenth, <= 1000)")]
    select_on: Annotated[SelectOn | None, Option(_SELECT_ON, default="validation")]
    precision: Annotated[Precision | None, Option(_PRECISION, default="auto")]
    fast: Annotated[Fast | None, Option(_FAST, default="auto")]
    seed: Annotated[Whole, Option("of every random draw (default: 0)", default=0)]


def _named(name: str, annotated: Any) -> Option:
    """The option of a field, with the field's name and type."""
    hint, option = get_args(annotated)
    return Option(**{**vars(option), "name": name, "kind": get_args(hint)[0]})


_HINTS = get_type_hints(TrainingOptions, include_extras=True)
BY_NAME: dict[str, Option] = {name: _named(name, hint) for name, hint in _HINTS.items()}
OPTIONS: tuple[Option, ...] = tuple(BY_NAME.values())
