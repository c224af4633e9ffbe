"""The options of a training, in one list: the command line, ``boost``, ``config.json`` and
``train --resume`` all follow from it.

Adding one: a row here, its type in ``TrainingOptions``, and a field of ``Config`` or of a part of
the recipe, at the place that ``saved_as`` names. Nothing here imports torch, so that
``mrboost --help`` is quick.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypedDict, get_args

SelectOn = Literal["validation", "test"]
Precision = Literal["auto", "32-true", "bf16-mixed"]
Fast = Literal["auto", "on", "off"]
Past = Literal["last", "best"]


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
        type: makes the value of a text. ``bool`` stands for the pair ``--flip``, ``--no-flip``.
        help: what ``--help`` says.
        metavar: what stands for the value in ``--help``.
        saved_as: where ``config.json`` holds it, if not under its name: ``recipe.sampler.eta`` is
            the field ``eta`` of the recipe's sampler.
        default: what holds where neither the data nor the recipe say otherwise.
        choices: the values it may have, where these are few.
        zero_is_off: 0 takes the part out of the recipe that the option belongs to.
    """

    name: str
    type: Callable[[str], Any]
    help: str
    metavar: str | None = None
    saved_as: str = ""
    default: Any = None
    choices: tuple[str, ...] = ()
    zero_is_off: bool = False

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


OPTIONS: tuple[Option, ...] = (
    Option(
        "model",
        str,
        "cnn-digits, cnn-mnist, cnn9, resnet152, resnet18, wrn-34-10, NAME-silu, 5xNAME "
        "(default: the data's)",
        "NAME",
    ),
    Option("rounds", int, "boosting rounds (default: the recipe's)", "T"),
    Option("epochs", int, "epochs of each round (default: the data's usual number)", "E"),
    Option("later_epochs", int, "epochs of the rounds after the first (default: equal)", "E"),
    Option(
        "eps", fraction, "radius of the ball, like 0.1 or 8/255 (default: the data's)", metavar="X"
    ),
    Option("norm", str, "Linf or L2 (default: Linf)", "NORM", default="Linf"),
    Option(
        "steps",
        int,
        "steps of the training attack (default: the recipe's, 10)",
        "N",
        saved_as="recipe.steps",
    ),
    Option(
        "step_size",
        fraction,
        "length of those (default: the data's share of eps, more for fewer than 10 steps)",
        "X",
    ),
    Option("batch_size", int, "images per step (default: the recipe's, 128)", "N"),
    Option("lr", float, "peak learning rate (default: the recipe's, 0.1)", "X"),
    Option("later_lr", float, "learning rate of the rounds after the first (default: equal)", "X"),
    Option(
        "schedule",
        str,
        "piecewise or one-cycle (default: the recipe's, piecewise)",
        "S",
        saved_as="recipe.schedule",
        choices=("piecewise", "one-cycle"),
    ),
    Option(
        "ema",
        float,
        "keep an average of the weights with this decay, 0.999 say; 0: no",
        "D",
        saved_as="recipe.ema",
        zero_is_off=True,
    ),
    Option("clip", float, "bound the gradient's norm (default: no)", "X", saved_as="recipe.clip"),
    Option(
        "awp",
        float,
        "move the weights adversarially by this share, 0.01 say; 0: no",
        "X",
        saved_as="recipe.awp.gamma",
        zero_is_off=True,
    ),
    Option(
        "smoothing",
        float,
        "smooth the labels by this share, 0.1 say; 0: no",
        "X",
        saved_as="recipe.objective.loss.share",
        zero_is_off=True,
    ),
    Option(
        "cutmix",
        float,
        "mix this share of the images, 0.5 say; 0: no",
        "P",
        saved_as="recipe.cutmix.probability",
        zero_is_off=True,
    ),
    Option(
        "padding",
        int,
        "pixels that crops may be off (default: the data's)",
        "N",
        saved_as="augment.padding",
    ),
    Option("flip", bool, "mirror images at random (default: the data's)", saved_as="augment.flip"),
    Option(
        "start",
        str,
        "of the training attack: uniform, half, gaussian, clean (default: the recipe's)",
        "S",
        saved_as="recipe.start",
        choices=("uniform", "half", "gaussian", "clean"),
    ),
    Option(
        "penalty",
        float,
        "weight of the divergence of TRADES and MART, their lambda (default: the recipe's)",
        "X",
        saved_as="recipe.objective.weight",
    ),
    Option(
        "eta",
        float,
        "inverse temperature of mrboost-exp's draws (default: 0.5)",
        "X",
        saved_as="recipe.sampler.eta",
    ),
    Option(
        "aggressive",
        bool,
        "attack the learner with the past members (default) or these alone",
        saved_as="recipe.sampler.aggressive",
    ),
    Option(
        "past",
        str,
        "weights of past members: last (default, as the paper) or best",
        "W",
        default="last",
        choices=get_args(Past),
    ),
    Option("validation", int, "training images held out (default: a tenth, <= 1000)", metavar="N"),
    Option(
        "select_on",
        str,
        "choose the best epoch on validation (default) or, as the paper, on test",
        "PART",
        default="validation",
        choices=get_args(SelectOn),
    ),
    Option(
        "precision",
        str,
        "auto (default), 32-true or bf16-mixed",
        "P",
        default="auto",
        choices=get_args(Precision),
    ),
    Option(
        "fast",
        str,
        "attack quick copies, captured on a GPU: auto (default: where possible), on or off",
        "F",
        default="auto",
        choices=get_args(Fast),
    ),
    Option("seed", int, "of every random draw (default: 0)", "N", default=0),
)

BY_NAME: dict[str, Option] = {option.name: option for option in OPTIONS}


class TrainingOptions(TypedDict, total=False):
    """The same options for type checkers; what is left out comes from the data and the recipe."""

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
    schedule: str | None
    ema: float | None
    clip: float | None
    awp: float | None
    smoothing: float | None
    cutmix: float | None
    padding: int | None
    flip: bool | None
    start: str | None
    penalty: float | None
    eta: float | None
    aggressive: bool | None
    past: Past | None
    validation: int | None
    select_on: SelectOn | None
    precision: Precision | None
    fast: Fast | None
    seed: int | None
