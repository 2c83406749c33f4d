"""A linear head on frozen features: what a federation trains when its sites embed their images once."""

from __future__ import annotations

import math

from torch import Tensor, nn

from fedsift.models.network import Network
from fedsift.models.registry import models

PREFIX = "features:"


class Head(Network):
    stem = "features"

    def __init__(self, inputs: int, n_classes: int) -> None:
        super().__init__()
        # scaled row by row, not by statistics over samples: those would differ from site to site
        self.scale = nn.LayerNorm(inputs, elementwise_affine=False)
        self.head = nn.Linear(inputs, n_classes)

    def features(self, x: Tensor) -> Tensor:
        scaled: Tensor = self.scale(x.flatten(1))
        return scaled


@models.register("linear")
def linear(shape: tuple[int, ...], n_classes: int) -> Head:
    """A linear classifier on flattened samples or features, each scaled to mean 0 and variance 1."""
    return Head(math.prod(shape), n_classes)
