"""Two global networks, averaged separately: what methods with two networks a site share on the server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar, cast

from fedsift.contract import Federation, Replies, State, Weights
from fedsift.local.pairs import TrainedPair, TrainPair
from fedsift.methods.base import Averaging, ask_to_train


@dataclass(frozen=True)
class PairState(State):
    """The first global network, which is evaluated and kept, and the second."""

    twin: Weights = field(default_factory=dict)


P = TypeVar("P", bound=TrainPair)


@dataclass(frozen=True)
class TwoNetworks(Averaging):
    """A method whose sites train two networks that start from different draws."""

    def begin(self, federation: Federation, weights: Weights) -> PairState:
        return PairState(weights, federation.initial_weights(draw=1))

    def pair_round(self, federation: Federation, visit: P, sites: Sequence[str]) -> PairState:
        """Ask sites to train both networks; each is averaged with its like."""
        replies = cast("Replies[TrainedPair]", ask_to_train(federation, visit, sites))
        sizes = [reply.samples for reply in replies.values()]
        return PairState(
            self.merge([reply.weights for reply in replies.values()], sizes, visit.weights),
            self.merge([reply.twin for reply in replies.values()], sizes, visit.twin),
        )
