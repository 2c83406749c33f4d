"""VGG-11 (configuration A of Simonyan and Zisserman, 2015) for small images, without batch norm."""

from __future__ import annotations

from torch import Tensor, nn

from fedsift.models.dropout import Dropout
from fedsift.models.factory import models
from fedsift.models.network import Network, image_sides

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
