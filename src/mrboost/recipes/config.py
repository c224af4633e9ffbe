"""A run's configuration: everything that decides its result, and nothing else.

Two runs with equal configurations on one kind of device give equal weights; ``--resume`` insists on
equality. Where the data lie and which device computes are not part of it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from typing import Any, Literal, TypedDict, Unpack, get_args

import torch

from mrboost import models
from mrboost.attacks import PGD
from mrboost.attacks.pgd import STARTS
from mrboost.data import Augment, CutMix, Dataset, Defaults
from mrboost.errors import InputError, look_up, unknown_name
from mrboost.losses import Smoothed
from mrboost.threat import ball, radius

from .awp import AWP
from .exponential import Exp
from .methods import Recipe
from .objectives import Objective, OnPairs
from .schedules import SCHEDULES

SelectOn = Literal["validation", "test"]
Precision = Literal["auto", "32-true", "bf16-mixed"]
Fast = Literal["auto", "on", "off"]
Past = Literal["last", "best"]


@dataclass(frozen=True, kw_only=True)
class Config:
    """Everything that decides the result of a training."""

    recipe: Recipe
    data: str
    model: str
    rounds: int
    epochs: int
    eps: float
    norm: str
    step_size: float
    batch_size: int
    lr: float
    seed: int
    validation: int
    select_on: SelectOn
    precision: Precision
    fast: Fast
    augment: Augment
    later_epochs: int | None = None
    later_lr: float | None = None
    past: Past | None = "last"
    """The weights of a finished round that later rounds meet and start from; None where
    rounds are independent."""
    judge_step: float

    def __post_init__(self) -> None:
        models.check(self.model)
        ball(self.norm, self.eps)
        for name in ("rounds", "epochs", "later_epochs", "batch_size", "validation"):
            value = getattr(self, name)
            if value is None and name == "later_epochs":
                continue
            if not isinstance(value, int) or value < 1:
                raise InputError(f"{name} must be a whole number of at least 1, got {value!r}")
        for name in ("lr", "later_lr", "step_size", "judge_step"):
            value = getattr(self, name)
            if value is None and name == "later_lr":
                continue
            if not isinstance(value, int | float) or not 0 < value < float("inf"):
                raise InputError(f"{name} must be a positive number, got {value!r}")
        if self.batch_size < 2:
            raise InputError(
                "batch_size must be at least 2: BatchNorm has no statistics of a single image"
            )
        if not isinstance(self.seed, int) or not 0 <= self.seed < 2**63:
            raise InputError(f"seed must be a whole number in 0 … 2^63 − 1, got {self.seed!r}")
        for name, kind in (
            ("select_on", SelectOn),
            ("precision", Precision),
            ("fast", Fast),
            ("past", Past),
        ):
            if name == "past" and self.past is None:
                continue
            if getattr(self, name) not in get_args(kind):
                raise InputError(
                    f"{name} must be one of {', '.join(get_args(kind))}, got "
                    f"{getattr(self, name)!r}"
                )

    def of_round(self, round_: int) -> Config:
        """What holds in one round: those after the first may be shorter, and
        may learn more slowly."""
        if round_ == 1:
            return self
        return replace(self, epochs=self.later_epochs or self.epochs, lr=self.later_lr or self.lr)

    def attack(self) -> PGD:
        """The recipe's inner attack with this run's ball."""
        return PGD(
            self.eps,
            self.norm,
            steps=self.recipe.steps,
            step_size=self.step_size,
            start=self.recipe.start,
            seed=self.seed,
        )

    def judge(self, steps: int) -> PGD:
        """The attack of validation, the same for all recipes and for ``evaluate``: PGD with
        the data's usual step."""
        return PGD(self.eps, self.norm, steps=steps, step_size=self.judge_step, seed=self.seed)

    def describe(self) -> dict[str, Any]:
        """The configuration as JSON values, parts by their names."""
        return {key: value for key, value in describe_parts(self).items() if key != "part"}


class Options(TypedDict, total=False):
    """What a caller may say about a training; the rest comes from the data's and
    the recipe's defaults."""

    model: str | None
    rounds: int
    epochs: int | None
    later_epochs: int | None
    eps: float | None
    norm: str
    steps: int | None
    step_size: float | None
    batch_size: int | None
    lr: float | None
    later_lr: float | None
    seed: int
    validation: int | None
    select_on: SelectOn
    precision: Precision
    fast: Fast
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


