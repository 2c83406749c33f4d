"""A small convolutional network for images from 8x8 up; its size does not grow with the image."""

from __future__ import annotations

from torch import Tensor, nn

from fedsift.models.factory import models
from fedsift.models.network import Network, image_sides


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
