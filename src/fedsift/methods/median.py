"""Coordinate-wise median: Yin et al., Byzantine-Robust Distributed Learning, ICML 2018."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from fedsift.aggregate import coordinate_median
from fedsift.contract import Federation, Replies, Stage, State, Weights
from fedsift.contract.ranges import AtLeastOne, Share
from fedsift.local.requests import Trained
from fedsift.methods.base import TrainingMethod, methods, plain_loss, train_round


def median_of(replies: Replies[Trained]) -> Weights:
    """The median of every coordinate over the sites' models; their sizes play no role."""
    return coordinate_median([reply.weights for reply in replies.values()])


@methods.register("fedmedian")
@dataclass(frozen=True)
class FedMedian(TrainingMethod):
    """FedAvg whose mean is a median: a minority of sites, however far off, cannot carry the model away."""

    summary: ClassVar[str] = "Coordinate-wise median of the sites' models instead of their mean"
    paper: ClassVar[str] = "Yin et al. 2018"
    tasks: ClassVar[tuple[str, ...]] = ("multiclass", "multilabel")

    rounds: AtLeastOne = 100
    """T: communication rounds."""
    fraction: Share = 1.0
    """Share of the sites that train in a round."""

    def stages(self) -> list[Stage]:
        return [Stage("train", self.rounds, self.train)]

    def train(self, state: State, federation: Federation) -> State:
        chosen = federation.choose(self.fraction)
        replies = train_round(federation, state.weights, self.recipe(plain_loss(federation)), chosen)
        return replace(state, weights=median_of(replies))

    def tiny(self) -> FedMedian:
        return replace(self, rounds=3)
