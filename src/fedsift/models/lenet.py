"""LeNet-5 (LeCun et al., 1998) with ReLU and max pooling, as the federated papers use it on CIFAR-10."""

from __future__ import annotations

from torch import Tensor, nn

from fedsift.models.factory import models
from fedsift.models.network import Network, image_sides


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
