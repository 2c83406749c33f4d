"""JointOpt: Tanaka et al., Joint Optimization Framework for Learning with Noisy Labels, CVPR 2018; federated as
FedCorr's comparison did it. With one site it is the central method."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from fedsift.core.ranges import AtLeastOne, AtLeastZero, Count, Share
from fedsift.formulas import losses
from fedsift.methods._base import Averaging, ask_to_train, methods, train_round
from fedsift.protocol.federation import Federation
from fedsift.protocol.messages import Reply
from fedsift.protocol.method import Stage, State
from fedsift.protocol.site import Site
from fedsift.training.job import TrainingResult
from fedsift.training.objective import ClassBalance, Entropy, Objective, Term, View, as_objective
from fedsift.training.recipe import Recipe
from fedsift.training.requests import Train, Trained

# JointOpt at a site: each sample's label becomes the mean of what the network said of it in its last
# visits
# ------------------------------------------------------------------------------

NAME = "joint-opt"
WINDOW = "joint-opt predictions"
"""The notebook page of each sample's last M predictions, oldest first, zeros where there is none yet: `[n, M, K]`."""

MOST_KEPT = 1000
"""Predictions of each sample that a message may ask a site to keep."""
Kind = Literal["soft", "hard"]


def mean_prediction(window: Tensor) -> Tensor:
    """Mean over those predictions of a window that exist, `[..., M, K] -> [..., K]`; zeros for an empty one.

    Every prediction sums to 1, so dividing by the total leaves no gap of an unfilled window in the label.
    """
    total = window.sum(-2)
    return total / total.sum(-1, keepdim=True).clamp(min=1e-12)


@dataclass(frozen=True)
class JointLabels(Term):
    """Cross-entropy with the label that the network's own earlier predictions make (eqs. 2, 8 and 9)."""

    needs: ClassVar[frozenset[str]] = frozenset({WINDOW})

    window: int = field(default=10, metadata={"least": 1, "most": MOST_KEPT})
    """M"""
    learnt: bool = True
    """Train on learnt labels, where a sample has any; False: on those at hand."""
    record: bool = True
    """Add this step's predictions to the window."""
    kind: Kind = "soft"

    def memory(self, classes: int) -> Mapping[str, tuple[int, ...]]:
        return {WINDOW: (self.window, classes)}

    def value(self, view: View) -> Tensor:
        window = view.rows(WINDOW)
        if self.record:
            now = F.softmax(view.logits.detach(), dim=-1).unsqueeze(-2)
            view.keep(WINDOW, torch.cat([window[..., 1:, :], now], dim=-2))
        return view.mean(losses.cross_entropy(view.logits, self.label(window, view.target)))

    def label(self, window: Tensor, target: Tensor) -> Tensor:
        """What a sample is trained on, `[..., B, K]`."""
        if not self.learnt:
            return target
        mean = mean_prediction(window)
        if self.kind == "hard":
            mean = F.one_hot(mean.argmax(-1), mean.shape[-1]).to(mean.dtype)
        return torch.where(window.sum((-2, -1)).unsqueeze(-1) > 0, mean, target)


@dataclass(frozen=True)
class TrainJointly(Train):
    """Train on learnt labels, then write down for the site which of its labels they contradict."""

    reply_type: ClassVar[type[Reply]] = Trained
    late: ClassVar[bool] = True
    """Where labels are what the network predicts already there is little to learn: a site that comes for the first
    time, with its given labels, moves thirty times as far as one that has learnt its own."""

    def reply(self, site: Site, result: TrainingResult | None) -> Trained:
        window: Tensor = site.notebook[WINDOW]
        label = mean_prediction(window)
        proposed = torch.where(window.sum((-2, -1)) > 0, label.argmax(-1), site.given)
        suspicion = 1 - label.gather(1, site.given.unsqueeze(1)).squeeze(1)
        site.keep_evidence(
            NAME, labels=proposed, proposed=proposed, flagged=proposed != site.given, suspicion=suspicion
        )
        return super().reply(site, result)


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