def resolve(recipe: Recipe, dataset: Dataset, **options: Unpack[Options]) -> Config:
    """Fill what was not said from the data's and the recipe's defaults, and check the rest."""
    said: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    unknown = said.keys() - Options.__annotations__.keys()
    if unknown:
        raise unknown_name("option", sorted(unknown)[0], Options.__annotations__)
    if "eps" in said:
        said["eps"] = radius(said["eps"])
    recipe = _adjusted(recipe, said)
    defaults = dataset.defaults
    if said.get("norm", "Linf") != "Linf" and "eps" not in said:
        ball(said["norm"], 0.5)  # an unknown name is the first thing to say
        raise InputError(
            f"the default eps is for Linf: give eps for norm {said['norm']!r}, for example 0.5 "
            "for L2"
        )
    filled = (
        usual(recipe, defaults, said.get("eps"))
        | {"validation": usual_validation(len(dataset.train))}
        | said
    )
    filled["augment"] = Augment(filled.pop("padding"), filled.pop("flip"))
    filled["model"] = _model(recipe, said.get("model"), defaults.model)
    if not recipe.coupled:
        if "past" in said:
            raise InputError(
                f"the rounds of {recipe.name!r} are independent of each other: leave past out"
            )
        filled["past"] = None
    config = Config(recipe=recipe, data=dataset.name, **filled)
    for name in ("later_epochs", "later_lr"):
        if name in said and config.rounds == recipe.rounds == 1:
            raise InputError(
                f"{name} is of the rounds after the first, and {recipe.name} has one: leave it out"
            )
    most = len(dataset.train) - 2
    if not 1 <= config.validation <= most:
        raise InputError(
            f"validation must hold out 1 to {most} training images, got {config.validation}"
        )
    return config


def usual(recipe: Recipe, defaults: Defaults, eps: float | None = None) -> dict[str, Any]:
    """The options that need no more than the recipe's and the data's defaults, and the
    radius if one is given."""
    return {
        "rounds": recipe.rounds,
        "epochs": defaults.epochs,
        "later_epochs": None,
        "eps": defaults.eps,
        "norm": "Linf",
        "step_size": _step_size(defaults, recipe.steps)
        * (defaults.eps if eps is None else eps)
        / defaults.eps,
        "batch_size": recipe.batch_size,
        "lr": recipe.lr,
        "later_lr": None,
        "past": "last",
        "judge_step": (defaults.eps if eps is None else eps) * (defaults.step_size / defaults.eps),
        "seed": 0,
        "select_on": "validation",
        "precision": "auto",
        "fast": "auto",
        "padding": defaults.padding,
        "flip": defaults.flip,
    }


