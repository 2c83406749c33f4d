"""`Recipe`: how a site trains for one request (optimiser, epochs, batch size, augmentation); pure data that travels in
the request."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from fedsift.core.codec import WireFormat
from fedsift.core.errors import ConfigError
from fedsift.core.ranges import AtLeastOne, AtLeastZero, Count, Positive, Range, RangeChecked, Rate
from fedsift.protocol.messages import HasCost, SiteFacts, passed
from fedsift.training.objective import AVERAGE, CrossEntropy, Objective

MOST = {"epochs": 100_000, "lr": 1000.0, "weight_decay": 1000.0, "views": 1000, "crop": 10_000}
"""A recipe may come from another machine. A step beyond these rates trains nothing, it throws weights out of range."""


BESIDE = frozenset({"teacher", AVERAGE})
"""What a term may need that is a second network, which sees every step too."""
TERMS = 8
"""Terms of an objective, at least, that take as long as a network."""


def _check_most(settings: Any) -> None:
    for name, most in MOST.items():
        value = getattr(settings, name, 0)
        if value > most:
            raise ConfigError(f"{name} = {value}: it must be at most {most:g}")


@dataclass(frozen=True)
class Augment(RangeChecked, WireFormat):
    """Random changes to a training image, drawn anew for every epoch from the site's own generator."""

    flip: bool = False
    """Left-right with probability 1/2."""
    crop: Count = 0
    """Pad by so many pixels on each side (zeros after normalisation), then cut the original size at random."""
    degrees: Annotated[float, Range(0, 180)] = 0.0
    """Rotate by up to so many degrees."""
    translate: Rate = 0.0
    """Shift by up to this share of the side."""

    def __post_init__(self) -> None:
        _check_most(self)

    @property
    def active(self) -> bool:
        return self.flip or self.crop > 0 or self.affine

    @property
    def affine(self) -> bool:
        return self.degrees > 0 or self.translate > 0


@dataclass(frozen=True)
class Recipe(RangeChecked, WireFormat, HasCost):
    """The study's `[train]` table, completed by a method with its objective."""

    epochs: AtLeastOne = 1
    batch_size: AtLeastOne = 32
    optimiser: Literal["sgd", "adam", "adamw"] = "sgd"
    lr: Positive = 0.03
    momentum: Annotated[float, Range(0, 1, below=True)] = 0.0
    """SGD only."""
    weight_decay: AtLeastZero = 0.0
    """L2 in the gradient for sgd and adam, decoupled for adamw."""
    augment: Augment = field(default_factory=Augment)
    views: AtLeastOne = 1
    """Independently augmented copies of every sample in a step; the batch is so many times as long."""
    plain_views: Count = 0
    """So many of them, the first ones, are the sample as it is."""
    mixup: AtLeastZero = 0.0
    """Beta(mixup, mixup) mixes each batch with a shuffled copy of itself; 0 is off."""
    clip: AtLeastZero = 0.0
    """Largest gradient norm of a step; 0 is off."""
    objective: Objective = field(default_factory=lambda: Objective(((1.0, CrossEntropy()),)))

    def __post_init__(self) -> None:
        _check_most(self)

    @property
    def shown(self) -> int:
        """Views that the network trains on: all, or all but the last where a term wants that for a follower."""
        return self.views - ("aside" in self.objective.needs)

    def work(self, facts: SiteFacts) -> float:
        """All epochs over the site's samples, every view of them, through every network that looks on."""
        return self.epochs * self.views * passed(facts.samples, self.batch_size) * self.networks

    @property
    def networks(self) -> int:
        """Networks that see a step; many terms of an objective count as more of them."""
        return 1 + len(BESIDE & self.objective.needs) + len(self.objective.terms) // TERMS
