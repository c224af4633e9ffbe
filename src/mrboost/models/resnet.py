"""Residual networks for 32×32 images: a 3×3 stem, four stages of 64 to 512 channels,
global average pooling.

He et al., "Deep Residual Learning for Image Recognition", 2016, in the form that CIFAR papers use.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from .registry import register
from .source import Shape


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
