"""A run's configuration: everything that decides its result, and nothing else.

Two runs with equal configurations on one kind of device give equal weights; ``--resume`` insists on
equality. Where the data lie and which device computes are not part of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol, Unpack, runtime_checkable

import torch

from mrboost import models
from mrboost.attacks import PGD
from mrboost.attacks.pgd import STARTS
from mrboost.data import Augment, CutMix, Dataset, Defaults
from mrboost.errors import InputError, look_up, unknown_name
from mrboost.losses import LOSSES, Smoothed
from mrboost.options import BY_NAME, Fast, Option, Past, Precision, SelectOn, TrainingOptions
from mrboost.threat import ball, radius

from .awp import AWP
from .methods import RECIPES, Recipe
from .optimisation import SCHEDULES
from .samplers import SAMPLERS

# The least and the largest that the whole numbers of a training may be
LIMITS = {
    "rounds": (1, 100_000),
    "epochs": (1, 10_000_000),
    "later_epochs": (1, 10_000_000),
    "batch_size": (2, 10_000_000),  # BatchNorm has no statistics of a single image
    "validation": (1, 10**12),
    "seed": (0, 2**63 - 1),
}
_LARGEST = 2**63  # of any option: beyond it, numbers overflow on the way
_POSITIVE = ("lr", "later_lr", "step_size", "judge_step")
_OPTIONAL_PARTS: dict[str, object] = {"awp": AWP(), "cutmix": CutMix()}
_NAMED_PARTS: dict[str, Mapping[str, object]] = {
    "schedule": SCHEDULES,
    "start": STARTS,
    "sampler": SAMPLERS,
    "loss": LOSSES,
}
_OWN = "your own: register it, and --import its module"


@runtime_checkable
class ChecksOptions(Protocol):
    """A part that does not go with every option."""

    def check_options(self, recipe: Recipe, options: Mapping[str, Any]) -> None:
        """Refuse options that were given for a training of the recipe, before they change it."""


@dataclass(frozen=True, kw_only=True)
class Config:
    """Everything that decides the result of a training.

    Attributes:
        later_epochs, later_lr: of the rounds after the first; None where these are as the first.
        past: the weights of a finished round that later rounds meet and start from; None where
            rounds are independent.
        judge_step: the step of the attack that judges: the data's, whatever the recipe trains with.
    """

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
    judge_step: float
    later_epochs: int | None = None
    later_lr: float | None = None
    past: Past | None = "last"

    def __post_init__(self) -> None:
        models.check(self.model)
        ball(self.norm, self.eps)
        for name, value in vars(self).items():
            low, high = LIMITS.get(name, (0, 0))
            choices = BY_NAME[name].choices if name in BY_NAME else ()
            if value is None:
                continue
            if high and not (isinstance(value, int) and low <= value <= high):
                expected = f"a whole number in {low} … {high:,}"
            elif name in _POSITIVE and not (
                isinstance(value, int | float) and 0 < value < math.inf
            ):
                expected = "a positive number"
            elif choices and value not in choices:
                expected = f"one of {', '.join(choices)}"
            else:
                continue
            raise InputError(f"{name} must be {expected}, got {value!r}")

    def of_round(self, round_: int) -> Config:
        """What holds in one round: later ones may be shorter, and may learn more slowly."""
        if round_ == 1:
            return self
        return replace(self, epochs=self.later_epochs or self.epochs, lr=self.later_lr or self.lr)

    def attack(self) -> PGD:
        """The recipe's inner attack with this run's ball."""
        return replace(
            self.judge(self.recipe.steps), start=self.recipe.start, step_size=self.step_size
        )

    def judge(self, steps: int) -> PGD:
        """The attack of validation, the same for all recipes and for ``evaluate``: PGD with
        the data's usual step."""
        return PGD(self.eps, self.norm, steps=steps, step_size=self.judge_step, seed=self.seed)

    def describe(self) -> dict[str, Any]:
        """The configuration as JSON values, parts by their names."""
        return {key: value for key, value in describe_parts(self).items() if key != "part"}


def resolve(recipe: Recipe, dataset: Dataset, **options: Unpack[TrainingOptions]) -> Config:
    """The configuration of a training: what the options leave out comes from data and recipe."""
    return configure(recipe, dataset.name, dataset.defaults, len(dataset.train), options)


