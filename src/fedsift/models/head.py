"""A head on frozen features: what a federation trains when its sites embed their images once."""

from __future__ import annotations

import math
from typing import NamedTuple

from torch import Tensor, nn

from fedsift.core.errors import ConfigError
from fedsift.models.factory import Builder, models
from fedsift.models.network import Network

PREFIX = "features:"


class FeaturesName(NamedTuple):
    """The parts of `features:EXTRACTOR[@SIDE][+HIDDEN]`."""

    extractor: str
    side: int | None
    """Side to which pictures are scaled; None is the usual one."""
    hidden: int
    """Units of the head's hidden layer; 0 is a linear head."""


def parse_features(model: str) -> FeaturesName:
    rest, plus, hidden = model.removeprefix(PREFIX).partition("+")
    extractor, _, side = rest.partition("@")
    if side and not (_is_count(side) and int(side) >= 8):
        raise ConfigError(f"model '{model}': '@{side}' is no picture size, write e.g. '@128'")
    if plus and not (_is_count(hidden) and int(hidden) >= 1):
        raise ConfigError(f"model '{model}': '+{hidden}' is no number of hidden units, write e.g. '+128'")
    return FeaturesName(extractor, int(side) if side else None, int(hidden) if plus else 0)


def _is_count(digits: str) -> bool:
    """Digits that Python reads as a number: no superscripts, and no more of them than any size has."""
    return digits.isascii() and digits.isdecimal() and len(digits) <= 9


class Head(Network):
    stem = "features"

    def __init__(self, inputs: int, n_classes: int, hidden: int = 0) -> None:
        super().__init__()
        # scaled row by row, not by statistics over samples: those would differ from site to site
        self.scale = nn.LayerNorm(inputs, elementwise_affine=False)
        # a linear head cannot learn wrong labels by heart as a whole network would; a hidden layer can
        self.middle = nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU()) if hidden else nn.Identity()
        self.head = nn.Linear(hidden or inputs, n_classes)

    def features(self, x: Tensor) -> Tensor:
        features: Tensor = self.middle(self.scale(x.flatten(1)))
        return features


@models.register("linear")
def linear(shape: tuple[int, ...], n_classes: int) -> Head:
    """A linear classifier on flattened samples or features, each scaled to mean 0 and variance 1."""
    return Head(math.prod(shape), n_classes)


def head_of(model: str) -> Builder:
    """The head that a `features:` name asks for."""
    hidden = parse_features(model).hidden

    def build(shape: tuple[int, ...], n_classes: int) -> Head:
        return Head(math.prod(shape), n_classes, hidden)

    build.__doc__ = (
        f"One hidden layer of {hidden} on frozen features." if hidden else "A linear head on frozen features."
    )
    return build
