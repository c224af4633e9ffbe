"""The registry of models: from a name to a network that takes images in [0, 1] and returns logits.

Register your own as a function of the image shape and the number of classes::

    @mrboost.models.register("my-net")
    def my_net(shape: tuple[int, int, int], classes: int) -> nn.Module: ...
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from mrboost.ensemble import Ensemble
from mrboost.errors import InputError, check_new_name, unknown_name

Shape = tuple[int, int, int]
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
    if base not in _REGISTRY:
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
    factory, normalize = _REGISTRY[base]
    network = factory(shape, classes)
    if smooth:
        _replace_relu(network, name)
    if not normalize:
        return network
    channels = shape[0]
    return nn.Sequential(Normalize(mean or [0.0] * channels, std or [1.0] * channels), network)


def _replace_relu(network: nn.Module, name: str) -> None:
    """Put SiLU in the place of every ReLU."""
    found = [path for path, module in network.named_modules() if isinstance(module, nn.ReLU)]
    if not found:
        raise InputError(f"model {name!r} cannot be built: it has no nn.ReLU to exchange for SiLU")
    for path in found:
        network.set_submodule(path, nn.SiLU())
