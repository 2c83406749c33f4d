"""MobileNetV2 (Sandler et al., 2018) and ShuffleNet (Zhang et al., 2018, two groups), with strides for small images.

Two of RHFL's four networks.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

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


# ShuffleNet
# ----------


_SHUFFLENET_STAGES = ((200, 4), (400, 8), (800, 4))
"""(width, units) of the stages for two groups."""
_STEM_WIDTH = 24


class ShuffleUnit(nn.Module):
    """Grouped 1x1, channel shuffle, 3x3 depthwise, grouped 1x1, around a shortcut.

    With stride 2 the input is averaged to half its sides and appended instead of added.
    """

    def __init__(self, inputs: int, outputs: int, stride: int, first_groups: int, groups: int) -> None:
        super().__init__()
        middle = outputs // 4
        self.halves = stride == 2
        # A unit that halves the map appends its input, so its own branch gives only what is missing.
        branch = outputs - inputs if self.halves else outputs
        self.reduce = nn.Sequential(
            nn.Conv2d(inputs, middle, 1, groups=first_groups, bias=False), nn.BatchNorm2d(middle), nn.ReLU()
        )
        self.shuffle = nn.ChannelShuffle(groups)
        self.depthwise = nn.Sequential(
            nn.Conv2d(middle, middle, 3, stride=stride, padding=1, groups=middle, bias=False),
            nn.BatchNorm2d(middle),
        )
        self.expand = nn.Sequential(nn.Conv2d(middle, branch, 1, groups=groups, bias=False), nn.BatchNorm2d(branch))
        self.shortcut = nn.AvgPool2d(3, stride=2, padding=1) if self.halves else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = self.expand(self.depthwise(self.shuffle(self.reduce(x))))
        kept = self.shortcut(x)
        return F.relu(torch.cat([y, kept], dim=1) if self.halves else y + kept)


class ShuffleNet(Network):
    """1x1 stem of 24, stages of shuffle units, average, head. Nothing is halved before the first stage."""

    stem = "1x1, stride 1"

    def __init__(self, channels: int, groups: int, n_classes: int) -> None:
        super().__init__()
        self.entry = nn.Sequential(
            nn.Conv2d(channels, _STEM_WIDTH, 1, bias=False), nn.BatchNorm2d(_STEM_WIDTH), nn.ReLU()
        )
        inputs = _STEM_WIDTH
        units: list[nn.Module] = []
        for width, depth in _SHUFFLENET_STAGES:
            for index in range(depth):
                # The paper does not group the very first 1x1: its input is too narrow.
                first_groups = 1 if not units else groups
                units.append(ShuffleUnit(inputs, width, 2 if index == 0 else 1, first_groups, groups))
                inputs = width
        self.units = nn.Sequential(*units)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(inputs, n_classes)

    def features(self, x: Tensor) -> Tensor:
        pooled: Tensor = self.pool(self.units(self.entry(x)))
        return pooled.flatten(1)


@models.register("shufflenet-g2-cifar")
def shufflenet_g2_cifar(shape: tuple[int, ...], n_classes: int) -> ShuffleNet:
    """ShuffleNet with two groups, widths 200, 400, 800, for small images."""
    channels, _, _ = image_sides("shufflenet-g2-cifar", shape)
    return ShuffleNet(channels, 2, n_classes)
