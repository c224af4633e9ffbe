"""The library's own networks: small convolutional ones, residual ones in the form that CIFAR papers
use (a 3×3 stem, four stages of 64 to 512 channels, global average pooling), and wide residual ones
with pre-activation, as TRADES and its successors use them.

He et al., "Deep Residual Learning for Image Recognition", 2016; Zagoruyko & Komodakis, "Wide
Residual Networks", 2016.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

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


def _conv_bn(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias=False),
        nn.BatchNorm2d(outputs),
    )


class _Residual(nn.Module):
    """``relu(branch(x) + shortcut(x))``; the shortcut is a 1×1 convolution
    where the shape changes."""

    def __init__(self, branch: nn.Module, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.branch = branch
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else _conv_bn(inputs, outputs, 1, stride)
        self.activation = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.activation(self.branch(x) + self.shortcut(x))  # type: ignore[no-any-return]


def _basic(inputs: int, width: int, stride: int) -> _Residual:
    branch = nn.Sequential(_conv_bn(inputs, width, 3, stride), nn.ReLU(), _conv_bn(width, width, 3))
    return _Residual(branch, inputs, width, stride)


def _bottleneck(inputs: int, width: int, stride: int) -> _Residual:
    branch = nn.Sequential(
        _conv_bn(inputs, width, 1),
        nn.ReLU(),
        _conv_bn(width, width, 3, stride),
        nn.ReLU(),
        _conv_bn(width, 4 * width, 1),
    )
    return _Residual(branch, inputs, 4 * width, stride)


def _resnet(shape: Shape, classes: int, depths: Sequence[int], *, bottleneck: bool) -> nn.Module:
    block, expansion = (_bottleneck, 4) if bottleneck else (_basic, 1)
    stages: list[nn.Module] = [_conv_bn(shape[0], 64, 3), nn.ReLU()]
    channels = 64
    for stage, depth in enumerate(depths):
        width = 64 * 2**stage
        for i in range(depth):
            stages.append(block(channels, width, 2 if stage > 0 and i == 0 else 1))
            channels = width * expansion
    stages += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes)]
    return nn.Sequential(*stages)


@register("resnet18")
def resnet18(shape: Shape, classes: int) -> nn.Module:
    """11,173,962 parameters for ten classes: the base learner of the paper."""
    return _resnet(shape, classes, [2, 2, 2, 2], bottleneck=False)


@register("resnet152")
def resnet152(shape: Shape, classes: int) -> nn.Module:
    """58,156,618 parameters for ten classes: the paper's "deeper" model."""
    return _resnet(shape, classes, [3, 8, 36, 3], bottleneck=True)


class _WideBlock(nn.Module):
    """BN–ReLU–conv twice, plus the input; where the shape changes, plus a 1×1 convolution of the
    activated input."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.activation1, self.activation2 = nn.ReLU(), nn.ReLU()
        self.shortcut = None
        if inputs != outputs:
            self.shortcut = nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        activated = self.activation1(self.norm1(x))
        residual: Tensor = self.conv2(self.activation2(self.norm2(self.conv1(activated))))
        return residual + (x if self.shortcut is None else self.shortcut(activated))


def _wide_resnet(shape: Shape, classes: int, depth: int, widen: int) -> nn.Module:
    blocks = (depth - 4) // 6
    layers: list[nn.Module] = [nn.Conv2d(shape[0], 16, 3, padding=1, bias=False)]
    channels = 16
    for stage, width in enumerate((16 * widen, 32 * widen, 64 * widen)):
        for i in range(blocks):
            layers.append(_WideBlock(channels, width, 2 if stage > 0 and i == 0 else 1))
            channels = width
    layers += [nn.BatchNorm2d(channels), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(channels, classes))


@register("wrn-34-10")
def wrn_34_10(shape: Shape, classes: int) -> nn.Module:
    """WideResNet-34-10: 46,160,474 parameters for ten classes."""
    return _wide_resnet(shape, classes, depth=34, widen=10)
