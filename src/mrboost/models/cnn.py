"""Plain convolutional networks: two small ones for digits and MNIST, and the nine-layer one
of Wang et al. 2019."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from mrboost.errors import InputError

from .registry import register
from .source import Shape


def _convnet(shape: Shape, classes: int, blocks: Sequence[Sequence[int]], hidden: int) -> nn.Module:
    """Blocks of 3×3 convolutions with BatchNorm, each block ending in 2×2 pooling,
    then one hidden layer."""
    channels, height, width = shape
    shrink = 2 ** len(blocks)
    if height < shrink or width < shrink:
        raise InputError(f"images of {height}x{width} are too small: this model needs {shrink}")
    layers: list[nn.Module] = []
    for block in blocks:
        for out in block:
            convolution = nn.Conv2d(channels, out, 3, padding=1)
            layers += [convolution, nn.BatchNorm2d(out), nn.ReLU(inplace=True)]
            channels = out
        layers.append(nn.MaxPool2d(2))
    features = channels * (height // shrink) * (width // shrink)
    layers += [nn.Flatten(), nn.Linear(features, hidden), nn.BatchNorm1d(hidden)]
    return nn.Sequential(*layers, nn.ReLU(inplace=True), nn.Linear(hidden, classes))


@register("cnn-digits")
def cnn_digits(shape: Shape, classes: int) -> nn.Module:
    """Two convolutions, for 8×8 images: trains in seconds on a laptop."""
    return _convnet(shape, classes, blocks=[[32], [64]], hidden=64)


@register("cnn-mnist")
def cnn_mnist(shape: Shape, classes: int) -> nn.Module:
    """Four convolutions, for 28×28 images."""
    return _convnet(shape, classes, blocks=[[32, 32], [64, 64]], hidden=128)


@register("cnn9")
def cnn9(shape: Shape, classes: int) -> nn.Module:
    """Wang et al. 2019: six convolutions of 64, 64, 128, 128, 196, 196 channels and a
    hidden layer of 256."""
    return _convnet(shape, classes, blocks=[[64, 64], [128, 128], [196, 196]], hidden=256)
