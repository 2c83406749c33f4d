"""Forward loss correction (LC): Patrini et al., Making Deep Neural Networks Robust to Label Noise, CVPR 2017; federated
as FedDPCont section 9 says."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

from fedsift.contract import Federation, Stage, State
from fedsift.contract.ranges import AtLeastOne, Range, Share
from fedsift.local.requests import Train
from fedsift.methods.base import Averaging, ask_to_train, methods, plain_loss, train_round
from fedsift.methods.transition_site import (
    EstimateTransition,
    Estimator,
    ThroughTransition,
    TrainCorrected,
)


@dataclass(frozen=True)
class ThroughMatrices(Averaging):
    """What forward correction and T-revision share: FedAvg, a matrix of label noise at each site, training through
    it."""

    fraction: Share = 0.1
    """Share of the sites that train in a round."""
    estimator: Estimator = "confident"
    """Row i of a site's T: given labels among samples surely called i ("confident", FedDPCont), or the prediction at
    the surest sample of i ("anchor", the original)."""
    confidence: Annotated[float, Range(0, 1, below=True)] = 0.95
    """A sample counts for "confident" above this probability."""
    percentile: Annotated[float, Range(0, 100, above=True)] = 97.0
    """For "anchor": larger probabilities than this percentile are set aside as outliers."""

    def warm(self, state: State, federation: Federation) -> State:
        """FedAvg on the given labels."""
        chosen = federation.choose(self.fraction)
        replies = train_round(federation, state.weights, self.recipe(plain_loss(federation)), chosen)
        return replace(state, weights=self.merged(replies, state.weights))

    def estimate(self, state: State, federation: Federation) -> State:
        """Every site makes its own T with the global model; nothing of it travels."""
        classes = len(federation.classes)
        request = EstimateTransition(state.weights, classes, self.estimator, self.confidence, self.percentile)
        replies = federation.ask(request)
        federation.record_sites("transition_rows", {site: reply.rows for site, reply in replies.items()})
        if all(reply.rows == 0 for reply in replies.values()):
            federation.warn(
                "no site is sure of any sample, every T is the identity: more warm-up rounds or a lower confidence"
            )
        return state

    def through(
        self, state: State, federation: Federation, loss: ThroughTransition, revision_lr: float = 0.0
    ) -> State:
        """FedAvg whose sites train through their T."""
        visit = TrainCorrected(state.weights, self.recipe(loss), revision_lr=revision_lr)
        replies = ask_to_train(federation, visit, federation.choose(self.fraction))
        return replace(state, weights=self.merged(replies, state.weights))


@methods.register("lc")
@dataclass(frozen=True)
class ForwardCorrection(ThroughMatrices):
    """FedAvg first; then each site estimates how its labels are mistaken and trains on -log (T^T p)_y."""

    summary: ClassVar[str] = "Each site estimates how its labels are mistaken and corrects its loss for it"
    paper: ClassVar[str] = "Patrini et al. 2017; federated as in FedDPCont section 9"

    warmup: AtLeastOne = 150
    """Rounds of plain FedAvg before matrices are estimated."""
    rounds: AtLeastOne = 150
    """Rounds of training through them."""

    def stages(self) -> list[Stage]:
        return [
            Stage("warm-up", self.warmup, self.warm, asks=(Train,)),
            Stage("estimate", 1, self.estimate, asks=(EstimateTransition,), trains=False),
            Stage("correct", self.rounds, self.correct, asks=(TrainCorrected,)),
        ]

    def correct(self, state: State, federation: Federation) -> State:
        """FedDPCont eq. 1."""
        return self.through(state, federation, ThroughTransition())

    def tiny(self) -> ForwardCorrection:
        return replace(self, warmup=2, rounds=2, fraction=0.6, confidence=0.3)
