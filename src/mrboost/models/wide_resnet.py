"""Wide residual networks with pre-activation (Zagoruyko & Komodakis 2016), as TRADES and its
successors use them."""

from __future__ import annotations

from torch import Tensor, nn

from .registry import register
from .source import Shape


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
