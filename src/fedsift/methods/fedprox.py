"""FedProx: Li et al., Federated Optimization in Heterogeneous Networks, 2020."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedsift.core.ranges import AtLeastZero
from fedsift.methods._base import AnyLoss, methods
from fedsift.protocol.federation import Federation
from fedsift.training.objective import Objective, Proximal, as_objective


@methods.register("fedprox")
@dataclass(frozen=True)
class FedProx(AnyLoss):
    """FedAvg whose sites also minimise (mu / 2) ||w - w_g||^2, so that they stay near the global model."""

    summary: ClassVar[str] = "FedAvg with a proximal term that keeps sites near the global model"
    paper: ClassVar[str] = "Li et al. 2020"
    tasks: ClassVar[tuple[str, ...]] = ("multiclass", "multilabel")

    mu: AtLeastZero = 0.01
    """mu: strength of the proximal term; 0 is FedAvg."""
    power: int = 2
    """2: (mu / 2) ||w - w_g||^2 as published; 1: mu ||w - w_g||, the form that FedCorr's comparison ran."""

    def objective(self, federation: Federation) -> Objective:
        proximal = Proximal(power=self.power, skip_first_batch=self.power == 1)
        return as_objective(super().objective(federation)) + self.mu * proximal