def configure(
    recipe: Recipe, data: str, defaults: Defaults, train_images: int, options: Mapping[str, Any]
) -> Config:
    """As ``resolve``, of data that need not be loaded: their name, their defaults and how many
    training images they have are enough."""
    given = {name: value for name, value in options.items() if value is not None}
    for name in given:
        if name not in BY_NAME:
            raise unknown_name("option", name, BY_NAME)
        value = given[name]
        if isinstance(value, int | float) and _LARGEST < abs(value) < math.inf:
            raise InputError(f"{name} must be less than 2**63, got {value!r:.80}: give a usual one")
    if "eps" in given:
        given["eps"] = radius(given["eps"])
    for name in ("sampler", "loss"):
        if name in given:
            recipe = _changed(recipe, name, given.pop(name))
    _check_options(recipe, given)
    for name, value in given.items():
        if BY_NAME[name].changes_recipe:
            recipe = _changed(recipe, name, value)
    of_run = [option for option in BY_NAME.values() if not option.changes_recipe]
    values: dict[str, Any] = {
        **{option.name: option.default for option in of_run},
        "rounds": recipe.rounds,
        "batch_size": recipe.batch_size,
        "lr": recipe.lr,
        "eps": defaults.eps,
        "epochs": defaults.epochs,
        "padding": defaults.padding,
        "flip": defaults.flip,
        "validation": max(1, min(1000, train_images // 10)),
        **{option.name: given[option.name] for option in of_run if option.name in given},
    }
    eps = values["eps"]
    if values["step_size"] is None:
        # The data's own step is for ten of them: fewer are longer, to reach as far, but do not
        # leap across the ball
        step = min(defaults.step_size * 10 / recipe.steps, 1.25 * defaults.eps)
        values["step_size"] = max(defaults.step_size, step) * eps / defaults.eps
    values["judge_step"] = eps * (defaults.step_size / defaults.eps)
    values["augment"] = Augment(values.pop("padding"), values.pop("flip"))
    values["model"] = _model(recipe, values["model"], defaults.model)
    if not recipe.coupled:
        values["past"] = None
    config = Config(recipe=recipe, data=data, **values)
    most = train_images - 2
    if config.validation > most:
        raise InputError(f"validation must hold out 1 to {most} images, got {config.validation}")
    return config


def _check_options(recipe: Recipe, given: Mapping[str, Any]) -> None:
    """Refuse options that do not go together, or not with this recipe or a part of it."""
    for part in (recipe.sampler, recipe.objective):
        if isinstance(part, ChecksOptions):
            part.check_options(recipe, given)
    norm = given.get("norm", "Linf")
    if norm != "Linf" and "eps" not in given:
        ball(norm, 0.5)  # an unknown name is the first thing to say
        raise InputError(f"the default eps is for Linf: give eps for norm {norm!r}, say 0.5 for L2")
    if "past" in given and not recipe.coupled:
        raise InputError(f"rounds of {recipe.name!r} are independent of each other: leave past out")
    for name in ("later_epochs", "later_lr"):
        if name in given and given.get("rounds", recipe.rounds) == recipe.rounds == 1:
            raise InputError(f"{name} is of the rounds after the first, and {recipe.name} has one")


def _model(recipe: Recipe, given: str | None, usual: str) -> str:
    """``5x{}`` makes five of the network that was asked for, or of the data's usual one;
    ``{}-silu`` its variant."""
    if given is None:
        return recipe.model.format(usual)
    prefix, slot, suffix = recipe.model.partition("{}")
    is_variant = given.startswith(prefix) and given.endswith(suffix)
    if not slot or (prefix + suffix and is_variant):
        return given
    return recipe.model.format(given)


def _changed(recipe: Recipe, name: str, value: Any) -> Recipe:
    """The recipe with an option in the part that it changes."""
    _, part, *field = BY_NAME[name].path
    old: Any = getattr(recipe, part) or _OPTIONAL_PARTS.get(name)
    new = value
    if name in _NAMED_PARTS:
        new = look_up(name, value, _NAMED_PARTS[name], _OWN if name in ("sampler", "loss") else "")
    if name == "loss":
        return _with_loss(recipe, new)
    if name == "sampler" and hasattr(old, "loss") and hasattr(new, "loss"):
        new = replace(new, loss=old.loss)
    elif name == "smoothing":
        new = _smoothed(recipe, value)
    elif BY_NAME[name].zero_is_off and value == 0:
        new = None
    elif field:
        if not hasattr(old, field[0]):
            raise InputError(f"recipe {recipe.name!r} has no {name}: leave it out")
        if name == "penalty" and not 0 <= value < math.inf:
            raise InputError(f"penalty must be a finite number of at least 0, got {value!r}")
        new = replace(old, **{field[0]: value})
    return replace(recipe, **{part: new})


def _with_loss(recipe: Recipe, loss: Any) -> Recipe:
    """Another loss in the objective, and in the attack if it raises what the objective lowers."""
    objective: Any = recipe.objective
    sampler: Any = recipe.sampler
    if not hasattr(objective, "loss"):
        raise InputError(f"recipe {recipe.name!r} has no loss of labels: leave loss out")
    if getattr(sampler, "loss", None) == objective.loss:
        sampler = replace(sampler, loss=loss)
    return replace(recipe, sampler=sampler, objective=replace(objective, loss=loss))


def _smoothed(recipe: Recipe, share: float) -> Any:
    objective: Any = recipe.objective
    if not hasattr(objective, "loss"):
        raise InputError(f"{recipe.name!r} trains on pairs, not on labels: leave smoothing out")
    hard = objective.loss.loss if isinstance(objective.loss, Smoothed) else objective.loss
    return replace(objective, loss=Smoothed(hard, share) if share != 0 else hard)


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
        bound = [repr(item) for item in value.args]
        bound += [f"{key}={item!r}" for key, item in value.keywords.items()]
        return f"{describe_parts(value.func)}({', '.join(bound)})"
    if callable(value):
        return getattr(value, "__name__", type(value).__name__)
    return value


def saved_options(config: Mapping[str, Any]) -> dict[str, Any]:
    """The options that give a saved configuration again: ``resolve`` and ``describe`` the other
    way round."""
    found = {option.name: _saved_value(option, config) for option in BY_NAME.values()}
    return {name: value for name, value in found.items() if value is not None}


def unregistered(config: Mapping[str, Any]) -> str:
    """What a saved configuration was made of that nobody has registered: "recipe 'mine'", say."""
    saved = config["recipe"]
    if saved["name"] not in RECIPES:
        return f"recipe {saved['name']!r}"
    recipe = describe_parts(RECIPES[saved["name"]])
    found = saved_options(config)
    for name, value, usual in (
        ("sampler", saved["sampler"], recipe["sampler"]),
        ("loss", saved["objective"].get("loss"), recipe["objective"].get("loss")),
    ):
        own = _bare(value)
        if name not in found and own != _bare(usual):
            return f"{name} {own['part'] if isinstance(own, dict) else own!r}"
    return ""


def _saved_value(option: Option, config: Mapping[str, Any]) -> Any:
    """What a configuration holds for an option; None where it has no place for it."""
    *above, field = option.path
    part: Any = config
    for key in above:
        if not isinstance(part, Mapping) or key not in part:
            return None
        part = part[key]
    value = part.get(field) if isinstance(part, Mapping) else None
    if option.zero_is_off:
        return value or 0
    if option.name not in _NAMED_PARTS:
        return value
    parts = {name: describe_parts(part) for name, part in _NAMED_PARTS[option.name].items()}
    return next((name for name in parts if _bare(parts[name]) == _bare(value)), None)


def _bare(part: Any) -> Any:
    """A described part without what other options say of it."""
    if not isinstance(part, dict):
        return part
    if part.get("part") == "Smoothed":
        return part.get("loss")
    return {key: value for key, value in part.items() if key not in ("loss", "eta", "aggressive")}


def describe(
    config: Config, dataset: Dataset, data_dir: str | Path | None = None
) -> dict[str, Any]:
    """What config.json holds besides the format: the configuration, and its circumstances."""
    lies = {} if data_dir is None else {"data_dir": str(Path(data_dir).absolute())}
    return {**config.describe(), **circumstances(dataset), **lies}


def circumstances(dataset: Dataset) -> dict[str, Any]:
    """The input, and the versions that made a run."""
    from mrboost import __version__

    data = {
        "shape": list(dataset.shape),
        "classes": dataset.num_classes,
        "names": list(dataset.classes),
        "fingerprint": dataset.fingerprint(),
    }
    versions = {"mrboost": __version__, "torch": torch.__version__}
    return {"input": data, "train_images": len(dataset.train), "versions": versions}
