"""A multi-layer perceptron: tabular rows, embeddings, or tiny images."""

from __future__ import annotations

import math

from torch import Tensor, nn

from fedsift.models.factory import models
from fedsift.models.network import Network


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
