"""T-revision: Xia et al., Are Anchor Points Really Indispensable in Label-Noise Learning?, NeurIPS 2019; federated as
FedDPCont section 9 says."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from fedsift.core.ranges import AtLeastOne, Positive
from fedsift.methods._base import methods
from fedsift.methods.forward_correction import (
    Correction,
    EstimateTransition,
    Estimator,
    ThroughMatrices,
    ThroughTransition,
    TrainCorrected,
)
from fedsift.protocol.federation import Federation
from fedsift.protocol.method import Stage, State
from fedsift.training.requests import Train


@methods.register("t-revision")
@dataclass(frozen=True)
class TRevision(ThroughMatrices):
    """Forward correction whose matrices are not the last word: a slack dT is learnt together with the network."""

    summary: ClassVar[str] = "Estimates how labels are mistaken, corrects the loss, then learns to revise the estimate"
    paper: ClassVar[str] = "Xia et al. 2019; federated as in FedDPCont section 9"

    estimator: Estimator = "anchor"
    """Row i of a site's T: the prediction at the surest sample of i ("anchor", the paper), or given labels among
    samples surely called i ("confident")."""
    warmup: AtLeastOne = 20
    """Rounds of plain FedAvg before matrices are estimated."""
    rounds: AtLeastOne = 140
    """Rounds of training through T."""
    revision: AtLeastOne = 140
    """Rounds in which dT is learnt too; FedDPCont does not say how many."""
    correction: Correction = "forward"
    """The loss of the middle rounds: "forward" (FedDPCont) or "reweight" (the paper)."""
    revise_by: Correction = "reweight"
    """The loss of the last rounds: "reweight" (the paper) or "forward"."""
    revision_lr: Positive = 1e-3
    """Step of dT, plain gradient descent. The release's Adam at 5e-7 moves no entry by more than 5e-7 a step."""

    def stages(self) -> list[Stage]:
        return [
            Stage("warm-up", self.warmup, self.warm, asks=(Train,)),
            Stage("estimate", 1, self.estimate, asks=(EstimateTransition,), trains=False),
            Stage("correct", self.rounds, self.correct, asks=(TrainCorrected,)),
            Stage("revise", self.revision, self.revise, asks=(TrainCorrected,)),
        ]

    def correct(self, state: State, federation: Federation) -> State:
        return self.through(state, federation, ThroughTransition(self.correction))

    def revise(self, state: State, federation: Federation) -> State:
        """Network and dT descend together (the paper's eq. 5); dT stays at its site, as T does."""
        loss = ThroughTransition(self.revise_by, revise=True)
        return self.through(state, federation, loss, self.revision_lr)

    def tiny(self) -> TRevision:
        return replace(self, warmup=1, rounds=2, revision=2, fraction=0.6)
