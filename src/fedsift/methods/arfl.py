"""ARFL: Fu et al., Attack-Resistant Federated Learning with Residual-based Reweighting, 2019."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from fedsift.aggregate import residual_average
from fedsift.contract import Federation, FederationFacts, Misfit, Stage, State
from fedsift.contract.ranges import AtLeastOne, AtLeastZero, Rate, Share
from fedsift.local.requests import Train
from fedsift.methods.base import TrainingMethod, methods, plain_loss, train_round
from fedsift.signals.counting import floor_count

FEWEST = 4
"""Models among which one can be doubted: through fewer, the line passes too closely."""


@methods.register("arfl")
@dataclass(frozen=True)
class ARFL(TrainingMethod):
    """FedAvg whose models count by how well each of their values fits a robust line through everyone's."""

    summary: ClassVar[str] = "Models far from a robust line through all of them count less, value by value"
    paper: ClassVar[str] = "Fu et al. 2019; FedCorr Tables 2-5"
    tasks: ClassVar[tuple[str, ...]] = ("multiclass", "multilabel")

    rounds: AtLeastOne = 100
    """T: communication rounds."""
    fraction: Share = 1.0
    """C: share of the sites that train in a round."""
    strength: AtLeastZero = 2.0
    """lambda: values within lambda sqrt(2 / m) standardised residuals of the line are believed whole."""
    delta: Rate = 0.1
    """delta: a value less believed than this is replaced by the line's; 0 replaces none."""

    def stages(self) -> list[Stage]:
        return [Stage("train", self.rounds, self.train, asks=(Train,))]

    def train(self, state: State, federation: Federation) -> State:
        """Sites train as in FedAvg; then w = sum_k (s_k / max s)^2 w_k / sum_j (s_j / max s)^2 on restricted models."""
        chosen = federation.choose(self.fraction)
        replies = train_round(federation, state.weights, self.recipe(plain_loss(federation)), chosen)
        found = residual_average([reply.weights for reply in replies.values()], self.strength, self.delta)
        federation.record_sites("aggregation_weight", dict(zip(replies, found.shares.tolist())))
        return replace(state, weights=found.weights)

    def misfits(self, facts: FederationFacts) -> Iterator[Misfit]:
        yield from super().misfits(facts)
        if facts.sites is not None and (m := max(1, floor_count(self.fraction * facts.sites))) < FEWEST:
            yield Misfit(f"it doubts a model by the others' and {m} a round are too few ({FEWEST} at least)")

    def tiny(self) -> ARFL:
        return replace(self, rounds=3)
