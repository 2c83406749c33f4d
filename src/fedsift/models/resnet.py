"""Residual networks (He et al., 2016). The name says the stem: it is worth ten points on CIFAR.

`-cifar`: 3x3 convolution, stride 1, no pooling: small images keep their resolution.
`-imagenet`: 7x7 convolution, stride 2, then 3x3 max pooling, stride 2.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional as F

from fedsift.models.factory import models
from fedsift.models.network import Network, image_sides


def _shortcut(inputs: int, outputs: int, stride: int) -> nn.Module:
    """The identity where shapes agree, else a 1x1 convolution with batch norm (option B of the paper)."""
    if stride == 1 and inputs == outputs:
        return nn.Identity()
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), nn.BatchNorm2d(outputs))


class BasicBlock(nn.Module):
    """Two 3x3 convolutions around a shortcut."""

    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride=stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.shortcut = _shortcut(inputs, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


class Bottleneck(nn.Module):
    """1x1, 3x3 (with the stride), 1x1 to four times the width, around a shortcut."""

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.norm3 = nn.BatchNorm2d(4 * width)
        self.shortcut = _shortcut(inputs, 4 * width, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        y = F.relu(self.norm2(self.conv2(y)))
        return F.relu(self.norm3(self.conv3(y)) + self.shortcut(x))


def _cifar_stem(channels: int, width: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(channels, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU())


def _imagenet_stem(channels: int, width: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels, width, 7, stride=2, padding=3, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.MaxPool2d(3, stride=2, padding=1),
    )


class ResNet(Network):
    """A stem, groups of blocks (all but the first halve the sides and double the width), average, head."""

    def __init__(
        self,
        block: type[BasicBlock] | type[Bottleneck],
        depths: Sequence[int],
        width: int,
        stem: str,
        channels: int,
        n_classes: int,
    ) -> None:
        super().__init__()
        if stem == "imagenet":
            self.stem, self.entry = "7x7, stride 2, pooled", _imagenet_stem(channels, width)
        else:
            self.stem, self.entry = "3x3, stride 1", _cifar_stem(channels, width)
        inputs = width
        groups: list[nn.Module] = []
        for position, depth in enumerate(depths):
            outputs = width * 2**position
            blocks: list[nn.Module] = []
            for index in range(depth):
                stride = 2 if position > 0 and index == 0 else 1
                blocks.append(block(inputs, outputs, stride))
                inputs = outputs * block.expansion
            groups.append(nn.Sequential(*blocks))
        self.groups = nn.Sequential(*groups)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(inputs, n_classes)

    def features(self, x: Tensor) -> Tensor:
        pooled: Tensor = self.pool(self.groups(self.entry(x)))
        return pooled.flatten(1)


@models.register("resnet8-cifar")
def resnet8_cifar(shape: tuple[int, ...], n_classes: int) -> ResNet:
    """ResNet-8 of the paper's CIFAR family: three groups of one block, widths 16, 32, 64."""
    channels, _, _ = image_sides("resnet8-cifar", shape)
    return ResNet(BasicBlock, (1, 1, 1), 16, "cifar", channels, n_classes)


@models.register("resnet10-cifar")
def resnet10_cifar(shape: tuple[int, ...], n_classes: int) -> ResNet:
    """Four groups of one block each, widths 64 to 512 (one of RHFL's four networks)."""
    channels, _, _ = image_sides("resnet10-cifar", shape)
    return ResNet(BasicBlock, (1, 1, 1, 1), 64, "cifar", channels, n_classes)


@models.register("resnet12-cifar")
def resnet12_cifar(shape: tuple[int, ...], n_classes: int) -> ResNet:
    """As ResNet-10 with two blocks in the first group (one of RHFL's four networks)."""
    channels, _, _ = image_sides("resnet12-cifar", shape)
    return ResNet(BasicBlock, (2, 1, 1, 1), 64, "cifar", channels, n_classes)


@models.register("resnet18-cifar")
def resnet18_cifar(shape: tuple[int, ...], n_classes: int) -> ResNet:
    """ResNet-18 with a stem for small images (FedCorr's on CIFAR-10)."""
    channels, _, _ = image_sides("resnet18-cifar", shape)
    return ResNet(BasicBlock, (2, 2, 2, 2), 64, "cifar", channels, n_classes)


@models.register("resnet18-imagenet")
def resnet18_imagenet(shape: tuple[int, ...], n_classes: int) -> ResNet:
    """ResNet-18 with the ImageNet stem (FedNoRo's and FedMLP's)."""
    channels, _, _ = image_sides("resnet18-imagenet", shape)
    return ResNet(BasicBlock, (2, 2, 2, 2), 64, "imagenet", channels, n_classes)


@models.register("resnet34-cifar")
def resnet34_cifar(shape: tuple[int, ...], n_classes: int) -> ResNet:
    """ResNet-34 with a stem for small images (FedCorr's on CIFAR-100)."""
    channels, _, _ = image_sides("resnet34-cifar", shape)
    return ResNet(BasicBlock, (3, 4, 6, 3), 64, "cifar", channels, n_classes)


@models.register("resnet50-imagenet")
def resnet50_imagenet(shape: tuple[int, ...], n_classes: int) -> ResNet:
    """ResNet-50 with the ImageNet stem (FedCorr's on Clothing1M)."""
    channels, _, _ = image_sides("resnet50-imagenet", shape)
    return ResNet(Bottleneck, (3, 4, 6, 3), 64, "imagenet", channels, n_classes)
