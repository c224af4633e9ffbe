"""What is refused before an epoch is spent on it: a model, a sampler or an objective that does not
give what training asks of it. Each is tried once, on two images."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from mrboost.attacks import attacked
from mrboost.data import Dataset
from mrboost.errors import InputError
from mrboost.recipes.config import Config
from mrboost.recipes.samplers import Sample, Turn
from mrboost.seeds import global_stream


def check_parts(config: Config, learner: nn.Module, dataset: Dataset, processes: int = 1) -> None:
    """Refuse a model, a sampler, an objective or a batch size that does not fit.

    ``learner`` is a network that nothing else needs: its statistics change.
    """
    if config.batch_size < 2 * processes:
        raise InputError(f"batch_size {config.batch_size} is less than 2 images for each process")
    _, height, width = dataset.shape
    if not 0 <= config.augment.padding <= max(height, width):
        most = f"0 to {max(height, width)}, the images' size"
        raise InputError(f"padding must be {most}, got {config.augment.padding}")
    few = dataset.train[:2]
    x, y = few.images().cpu(), few.y.cpu()
    with global_stream(0, torch.device("cpu")):
        _check_model(learner, config.model, x, dataset)
        for past in [[], [learner]][: config.rounds]:
            _check_step(config, learner, past, x, y)


def _check_model(learner: nn.Module, name: str, x: Tensor, dataset: Dataset) -> None:
    """One logit for each class, and the images as they were."""
    given = x.clone()
    with attacked(learner), torch.no_grad():
        logits = learner(given)
    if _shape(logits) != (2, dataset.num_classes):
        remedy = "check the function that was registered"
        if not isinstance(logits, Tensor):
            remedy = "let it return mrboost.models.Logits(network)"
        raise InputError(
            f"model {name!r} must return logits of shape (2, {dataset.num_classes}) for 2 images "
            f"of {dataset.name}, it gave {_shape(logits)}: {remedy}"
        )
    if not torch.equal(given, x):
        raise InputError(f"model {name!r} changes its images: compute x - mean, not x.sub_(mean)")


def _check_step(
    config: Config, learner: nn.Module, past: list[nn.Module], x: Tensor, y: Tensor
) -> None:
    """A batch as ``Step`` makes and judges it, with one step of the attack."""
    recipe, attack = config.recipe, replace(config.attack(), steps=1)
    turn = Turn(attack, learner, past, x, y, torch.Generator().manual_seed(0))
    sample: object = recipe.sampler(turn)
    called = f"sampler {type(recipe.sampler).__name__} of recipe {recipe.name!r}"
    if not isinstance(sample, Sample):
        remedy = "return turn.sample(x_adv)"
        raise InputError(f"{called} gave {type(sample).__name__} and no Sample: {remedy}")
    if _shape(sample.x) != x.shape:
        remedy = "keep the shape of turn.x"
        raise InputError(f"{called} gave {_shape(sample.x)} for {tuple(x.shape)}: {remedy}")
    found: Any = recipe.objective(recipe.scope(learner, past), sample)
    called = f"objective {type(recipe.objective).__name__} of recipe {recipe.name!r}"
    if not isinstance(found, tuple) or len(found) != 2:
        remedy = "return (losses, logits)"
        raise InputError(f"{called} gave {type(found).__name__} and no pair: {remedy}")
    shapes = tuple(map(_shape, found))
    if shapes[0] != (2,) or len(shapes[1]) != 2:
        remedy = 'it must give one loss for each image: call its loss with reduction="none"'
        raise InputError(f"{called} gave losses of shape {shapes[0]} for 2 images: {remedy}")


def _shape(value: object) -> Any:
    """The shape of a tensor, or what a value is instead of one."""
    return tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
