"""The registry of models: from a name to a network that takes images in [0, 1] and returns logits.

Register your own as a function of the image shape and the number of classes::

    @mrboost.models.register("my-net")
    def my_net(shape: tuple[int, int, int], classes: int) -> nn.Module: ...
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mrboost.ensemble import Classifier, Ensemble
from mrboost.errors import InputError, check_new_name, unknown_name
from mrboost.files import State
from mrboost.seeds import global_stream

from . import source
from .black_box import as_model
from .source import Shape

Factory = Callable[[Shape, int], nn.Module]


class Normalize(nn.Module):
    """``(x − mean) / std`` per channel; the constants are saved with the weights."""

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean).view(1, -1, 1, 1))
        self.register_buffer("std", torch.tensor(std).view(1, -1, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.std


# How each model is built, and whether its images are normalised.
_REGISTRY: dict[str, tuple[Factory, bool]] = {}


def register(name: str, *, normalize: bool = True) -> Callable[[Factory], Factory]:
    """Make a model available under ``name``.

    Args:
        name: what ``build`` and ``--model`` call it.
        normalize: put normalisation by the data's mean and deviation before the model; without it
            the model sees images in [0, 1].
    """

    def decorate(factory: Factory) -> Factory:
        check_new_name("model", name, _REGISTRY)
        _REGISTRY[name] = factory, normalize
        return factory

    return decorate


def add(name: str) -> None:
    """Make a function, a class or a network of a file or a module available under this name.

    Args:
        name: ``file.py:function`` or ``package.module:function``; it is imported, so its code runs.
            What is registered keeps its ``normalize``; other networks see images that are
            normalised by the data's mean and deviation when they are trained.
    """
    target = source.find(name)
    normalize = next((own for one, own in _REGISTRY.values() if one is target), True)
    _REGISTRY[name] = partial(source.call, target, name), normalize


def names() -> tuple[str, ...]:
    """The names of all models."""
    return tuple(sorted(_REGISTRY))


def check(name: str) -> None:
    """Refuse a name that is not registered."""
    _parts(name)


def _parts(name: str) -> tuple[int, str, bool]:
    """``5xresnet18-silu`` is 5 copies of ``resnet18`` with SiLU."""
    match = re.fullmatch(r"(?:([1-9]\d?)x)?(.+?)(-silu)?", name)
    if match is None or name in _REGISTRY:
        copies, base, smooth = 1, name, False
    else:
        copies, base, smooth = int(match[1] or 1), match[2], bool(match[3])
    if base not in _REGISTRY and not source.is_alias(base):
        if ":" in base:
            trust = f"if you trust it, --import {base}"
            raise InputError(f"model {base!r} is code that was not imported: {trust}")
        hint = "your own: mrboost.models.register, and --import its module"
        raise unknown_name("model", base, _REGISTRY, hint)
    return copies, base, smooth


def build(
    name: str,
    shape: Shape = (3, 32, 32),
    classes: int = 10,
    *,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
) -> nn.Module:
    """A freshly initialised network.

    Args:
        name: one of ``names()``; ``5xNAME`` is five of them as one network with the mean of their
            logits, ``NAME-silu`` has SiLU, which is smooth, in place of ReLU.
        shape: channels, height and width of the images.
        classes: the number of logits.
        mean, std: of the data's channels, for the normalisation inside.

    Example:
        >>> build("cnn-digits", (1, 8, 8), 10)(torch.rand(2, 1, 8, 8)).shape
        torch.Size([2, 10])
    """
    copies, base, smooth = _parts(name)
    if copies > 1:
        one = name.partition("x")[2]
        return Ensemble(build(one, shape, classes, mean=mean, std=std) for _ in range(copies))
    if base in _REGISTRY:
        factory, normalize = _REGISTRY[base]
        network = factory(shape, classes)
    else:
        network, normalize = source.from_alias(base, classes, pretrained=False), True
    if not isinstance(network, nn.Module):
        raise InputError(f"model {base!r} is a function of images: training needs an nn.Module")
    if smooth:
        _replace_relu(network, name)
    if not normalize:
        return network
    channels = shape[0]
    return nn.Sequential(Normalize(mean or [0.0] * channels, std or [1.0] * channels), network)


def check_size(name: str, shape: Shape, classes: int, state: State, path: str | Path) -> None:
    """Refuse a network with more weights than a file holds, before it takes memory: a stranger's
    run may name any network for images of any shape."""
    try:
        with torch.device("meta"):
            network = build(name, shape, classes)
    except InputError:
        raise
    except Exception:  # a network of the user's own that cannot be built without memory
        return
    # BatchNorm's counters of batches may be missing
    most, found = (
        sum(value.numel() for value in tensors.values() if value.is_floating_point())
        for tensors in (state, network.state_dict())
    )
    if found > most:
        raise InputError(
            f"{path} does not fit model {name!r}: it holds {most:,} numbers, and the model has "
            f"{found:,} for images of shape {tuple(shape)} and {classes} classes: give its own"
        )


def given(
    name: str,
    shape: Shape,
    classes: int,
    *,
    weights: str | Path | None = None,
    normalize: tuple[Sequence[float], Sequence[float]] | None = None,
) -> Classifier:
    """A model to evaluate as it is: of images in [0, 1], in eval mode, on the CPU.

    Args:
        name: one of ``names()``, which needs weights, an imported one or an alias.
        shape: channels, height and width of the images.
        classes: the number of logits.
        weights: a file of ``read_weights``; without it the model has its own.
        normalize: mean and deviation of each channel, for a model that expects images so.
    """
    _, base, _ = _parts(name)
    state: State = {}
    with global_stream(0, torch.device("cpu")):
        if source.is_alias(base):
            model: Any = source.from_alias(base, classes, pretrained=weights is None)
        elif ":" in base:
            model = _REGISTRY[base][0](shape, classes)
        elif weights is None:
            raise InputError(f"model {name!r} has no weights of its own: give --weights FILE")
        else:
            state = source.read_weights(weights)
            check_size(name, shape, classes, state, weights)
            model = build(name, shape, classes)
    if not isinstance(model, nn.Module):
        if weights is not None or normalize is not None:
            raise InputError(f"{name} is a function of images: load and normalise inside it")
        return as_model(model, torch.full((1, *shape), 0.5), classes)  # type: ignore[no-any-return]
    if weights is not None:
        state = state or source.read_weights(weights)
        if "0.mean" in state and "0.mean" not in model.state_dict():  # of a run: it normalises
            model = nn.Sequential(Normalize([0.0] * shape[0], [1.0] * shape[0]), model)
        source.fill(model, state, f"{weights} does not fit {name}")
    if normalize is not None:
        model = nn.Sequential(Normalize(*normalize), model)
    model.requires_grad_(False).eval()
    return model if source.returns_tensor(model, shape) else source.Logits(model).eval()


def _replace_relu(network: nn.Module, name: str) -> None:
    """Put SiLU in the place of every ReLU."""
    found = [path for path, module in network.named_modules() if isinstance(module, nn.ReLU)]
    if not found:
        raise InputError(f"model {name!r} cannot be built: it has no nn.ReLU to exchange for SiLU")
    for path in found:
        network.set_submodule(path, nn.SiLU())
