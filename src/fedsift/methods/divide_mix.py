"""DivideMix: Li et al., Learning with Noisy Labels as Semi-supervised Learning, ICLR 2020; federated as FedCorr's
comparison did it. With one site it is the central method."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

from fedsift.contract import Federation, Stage
from fedsift.contract.ranges import AtLeastOne, AtLeastZero, Count, Positive, Range, Share
from fedsift.local.objective import Objective, as_objective
from fedsift.local.pairs import TrainPair
from fedsift.local.robust import ClassBalance, Entropy
from fedsift.methods.base import methods, plain_loss
from fedsift.methods.divide_mix_site import Divided, TrainDivided
from fedsift.methods.pairs import PairState, TwoNetworks


@methods.register("dividemix")
@dataclass(frozen=True)
class DivideMix(TwoNetworks):
    """Two networks; each tells the other which labels to believe, and both guess the labels of the rest."""

    summary: ClassVar[str] = "Parts samples by loss and learns from the doubtful ones as if they had no label"
    paper: ClassVar[str] = "Li et al. 2020; federated as in FedCorr's comparison"

    warmup: Count = 20
    """Rounds of plain training of both networks before samples are parted."""
    warmup_epochs: Count = 0
    """Local epochs of a warm-up round (FedCorr's comparison: 5, then 20); 0: as many as in the other rounds."""
    rounds: AtLeastOne = 80
    """Rounds of semi-supervised training."""
    fraction: Share = 0.1
    """Share of the sites that train in a round."""
    lambda_u: AtLeastZero = 25.0
    """lambda_u: weight of the unlabelled part. 0 for low or asymmetric noise (FedCorr's comparison: 0 and 25 for
    CIFAR-10, 25 and 150 for CIFAR-100)."""
    ramp: Count = 16
    """Rounds over which lambda_u grows from 0."""
    alpha: Positive = 4.0
    """alpha of mixup's Beta(alpha, alpha)."""
    temperature: Positive = 0.5
    """T: sharpens refined and guessed labels."""
    threshold: Annotated[float, Range(0, 1, below=True)] = 0.5
    """tau: a given label counts where the other network believes it with more than this."""
    views: AtLeastOne = 2
    """M: augmented views whose predictions are averaged when labels are made."""
    balanced: bool = False
    """Judge a label beside its class's share of the site's labels: a mixture over plain losses takes the labels of a
    rare class for wrong. Off is as published."""
    guarded: bool = False
    """Never doubt a label that the judging network itself would give. Off is as published."""
    prior: Literal["uniform", "given"] = "uniform"
    """Whether the mean prediction should hold all classes alike (the paper), or as the site's labels do."""
    confidence_penalty: bool = False
    """Subtract the entropy in the warm-up, for asymmetric noise (eq. 2)."""

    def stages(self) -> list[Stage]:
        return [
            Stage("warm-up", self.warmup, self.warm, asks=(TrainPair,)),
            Stage("divide", self.rounds, self.divide, asks=(TrainDivided,)),
        ]

    def warm(self, state: PairState, federation: Federation) -> PairState:
        """Both networks train on the given labels."""
        loss = as_objective(plain_loss(federation))
        if self.confidence_penalty:
            loss = loss + -1.0 * Entropy()
        recipe = self.recipe(loss, epochs=self.warmup_epochs or self.local.epochs)
        visit = TrainPair(state.weights, recipe, twin=state.twin)
        return self.pair_round(federation, visit, federation.choose(self.fraction))

    def divide(self, state: PairState, federation: Federation) -> PairState:
        """One visit of Alg. 1 at some sites."""
        strength = self.strength(federation.round.index)
        federation.record(lambda_u=strength)
        visit = TrainDivided(
            state.weights,
            self.recipe(self.loss(strength), mixup=self.alpha),
            twin=state.twin,
            threshold=self.threshold,
            temperature=self.temperature,
            views=self.views,
            guarded=self.guarded,
            balanced=self.balanced,
        )
        return self.pair_round(federation, visit, federation.choose(self.fraction))

    def loss(self, strength: float) -> Objective:
        """L_x + lambda_u L_u + L_reg (eq. 12 with lambda_r = 1)."""
        return Divided("labelled") + strength * Divided("unlabelled") + ClassBalance(self.prior)

    def strength(self, index: int) -> float:
        """lambda_u in the round of this index, from 0 to its full size over the ramp."""
        return self.lambda_u * min(index / self.ramp, 1.0) if self.ramp else self.lambda_u

    def tiny(self) -> DivideMix:
        return replace(self, warmup=1, rounds=2, fraction=0.6, ramp=1)
