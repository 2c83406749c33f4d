"""JointOpt: Tanaka et al., Joint Optimization Framework for Learning with Noisy Labels, CVPR 2018; federated as
FedCorr's comparison did it. With one site it is the central method."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from fedsift.contract import Federation, Stage, State
from fedsift.contract.ranges import AtLeastOne, AtLeastZero, Count, Share
from fedsift.local.objective import Objective, as_objective
from fedsift.local.recipe import Recipe
from fedsift.local.requests import Train
from fedsift.local.robust import ClassBalance, Entropy
from fedsift.methods.base import Averaging, ask_to_train, methods, train_round
from fedsift.methods.joint_opt_site import JointLabels, Kind, TrainJointly


@methods.register("joint-opt")
@dataclass(frozen=True)
class JointOpt(Averaging):
    """Labels are parameters too: after a warm-up each is replaced by the mean of the network's last predictions."""

    summary: ClassVar[str] = "Learns labels beside the network: each becomes the mean of its last predictions"
    paper: ClassVar[str] = "Tanaka et al. 2018; federated as in FedCorr's comparison"

    warmup: Count = 20
    """Rounds of plain training before labels are touched; predictions are recorded already."""
    warmup_epochs: Count = 0
    """Local epochs of a warm-up round (FedCorr's comparison: 5, then 20); 0: as many as in the other rounds."""
    rounds: AtLeastOne = 80
    """Rounds of joint training."""
    retrain: Count = 0
    """Rounds of the paper's second step: a fresh network on the final labels. 0: the network at hand is the result,
    as in FedCorr's comparison."""
    fraction: Share = 0.1
    """Share of the sites that train in a round."""
    alpha: AtLeastZero = 1.2
    """alpha: weight of KL(prior || mean prediction)."""
    beta: AtLeastZero = 0.8
    """beta: weight of the entropy, which makes predictions sure."""
    window: AtLeastOne = 10
    """How many of a sample's last predictions its label is the mean of."""
    labels: Kind = "soft"
    """The mean itself, or its largest class."""
    prior: Literal["uniform", "given"] = "uniform"
    """Whether the mean prediction should hold all classes alike (the paper), or as the site's labels do."""

    def stages(self) -> list[Stage]:
        return [
            Stage("warm-up", self.warmup, self.warm, asks=(Train,)),
            Stage("joint", self.rounds, self.joint, asks=(TrainJointly,)),
            Stage("retrain", self.retrain, self.train_again, asks=(Train,)),
        ]

    def warm(self, state: State, federation: Federation) -> State:
        """Plain cross-entropy on the given labels."""
        return self.averaged(state, federation, self.recipe(self.warm_loss(), epochs=self.epochs_to_warm()))

    def epochs_to_warm(self) -> int:
        """Local epochs of a round of the warm-up."""
        return self.warmup_epochs or self.local.epochs

    def warm_loss(self) -> Objective:
        return as_objective(JointLabels(self.window, learnt=False))

    def joint(self, state: State, federation: Federation) -> State:
        """L_c + alpha L_p + beta L_e (eq. 4); labels follow the predictions (eqs. 8-9)."""
        visit = TrainJointly(state.weights, self.recipe(self.joint_loss()))
        replies = ask_to_train(federation, visit, federation.choose(self.fraction))
        return replace(state, weights=self.merged(replies, state.weights))

    def joint_loss(self) -> Objective:
        loss = JointLabels(self.window, kind=self.labels) + self.alpha * ClassBalance(self.prior)
        return loss + self.beta * Entropy()

    def alone(self) -> tuple[Train, ...]:
        """The method at one site by itself, as two visits of many epochs, the second to be given the first's model."""
        warm_epochs = max(self.warmup * self.epochs_to_warm(), 1)
        warm = Train({}, self.recipe(self.warm_loss(), epochs=warm_epochs))
        joint = TrainJointly({}, self.recipe(self.joint_loss(), epochs=self.rounds * self.local.epochs))
        return (warm, joint) if self.warmup else (joint,)

    def train_again(self, state: State, federation: Federation) -> State:
        """The second step: labels stay as they are, the network starts afresh."""
        if federation.round.index == 0:
            state = replace(state, weights=federation.initial_weights(draw=1))
        loss = as_objective(JointLabels(self.window, record=False, kind=self.labels))
        return self.averaged(state, federation, self.recipe(loss))

    def averaged(self, state: State, federation: Federation, recipe: Recipe) -> State:
        chosen = federation.choose(self.fraction)
        replies = train_round(federation, state.weights, recipe, chosen)
        return replace(state, weights=self.merged(replies, state.weights))

    def tiny(self) -> JointOpt:
        return replace(self, warmup=1, rounds=2, retrain=1, fraction=0.6, window=3)
