"""RHFL's confidence weights with FedAvg: the form in which FedNoRo and FedDPCont compare against RHFL."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

from fedsift.contract import Federation, State, Weights
from fedsift.contract.method import Asks
from fedsift.local.objective import Objective
from fedsift.local.requests import Train
from fedsift.methods.base import OneStage, ask_to_train, methods
from fedsift.methods.rhfl_parts import SymmetricAndConfident
from fedsift.methods.rhfl_site import MeasureLoss, PrivateLoss


@dataclass(frozen=True)
class RHFLAveragedState(State):
    """The global model and each site's last known private loss."""

    losses: dict[str, float] = field(default_factory=dict)


@methods.register("rhfl-avg")
@dataclass(frozen=True)
class RHFLAveraged(SymmetricAndConfident, OneStage):
    """FedAvg whose sites train with the symmetric loss and count by client confidence (RHFL eqs. 9-13)."""

    summary: ClassVar[str] = "FedAvg with RHFL's symmetric loss and confidence weights, one network for all"
    paper: ClassVar[str] = "Fang and Ye 2022 (CVPR), as compared against in FedNoRo and FedDPCont"

    ccr: bool = True
    """Confidence weights; off is FedAvg's mean."""
    by_size: bool = False
    """Multiply the confidence weights by the sites' sizes; neither paper says."""

    def begin(self, federation: Federation, weights: Weights) -> RHFLAveragedState:
        if self.ccr:
            self.require_held_out(federation)
        return RHFLAveragedState(weights)

    @property
    def asks(self) -> Asks:
        return (Train, MeasureLoss) if self.ccr else (Train,)

    def objective(self, federation: Federation) -> Objective:
        return self.private_loss()

    def train(self, state: RHFLAveragedState, federation: Federation) -> RHFLAveragedState:
        """Train, tell the trained model's private loss in the same visit, average by confidence."""
        chosen = federation.choose(self.fraction)
        objective = self.objective(federation)
        measure = (MeasureLoss(None, objective, on=self.measured_on),) if self.ccr else ()
        replies = ask_to_train(federation, Train(state.weights, self.recipe(objective), then=measure), chosen)
        sizes = {site: float(reply.samples) for site, reply in replies.items()}
        shares, losses = sizes, state.losses
        if self.ccr:
            now = {site: _loss(reply.then[0]) for site, reply in replies.items()}
            shares = self.confidence_weights(now, state.losses, len(federation.classes))
            losses = {**state.losses, **now}
            if self.by_size:
                shares = {site: share * sizes[site] for site, share in shares.items()}
            federation.record_sites("confidence_weight", shares)
            federation.record_sites("private_loss", now)
        models = [reply.weights for reply in replies.values()]
        weights = self.merge(models, [shares[site] for site in replies], state.weights)
        return replace(state, weights=weights, losses=losses)


def _loss(reply: object) -> float:
    assert isinstance(reply, PrivateLoss)
    return reply.value
