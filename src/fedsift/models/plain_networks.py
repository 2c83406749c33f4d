"""Plain networks by name: a small CNN, a multi-layer perceptron, LeNet-5 and VGG-11."""

from __future__ import annotations

import math

from torch import Tensor, nn

from fedsift.models.factory import models
from fedsift.models.network import Dropout, Network, image_sides


class SmallCNN(Network):
    """conv 3x3 32, pool, conv 3x3 64, pool, average to at most 4x4, linear 128, head."""

    stem = "3x3, stride 1"

    def __init__(self, channels: int, height: int, width: int, n_classes: int) -> None:
        super().__init__()
        cells = (min(4, height // 4), min(4, width // 4))
        self.encoder = nn.Sequential(
            nn.Conv2d(channels, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.AdaptiveAvgPool2d(cells),
            nn.Flatten(),
            nn.Linear(64 * cells[0] * cells[1], 128),
            nn.ReLU(),
        )
        self.head = nn.Linear(128, n_classes)

    def features(self, x: Tensor) -> Tensor:
        features: Tensor = self.encoder(x)
        return features


@models.register("cnn")
def cnn(shape: tuple[int, ...], n_classes: int) -> SmallCNN:
    """Two convolutions and one hidden layer; images from 8x8 up."""
    return SmallCNN(*image_sides("cnn", shape, smallest=8), n_classes)


# Multi-layer perceptron
# ----------------------


class MLP(Network):
    stem = "flatten"

    def __init__(self, inputs: int, hidden: tuple[int, ...], n_classes: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for width_in, width_out in zip((inputs, *hidden), hidden):
            layers += [nn.Linear(width_in, width_out), nn.ReLU()]
        self.encoder = nn.Sequential(nn.Flatten(), *layers)
        self.head = nn.Linear(hidden[-1], n_classes)

    def features(self, x: Tensor) -> Tensor:
        features: Tensor = self.encoder(x)
        return features


@models.register("mlp")
def mlp(shape: tuple[int, ...], n_classes: int) -> MLP:
    """Two hidden layers of 128 on flattened samples, of any shape."""
    return MLP(math.prod(shape), (128, 128), n_classes)


# LeNet-5
# -------


class LeNet5(Network):
    """conv 5x5 6, pool, conv 5x5 16, pool, linear 120, linear 84, head.

    On 32x32 images no padding is used. Smaller images are padded by 2 in the first convolution (28x28, as
    LeCun's digits), and in the second too where its map would otherwise be under 6x6.
    """

    stem = "5x5, stride 1"

    def __init__(self, channels: int, height: int, width: int, n_classes: int) -> None:
        super().__init__()
        first = 0 if min(height, width) >= 32 else 2
        half = [(side - 4 + 2 * first) // 2 for side in (height, width)]
        second = 0 if min(half) >= 6 else 2
        quarter = [(side - 4 + 2 * second) // 2 for side in half]
        self.encoder = nn.Sequential(
            nn.Conv2d(channels, 6, 5, padding=first),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(6, 16, 5, padding=second),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(16 * quarter[0] * quarter[1], 120),
            nn.ReLU(),
            nn.Linear(120, 84),
            nn.ReLU(),
        )
        self.head = nn.Linear(84, n_classes)

    def features(self, x: Tensor) -> Tensor:
        features: Tensor = self.encoder(x)
        return features


@models.register("lenet5")
def lenet5(shape: tuple[int, ...], n_classes: int) -> LeNet5:
    """LeNet-5 for any image size from 4x4, channels and classes."""
    return LeNet5(*image_sides("lenet5", shape, smallest=4), n_classes)


# VGG-11
# ------


# Widths of the eight convolutions; a pool follows each group.
_GROUPS = ((64,), (128,), (256, 256), (512, 512), (512, 512))


class VGG11(Network):
    """Eight 3x3 convolutions, two hidden layers of 512 with dropout, head.

    The paper's layers of 4,096 are for 224x224 images; on 32x32 the last map is 1x1x512. A pool is left
    out where a smaller image has nothing left to halve.
    """

    stem = "3x3, stride 1"

    def __init__(self, channels: int, height: int, width: int, n_classes: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        inputs = channels
        for group in _GROUPS:
            for outputs in group:
                layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU()]
                inputs = outputs
            if min(height, width) > 1:
                layers.append(nn.MaxPool2d(2))
                height, width = height // 2, width // 2
        self.convolutions = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.hidden = nn.Sequential(
            nn.Linear(512, 512), nn.ReLU(), Dropout(0.5), nn.Linear(512, 512), nn.ReLU(), Dropout(0.5)
        )
        self.head = nn.Linear(512, n_classes)
        # Without batch norm the default start is too small for eight layers: the signal dies.
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)

    def features(self, x: Tensor) -> Tensor:
        features: Tensor = self.hidden(self.convolutions(x))
        return features


@models.register("vgg11-cifar")
def vgg11_cifar(shape: tuple[int, ...], n_classes: int) -> VGG11:
    """VGG-11 for small images, without batch norm (FedCorr's appendix)."""
    return VGG11(*image_sides("vgg11-cifar", shape), n_classes)