def usual_validation(images: int) -> int:
    """How many of so many training images are held out: a tenth, but no more than 1,000."""
    return max(1, min(1000, images // 10))


def _step_size(defaults: Defaults, steps: int) -> float:
    """The data's own step is for ten of them: fewer are longer, to reach as far, but do not
    leap across the ball."""
    if not isinstance(steps, int) or steps < 1:
        raise InputError(f"steps must be a whole number of at least 1, got {steps!r}")
    return max(defaults.step_size, min(defaults.step_size * 10 / steps, 1.25 * defaults.eps))


def _model(recipe: Recipe, said: str | None, usual: str) -> str:
    """``5x{}`` makes five of the network that was asked for, or of the data's usual one;
    ``{}-silu`` its variant."""
    prefix, slot, suffix = recipe.model.partition("{}")
    if not slot:
        return recipe.model if said is None else said
    if prefix + suffix and said is not None and said.startswith(prefix) and said.endswith(suffix):
        return said
    return recipe.model.format(usual if said is None else said)


_PART_OPTIONS = (
    ("eta", "sampler", "eta"),
    ("aggressive", "sampler", "aggressive"),
    ("penalty", "objective", "weight"),
)
"""Options that are fields of a part: the option, the part, its field."""


def _adjusted(recipe: Recipe, said: dict[str, Any]) -> Recipe:
    """The recipe with the parts that the caller asked for, which are taken out of what was said."""
    parts: dict[str, Any] = {
        name: said.pop(name) for name in ("schedule", "ema", "clip", "steps") if name in said
    }
    if isinstance(name := parts.get("schedule"), str):
        parts["schedule"] = look_up("schedule", name, SCHEDULES)
    if (name := said.pop("start", None)) is not None:
        parts["start"] = look_up("start", name, STARTS)
    if not 0 <= parts.get("ema", 0.5) < 1:
        raise InputError(
            f"ema is the decay of an average, between 0 and 1, got {parts['ema']}: 0.999 is "
            "usual, 0 none"
        )
    if parts.get("ema") == 0:
        parts["ema"] = None
    if not parts.get("clip", 1.0) > 0:
        raise InputError(
            f"clip must be a positive bound of the gradient's norm, got {parts['clip']}"
        )
    if isinstance(recipe.sampler, Exp):
        if (norm := said.get("norm", "Linf")) != "Linf":
            raise InputError(
                f"recipe {recipe.name!r} draws from Linf balls, got norm {norm!r}: mrboost "
                "takes any norm"
            )
        if parts.get("steps", recipe.steps) != recipe.steps:
            raise InputError(
                f"the adversary of {recipe.name!r} has moves of its own: leave steps out, or "
                "take mrboost"
            )
    if (gamma := said.pop("awp", None)) is not None:
        parts["awp"] = replace(recipe.awp or AWP(), gamma=gamma) if gamma != 0 else None
    if (share := said.pop("smoothing", None)) is not None:
        parts["objective"] = _smoothed(recipe, share)
    for option, part, field in _PART_OPTIONS:
        if (value := said.pop(option, None)) is not None:
            parts[part] = _with_field(
                recipe, option, parts.get(part, getattr(recipe, part)), field, value
            )
    if (probability := said.pop("cutmix", None)) is not None:
        parts["cutmix"] = CutMix(probability) if probability != 0 else None
    recipe = replace(recipe, **parts)
    if recipe.cutmix is not None and isinstance(recipe.objective, OnPairs):
        raise InputError(
            f"cutmix gives images two labels, and recipe {recipe.name!r} chooses one false label "
            "for each: leave it out, or take a recipe without pairs such as mrboost"
        )
    return recipe


def _with_field(recipe: Recipe, option: str, part: Any, field: str, value: float) -> Any:
    if field not in {f.name for f in fields(part)}:
        raise InputError(
            f"recipe {recipe.name!r} has no {option} ({type(part).__name__} takes none): leave "
            "it out"
        )
    if option == "penalty" and not 0 <= value < float("inf"):
        raise InputError(
            f"penalty is the weight of a divergence, a finite number of at least 0, got {value!r}"
        )
    return replace(part, **{field: value})


def _smoothed(recipe: Recipe, share: float) -> Objective:
    objective: Any = recipe.objective
    if not hasattr(objective, "loss"):
        raise InputError(
            f"smoothing needs a loss of labels, and recipe {recipe.name!r} trains on pairs: "
            "leave it out"
        )
    hard = objective.loss.loss if isinstance(objective.loss, Smoothed) else objective.loss
    smoothed: Objective = replace(objective, loss=Smoothed(hard, share) if share != 0 else hard)
    return smoothed


def describe_parts(value: object) -> Any:
    """A tree of frozen dataclasses as JSON values: each part by its class, each
    function by its name."""
    if is_dataclass(value) and not isinstance(value, type):
        return {"part": type(value).__name__} | {
            f.name: describe_parts(getattr(value, f.name)) for f in fields(value)
        }
    if isinstance(value, tuple | list):
        return [describe_parts(item) for item in value]
    if isinstance(value, partial):
        bound = [repr(item) for item in value.args] + [
            f"{key}={item!r}" for key, item in value.keywords.items()
        ]
        return f"{describe_parts(value.func)}({', '.join(bound)})"
    if callable(value):
        return getattr(value, "__name__", type(value).__name__)
    return value


def as_said(config: dict[str, Any]) -> dict[str, Any]:
    """The options that give this configuration again."""
    schedules = {json.dumps(describe_parts(value)): name for name, value in SCHEDULES.items()}
    recipe = config["recipe"]
    parts = {
        "clip": recipe.get("clip"),
        "ema": recipe.get("ema") or 0,
        "steps": recipe.get("steps"),
    }
    parts |= {key: (config.get("augment") or {}).get(key) for key in ("padding", "flip")}
    parts["schedule"] = schedules.get(json.dumps(recipe.get("schedule")))
    for key, field in (("awp", "gamma"), ("cutmix", "probability")):
        parts[key] = (recipe.get(key) or {}).get(field, 0)
    starts = {json.dumps(describe_parts(value)): name for name, value in STARTS.items()}
    parts["start"] = starts.get(json.dumps(recipe.get("start")))
    for option, part, field in _PART_OPTIONS:
        parts[option] = (recipe.get(part) or {}).get(field)
    loss = (recipe.get("objective") or {}).get("loss")
    if loss is not None:
        parts["smoothing"] = (
            loss["share"] if isinstance(loss, dict) and loss.get("part") == "Smoothed" else 0
        )
    return {
        key: value
        for key, value in (config | parts).items()
        if key in Options.__annotations__ and value is not None
    }


def describe(config: Config, dataset: Dataset) -> dict[str, Any]:
    """What config.json holds besides the format: the configuration, the input, the
    versions that made it."""
    from mrboost import __version__

    return {
        **config.describe(),
        "input": {
            "shape": list(dataset.shape),
            "classes": dataset.num_classes,
            "names": list(dataset.classes),
            "fingerprint": dataset.fingerprint(),
        },
        "train_images": len(dataset.train),
        "versions": {"mrboost": __version__, "torch": torch.__version__},
    }
