"""ShuffleNet (Zhang et al., 2018) with two groups, for small images (one of RHFL's four networks)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedsift.models.factory import models
from fedsift.models.network import Network, image_sides

_STAGES = ((200, 4), (400, 8), (800, 4))
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
        for width, depth in _STAGES:
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
