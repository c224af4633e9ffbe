"""One list of training options: types, names and saved configurations follow from it."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace

import pytest

from mrboost import models, recipes
from mrboost.attacks.pgd import STARTS
from mrboost.data import Dataset
from mrboost.errors import InputError
from mrboost.options import BY_NAME, OPTIONS, TrainingOptions
from mrboost.recipes.config import describe, resolve, saved_options
from mrboost.recipes.optimisation import SCHEDULES
from mrboost.runs.identity import differences


def test_the_list_is_what_type_checkers_and_registries_know() -> None:
    assert [option.name for option in OPTIONS] == list(TrainingOptions.__annotations__)
    assert BY_NAME["schedule"].choices == tuple(SCHEDULES)
    assert BY_NAME["start"].choices == tuple(STARTS)
    own = {"cnn-digits", "cnn-mnist", "cnn9", "resnet152", "resnet18", "wrn-34-10"}
    assert own <= set(models.names())  # tests register more
    assert all(name in BY_NAME["model"].help for name in own)


GIVEN = [
    ("mrboost", {"model": "cnn9", "rounds": 3, "epochs": 4, "later_epochs": 2, "later_lr": 0.01}),
    ("at", {"eps": 0.5, "norm": "L2", "steps": 3, "step_size": 0.1, "batch_size": 16, "lr": 0.2}),
    ("at", {"schedule": "one-cycle", "ema": 0.9, "clip": 1.0, "awp": 0.02, "smoothing": 0.1}),
    ("strong", {"ema": 0, "awp": 0, "cutmix": 0.5, "padding": 2, "flip": False, "seed": 7}),
    ("at", {"validation": 5, "select_on": "test", "precision": "32-true", "fast": "off"}),
    ("at", {"start": "clean"}),
    ("trades", {"start": "half", "penalty": 3.0}),
    ("mart", {"penalty": 0.0}),
    ("mrboost-exp", {"eta": 2.0, "aggressive": False}),
    ("mrboost", {"aggressive": False, "past": "best"}),
    ("at", {"loss": "mce", "sampler": "geometry"}),
    ("mart", {"loss": "mce", "smoothing": 0.2}),
    ("mrboost", {"sampler": "max", "aggressive": False}),
    ("at-mce", {"sampler": "exp", "eta": 2.0}),
]


@pytest.mark.parametrize(("recipe", "options"), GIVEN)
def test_a_saved_configuration_gives_its_options_again(
    recipe: str, options: TrainingOptions, tiny: Dataset
) -> None:
    config = resolve(recipes.get(recipe), tiny, **options)
    saved = json.loads(json.dumps(describe(config, tiny)))
    assert options.items() <= saved_options(saved).items()
    assert resolve(recipes.get(recipe), tiny, **saved_options(saved)) == config
    plain = describe(resolve(recipes.get(recipe), tiny), tiny)
    changed = {text.partition(":")[0] for text in differences(plain, saved)}
    assert options.keys() <= changed
    # A step's length, the attack's loss and what is held out follow from other options
    follows = {"step_size", "judge_step", "eps", "recipe.sampler.loss", "past", "aggressive"}
    assert changed <= options.keys() | follows
    assert differences(saved, describe(config, tiny)) == []


def test_every_option_is_tried_above() -> None:
    assert {name for _, options in GIVEN for name in options} == BY_NAME.keys()


@pytest.mark.parametrize(
    ("recipe", "options", "message"),
    [
        ("at", {"start": "middle"}, "unknown start 'middle'"),
        ("at", {"schedule": "cosine"}, "unknown schedule 'cosine'"),
        ("at", {"penalty": 1.0}, "recipe 'at' has no penalty"),
        ("trades", {"penalty": -1.0}, "a finite number of at least 0, got -1.0"),
        ("trades", {"penalty": math.inf}, "a finite number of at least 0, got inf"),
        ("mrboost", {"eta": 1.0}, "recipe 'mrboost' has no eta"),
        ("mrboost-exp", {"eta": -1.0}, "eta >= 0"),
        ("at", {"aggressive": True}, "recipe 'at' has no aggressive"),
        ("mrboost", {"past": "first"}, "past must be one of last, best, got 'first'"),
        ("at", {"past": "last"}, "independent of each other: leave past out"),
        ("mrboost-exp", {"norm": "L2", "eps": 0.5}, "draws from Linf balls"),
        ("mrboost-exp", {"steps": 3}, "moves of its own: leave steps out"),
        ("mrboost-rnd", {"cutmix": 0.5}, "two labels"),
        ("mrboost-rnd", {"smoothing": 0.1}, "trains on pairs"),
        ("mrboost-rnd", {"loss": "mce"}, "no loss of labels: leave loss out"),
        ("at", {"loss": "mze"}, r"unknown loss 'mze': did you mean mce\? .your own: register it"),
        ("at", {"sampler": "al"}, "unknown sampler 'al': did you mean all"),
        ("at", {"sampler": "exp", "norm": "L2", "eps": 0.5}, "draws from Linf balls"),
        ("at", {"ema": 1.0}, "between 0 and 1, got 1.0"),
        ("at", {"clip": 0.0}, "positive bound of the gradient's norm, got 0.0"),
        ("at", {"epochs": 10**9}, "whole number in 1 … 10,000,000, got 1000000000"),
    ],
)
def test_what_a_recipe_cannot_follow_is_refused(
    recipe: str, options: TrainingOptions, message: str, tiny: Dataset
) -> None:
    with pytest.raises(InputError, match=message):
        resolve(recipes.get(recipe), tiny, **options)


def test_a_part_without_what_training_asks_of_it_is_refused(tiny: Dataset) -> None:
    @dataclass(frozen=True)
    class Bare:
        def __call__(self, turn):
            raise AssertionError("no training begins")

    with pytest.raises(InputError, match="sampler of recipe 'at' has no attribute 'joint'"):
        resolve(replace(recipes.AT, sampler=Bare()), tiny)
    with pytest.raises(InputError, match="schedule of recipe 'at' has no attribute 'settled'"):
        resolve(replace(recipes.AT, schedule=Bare()), tiny)
