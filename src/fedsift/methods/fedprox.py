"""FedProx: Li et al., Federated Optimization in Heterogeneous Networks, 2020."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from fedsift.contract import Federation, Stage, State
from fedsift.contract.ranges import AtLeastOne, AtLeastZero, Share
from fedsift.local.objective import Objective, Proximal
from fedsift.methods.base import TrainingMethod, methods, plain_loss, size_weighted, train_round


@methods.register("fedprox")
@dataclass(frozen=True)
class FedProx(TrainingMethod):
    """FedAvg whose sites also minimise (mu / 2) ||w - w_g||^2, so that they stay near the global model."""

    summary: ClassVar[str] = "FedAvg with a proximal term that keeps sites near the global model"
    paper: ClassVar[str] = "Li et al. 2020"
    tasks: ClassVar[tuple[str, ...]] = ("multiclass", "multilabel")

    rounds: AtLeastOne = 100
    """T: communication rounds."""
    fraction: Share = 1.0
    """Share of the sites that train in a round."""
    mu: AtLeastZero = 0.01
    """mu: strength of the proximal term; 0 is FedAvg."""
    power: int = 2
    """2: (mu / 2) ||w - w_g||^2 as published; 1: mu ||w - w_g||, the form that FedCorr's comparison ran."""

    def stages(self) -> list[Stage]:
        return [Stage("train", self.rounds, self.train)]

    def objective(self, federation: Federation) -> Objective:
        proximal = Proximal(power=self.power, skip_first_batch=self.power == 1)
        return plain_loss(federation) + self.mu * proximal

    def train(self, state: State, federation: Federation) -> State:
        chosen = federation.choose(self.fraction)
        replies = train_round(federation, state.weights, self.recipe(self.objective(federation)), chosen)
        return replace(state, weights=size_weighted(replies))

    def tiny(self) -> FedProx:
        return replace(self, rounds=3)
