"""The studies and their scales, as data: which recipes, on which data, under which attacks, with
which options.

A study is rows (a recipe each) × data × seeds; its numbers are those of ``paper.toml``'s columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mrboost.attacks.adaptive import ON_MIXTURES
from mrboost.errors import look_up

Options = Mapping[str, Any]
"""Options of a training, as ``boost`` takes them."""


@dataclass(frozen=True)
class Row:
    """One method of a table: its label in the paper, its recipe, and what differs for it."""

    label: str
    recipe: str
    model: str | None = None
    attacks: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Study:
    """One table or figure of the paper.

    ``attacks`` are on top of clean accuracy; ``staged`` evaluates the ensemble after each round;
    ``plot`` is "epochs" for performance curves, "rounds" for accuracy against members; ``seconds``
    adds the seconds of an epoch.
    """

    name: str
    title: str
    rows: tuple[Row, ...]
    data: tuple[str, ...] = ("cifar10",)
    model: str = "resnet18"
    attacks: tuple[str, ...] = ("pgd-20",)
    weights: tuple[str, ...] = ("best",)
    staged: bool = False
    plot: str = ""
    seconds: bool = False
    options: Options = field(default_factory=dict)


@dataclass(frozen=True)
class Scale:
    """How much of the paper's effort is spent.

    ``data``, ``models`` and ``attacks`` stand in for the paper's; ``steps`` shortens the training
    attack. ``n`` test images are attacked, ``strong_n`` by AutoAttack; None is all of them.
    ``check`` looks for reasons to doubt the figures.
    """

    name: str
    summary: str
    options: Options
    data: str | None = None
    models: Mapping[str, str] = field(default_factory=dict)
    attacks: Mapping[str, str] = field(default_factory=dict)
    n: int | None = None
    strong_n: int | None = None
    steps: int | None = None
    check: bool = True


_CIFAR_SVHN = ("svhn", "cifar10", "cifar100")
_ENDS = ("best", "last")
_AT, _AT_MCE = Row("AT", "at"), Row("AT + MCE", "at-mce")

STUDIES: Mapping[str, Study] = {
    study.name: study
    for study in (
        Study(
            "mce-resnet18",
            "Adversarial training with and without MCE",
            (_AT, _AT_MCE),
            data=_CIFAR_SVHN,
            weights=_ENDS,
        ),
        Study(
            "mce-wrn",
            "Five defences with and without MCE",
            (
                _AT,
                _AT_MCE,
                Row("TRADES", "trades"),
                Row("TRADES + MCE", "trades-mce"),
                Row("MART", "mart"),
                Row("MART + MCE", "mart-mce"),
                Row("GAIR", "gair"),
                Row("GAIR + MCE", "gair-mce"),
                Row("AWP", "awp"),
                Row("AWP + MCE", "awp-mce"),
            ),
            model="wrn-34-10",
            attacks=("fgsm", "cw", "pgd-20", "pgd-100", "autoattack"),
        ),
        Study(
            "boosting",
            "Margin boosting, greedy boosting, and larger networks",
            (
                Row("Wider model", "wider"),
                Row("Deeper model", "deeper", model="resnet152"),
                Row("RobBoost + Whole + RndInit", "robboost"),
                Row("MRBoost.NN + Whole + RndInit", "mrboost-whole-rndinit"),
                Row("RobBoost + Whole + PerInit", "robboost-perinit"),
                Row("MRBoost.NN + Whole + PerInit", "mrboost-whole"),
                Row("RobBoost + Ind + RndInit", "robboost-ind"),
                Row("MRBoost.NN + Ind + RndInit", "mrboost-rndinit"),
                Row("RobBoost + Ind + PerInit", "robboost-ind-perinit"),
                Row("MRBoost.NN + Ind + PerInit", "mrboost"),
            ),
            staged=True,
            plot="rounds",
        ),
        Study(
            "samplers",
            "The samplers, and the loss doubled",
            (
                # One round of mrboost: nothing but the learner is attacked
                Row("Sampler.All", "at-mce"),
                Row("Sampler.Rnd", "mrboost-rnd"),
                Row("Sampler.Max", "mrboost-max"),
                Row("AT(2)", "at2"),
                _AT,
            ),
            options={"rounds": 1},
        ),
        Study(
            "curves",
            "Accuracy over the epochs of a training",
            (_AT, _AT_MCE),
            weights=_ENDS,
            plot="epochs",
        ),
        Study(
            "overhead",
            "Seconds of an epoch with and without MCE",
            (_AT, _AT_MCE),
            data=_CIFAR_SVHN,
            attacks=(),
            seconds=True,
            # The time of an epoch includes its validation, so that is kept small; the
            # first epoch warms up.
            options={"epochs": 3, "select_on": "validation", "validation": 128},
        ),
        Study(
            "pinot",
            "A randomised defence, broken",
            (Row("Pinot", "pinot", attacks=ON_MIXTURES), _AT),
            model="cnn9",
            weights=("last",),
        ),
        Study(
            "adaptive",
            "PGD with MCE on a network trained with MCE",
            (_AT_MCE,),
            attacks=("pgd-20", "pgd-mce-20"),
        ),
    )
}

SCALES: Mapping[str, Scale] = {
    scale.name: scale
    for scale in (
        Scale(
            "full",
            "the paper's own configuration",
            {
                "epochs": 100,
                "batch_size": 128,
                "lr": 0.1,
                "schedule": "piecewise",
                "eps": 8 / 255,
                "select_on": "test",
                "precision": "32-true",
                "fast": "off",
            },
        ),
        Scale(
            "short",
            "ten epochs of a one-cycle rate, ResNet-18: one GPU for minutes",
            {"epochs": 10, "batch_size": 128, "lr": 0.2, "schedule": "one-cycle"},
            data="cifar10",
            models={"wrn-34-10": "resnet18"},
            strong_n=1000,
        ),
        Scale(
            "smoke",
            "one epoch on digits, a few test images: seconds, to see that it runs",
            {"epochs": 1, "rounds": 2, "validation": 32},
            data="digits",
            models=dict.fromkeys(("resnet18", "resnet152", "wrn-34-10", "cnn9"), "cnn-digits"),
            attacks={"autoattack": "apgd-ce", "pgd-100": "pgd-30"},
            n=40,
            strong_n=40,
            steps=2,
            check=False,
        ),
    )
}


def get(name: str) -> Study:
    """The study called ``name``."""
    return look_up("study", name, STUDIES, hint="list them with: mrboost study --list")


def get_scale(name: str) -> Scale:
    """The scale called ``name``."""
    return look_up("scale", name, SCALES)
