"""FedLA: logit adjustment (Menon et al., Long-tail Learning via Logit Adjustment, 2021) in local training."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from fedsift.contract import Federation, Stage, State
from fedsift.contract.ranges import AtLeastOne, AtLeastZero, Share
from fedsift.local.objective import CrossEntropy
from fedsift.methods.base import TrainingMethod, methods, size_weighted, train_round


@methods.register("fedla")
@dataclass(frozen=True)
class FedLA(TrainingMethod):
    """FedAvg whose sites train on z + tau * log(pi_k), pi_k their own label frequencies; predictions use z."""

    summary: ClassVar[str] = "FedAvg with logit adjustment by each site's own class frequencies"
    paper: ClassVar[str] = "Menon et al. 2021; FedNoRo section 4.1"

    rounds: AtLeastOne = 100
    """T: communication rounds."""
    fraction: Share = 1.0
    """Share of the sites that train in a round."""
    tau: AtLeastZero = 1.0
    """tau: strength of the adjustment; 0 is FedAvg."""

    def stages(self) -> list[Stage]:
        return [Stage("train", self.rounds, self.train)]

    def train(self, state: State, federation: Federation) -> State:
        chosen = federation.choose(self.fraction)
        replies = train_round(federation, state.weights, self.recipe(CrossEntropy(adjust=self.tau)), chosen)
        return replace(state, weights=size_weighted(replies))

    def tiny(self) -> FedLA:
        return replace(self, rounds=3)
