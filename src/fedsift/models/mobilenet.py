"""MobileNetV2 (Sandler et al., 2018) with strides for small images (one of RHFL's four networks)."""

from __future__ import annotations

from torch import Tensor, nn

from fedsift.models.factory import models
from fedsift.models.network import Network, image_sides

_STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 1),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
"""(expansion t, width c, blocks n, stride s), the paper's Table 2 without the second stage's stride."""


def _convolution(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    convolution = nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, groups=groups, bias=False)
    return [convolution, nn.BatchNorm2d(outputs)]


class InvertedResidual(nn.Module):
    """1x1 to t times the width, 3x3 depthwise, linear 1x1; a shortcut where shapes agree."""

    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = inputs * expansion
        widen = [*_convolution(inputs, wide, 1), nn.ReLU6()] if expansion > 1 else []
        self.branch = nn.Sequential(
            *widen,
            *_convolution(wide, wide, 3, stride=stride, groups=wide),
            nn.ReLU6(),
            *_convolution(wide, outputs, 1),
        )
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.branch(x)
        return x + y if self.residual else y


class MobileNetV2(Network):
    """Stem of 32, inverted residuals, 1x1 to 1,280, average, head."""

    stem = "3x3, stride 1"

    def __init__(self, channels: int, n_classes: int) -> None:
        super().__init__()
        self.entry = nn.Sequential(*_convolution(channels, 32, 3), nn.ReLU6())
        inputs = 32
        blocks: list[nn.Module] = []
        for expansion, width, depth, stride in _STAGES:
            for index in range(depth):
                blocks.append(InvertedResidual(inputs, width, stride if index == 0 else 1, expansion))
                inputs = width
        self.blocks = nn.Sequential(*blocks)
        self.last = nn.Sequential(*_convolution(inputs, 1280, 1), nn.ReLU6())
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(1280, n_classes)

    def features(self, x: Tensor) -> Tensor:
        pooled: Tensor = self.pool(self.last(self.blocks(self.entry(x))))
        return pooled.flatten(1)


@models.register("mobilenetv2-cifar")
def mobilenetv2_cifar(shape: tuple[int, ...], n_classes: int) -> MobileNetV2:
    """MobileNetV2 that halves three times, for small images."""
    channels, _, _ = image_sides("mobilenetv2-cifar", shape)
    return MobileNetV2(channels, n_classes)
