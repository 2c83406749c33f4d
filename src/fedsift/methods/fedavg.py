"""FedAvg: McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, 2017."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from fedsift.contract import Federation, Stage, State
from fedsift.contract.ranges import AtLeastOne, Share
from fedsift.methods.base import TrainingMethod, methods, plain_loss, size_weighted, train_round


@methods.register("fedavg")
@dataclass(frozen=True)
class FedAvg(TrainingMethod):
    """Every round, some sites train from the global model and their models are averaged by size."""

    summary: ClassVar[str] = "Average of the sites' models by size; the reference for everything else"
    paper: ClassVar[str] = "McMahan et al. 2017"
    tasks: ClassVar[tuple[str, ...]] = ("multiclass", "multilabel")

    rounds: AtLeastOne = 100
    """T: communication rounds."""
    fraction: Share = 1.0
    """C: share of the sites that train in a round."""

    def stages(self) -> list[Stage]:
        return [Stage("train", self.rounds, self.train)]

    def train(self, state: State, federation: Federation) -> State:
        chosen = federation.choose(self.fraction)
        replies = train_round(federation, state.weights, self.recipe(plain_loss(federation)), chosen)
        return replace(state, weights=size_weighted(replies))

    def tiny(self) -> FedAvg:
        return replace(self, rounds=3)
