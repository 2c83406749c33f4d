"""The label audit: cross-fitted federation, then the site-aware posterior of every label (docs/audit.md)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from fedsift.core.ranges import AtLeastOne, Count
from fedsift.detection.label_posterior import LabelModel
from fedsift.detection.label_rates import shares_of
from fedsift.formulas.aggregation import average
from fedsift.label_audit.at_site import CountLabels, FitFolds, JudgeGrid, JudgeLabels
from fedsift.label_audit.linear_crossfit import RIDGES
from fedsift.label_audit.messages import FoldsFitted, LabelsJudged, SecondReply, SharedModel, shared_model, tables_of
from fedsift.methods._base import TrainingMethod, methods
from fedsift.models.head import PREFIX
from fedsift.protocol.federation import Federation, FederationFacts, Replies
from fedsift.protocol.findings import Findings
from fedsift.protocol.messages import Weights
from fedsift.protocol.method import Asks, Stage, State
from fedsift.training.crossfit import CrossTrain, CrossTrained
from fedsift.training.objective import BinaryCrossEntropy, CrossEntropy, Term
from fedsift.training.recipe import Recipe

# Parts of the label audit: when a network is one linear layer, and how linear models of all sites
# become one
# ------------------------------------------------------------------------------


def questions_of(classes: int, multilabel: bool) -> tuple[int, int]:
    """Q and C: one question with K answers, or a yes or no for each class."""
    return (classes, 2) if multilabel else (1, classes)


def is_linear(network: str) -> bool:
    """Whether a network's name means one linear layer."""
    return network == "linear" or (network.startswith(PREFIX) and "+" not in network)


def linear_width(weights: Weights, classes: int) -> int | None:
    """F of a model that is one linear layer of K outputs, None for any other."""
    matrices = [value for value in weights.values() if value.dim() == 2]
    rest = [value for value in weights.values() if value.dim() != 2]
    if len(matrices) != 1 or matrices[0].shape[0] != classes or any(value.shape != (classes,) for value in rest):
        return None
    return int(matrices[0].shape[1])


def averaged(replies: Replies[FoldsFitted]) -> tuple[Tensor, Tensor | None]:
    """The sites' models averaged by their samples, and the summed likelihoods of what they left out; None where no site
    says any."""
    sizes = torch.tensor([reply.samples for reply in replies.values()], dtype=torch.float64)
    total = sum(
        (share * reply.models.double() for share, reply in zip(sizes / sizes.sum(), replies.values())),
        torch.zeros((), dtype=torch.float64),
    )
    said = [reply.likelihoods for reply in replies.values() if reply.likelihoods is not None]
    return total.float(), torch.stack(said).sum(0) if said else None


@dataclass(frozen=True)
class AuditState(State):
    """What the server knows between rounds; `weights` stays empty, the audit has k models instead."""

    shares: Tensor = field(default_factory=lambda: torch.zeros(0, 0))
    """g: shares of the given labels, float64 `[Q, C]`."""
    width: int = 0
    """F: features of a sample; 0 where sites train networks."""
    models: Tensor = field(default_factory=lambda: torch.zeros(0))
    """Linear models on standardised features, float32 `[F + 1, k, K]`."""
    ridge: float = RIDGES[len(RIDGES) // 2]
    """The penalty that was chosen, or a middle one."""
    networks: tuple[Weights, ...] = ()
    shared: tuple[SharedModel, ...] = ()
    """What all sites share of the posterior, a model for each question."""


@methods.register("label-audit")
@dataclass(frozen=True)
class LabelAudit(TrainingMethod):
    """Judge every label by a model that never saw it, with the site's own class shares and error rate.

    A model that is one linear layer (a head on frozen features) is trained as linear models on standardised features;
    any other network by the recipe. Nothing that speaks of a single sample leaves a site.
    """

    summary: ClassVar[str] = "Which labels are wrong: out-of-fold probabilities and a site-aware posterior"
    paper: ClassVar[str] = "docs/audit.md"
    tasks: ClassVar[tuple[str, ...]] = ("multiclass", "multilabel")
    holds_out: ClassVar[bool] = False
    evaluates: ClassVar[Asks | None] = None

    local: Recipe = field(default_factory=lambda: Recipe(epochs=3, batch_size=16, lr=0.05, momentum=0.5), kw_only=True)
    folds: AtLeastOne = 5
    """k: models, each trained without one fold of every site's samples; 1 averages over rounds instead (fast)."""
    rounds: AtLeastOne = 12
    """Rounds of cross-fitted training."""
    penalty_rounds: Count | None = None
    """Rounds in which linear models with several penalties are compared; by itself as many as `rounds` where there is
    one linear layer and one class a sample, else none."""

    def start(self, federation: Federation) -> AuditState:
        fresh = federation.initial_weights()
        linear = linear_width(fresh, len(federation.classes))
        if linear is None:
            return AuditState(networks=(fresh,) * self.folds)
        return AuditState(width=linear)

    def stages(self) -> list[Stage]:
        return [
            Stage("count labels", 1, self.count, asks=(CountLabels,), trains=False),
            Stage("choose the penalty", self._penalty_rounds, self.try_penalties, asks=(FitFolds,), trains=False),
            Stage("cross-fit", self.rounds, self.fit, asks=(FitFolds, CrossTrain), trains=False),
            Stage("share the model", 1, self.share, asks=(JudgeGrid,), trains=False),
            Stage("judge labels", 1, self.judge, asks=(JudgeLabels,), trains=False),
        ]

    @property
    def _penalty_rounds(self) -> int:
        if self.folds == 1:
            return 0
        return self.rounds if self.penalty_rounds is None else self.penalty_rounds

    def completed(self, facts: FederationFacts) -> LabelAudit:
        if self.penalty_rounds is not None or not facts.networks or facts.multilabel is None:
            return self
        linear = all(is_linear(name) for name in facts.networks) and not facts.multilabel
        return replace(self, penalty_rounds=self.rounds if linear else 0)

    def model(self, state: AuditState) -> None:
        """An audit has k models and judges labels, not accuracy."""
        return None

    def tiny(self) -> LabelAudit:
        return replace(self, folds=2, rounds=2)

    # First exchange ---------------------------------------------------------------------------------------------

    def count(self, state: AuditState, federation: Federation) -> AuditState:
        """Shares of the given labels."""
        questions = questions_of(len(federation.classes), federation.multilabel)
        replies = federation.ask(CountLabels(questions))
        tables = [tables_of(reply.cells, reply.remainders, reply.rest) for reply in replies.values()]
        shares = np.stack([shares_of([own[q] for own in tables]) for q in range(questions[0])])
        return replace(state, shares=torch.from_numpy(shares))

    # Cross-fitted training ----------------------------------------------------------------------------------------

    def try_penalties(self, state: AuditState, federation: Federation) -> AuditState:
        """Linear models with several penalties, all without the first fold; the labels left out choose."""
        if not state.width:
            return state
        if federation.round.index == 0:
            state = replace(state, models=_zeros(state, len(RIDGES), federation))
        request = self._linear(state, (0,) * len(RIDGES), RIDGES)
        models, likelihoods = averaged(federation.ask(request))
        ridge = state.ridge if likelihoods is None else RIDGES[int(torch.argmax(likelihoods))]
        federation.record(penalty=ridge)
        return replace(state, models=models, ridge=ridge)

    def fit(self, state: AuditState, federation: Federation) -> AuditState:
        """One round of k models at once."""
        if not state.width:
            return self._fit_networks(state, federation)
        if federation.round.index == 0:
            state = replace(state, models=_zeros(state, self.folds, federation))
        held = tuple(range(self.folds)) if self.folds > 1 else (-1,)
        request = self._linear(state, held, (state.ridge,) * self.folds)
        return replace(state, models=averaged(federation.ask(request))[0])

    def _linear(self, state: AuditState, held: tuple[int, ...], ridge: tuple[float, ...]) -> FitFolds:
        return FitFolds(state.models, held, self.folds, ridge, state.shares)

    def _fit_networks(self, state: AuditState, federation: Federation) -> AuditState:
        # the site's own shares enter the loss, so that sites with different classes agree on the rest
        loss: Term = BinaryCrossEntropy() if federation.multilabel else CrossEntropy(adjust=1.0)
        replies: Replies[CrossTrained] = federation.ask(CrossTrain(state.networks, self.recipe(loss)))
        losses = [(reply.loss, sum(reply.samples)) for reply in replies.values() if reply.loss is not None]
        if losses:
            total = max(sum(own for _, own in losses), 1)
            federation.record(train_loss=sum(loss * own for loss, own in losses) / total)
        networks = tuple(
            average(
                [reply.models[k] for reply in replies.values()],
                [reply.samples[k] for reply in replies.values()],
            )
            for k in range(self.folds)
        )
        return replace(state, networks=networks)

    # Second and third exchange -------------------------------------------------------------------------------------

    def grid(self, state: AuditState, federation: Federation) -> JudgeGrid:
        """How sites judge samples by the models that stand."""
        return self.grid_of(state, len(federation.classes), federation.multilabel)

    def grid_of(self, state: AuditState, classes: int, multilabel: bool) -> JudgeGrid:
        """The same from what is known without a federation."""
        held = tuple(range(self.folds)) if self.folds > 1 else (-1,)
        linear = None if not state.width else self._linear(state, held, (state.ridge,) * self.folds)
        return JudgeGrid(questions_of(classes, multilabel), state.shares, linear, state.networks)

    def share(self, state: AuditState, federation: Federation) -> AuditState:
        """The exponent, chosen by the likelihood of the given labels, and who is mistaken for whom."""
        replies = federation.ask(self.grid(state, federation))
        shared = []
        for q, shares in enumerate(state.shares.numpy()):
            found = [
                SecondReply(
                    reply.nats[q].numpy(),
                    reply.faithful[q].numpy(),
                    tables_of(reply.cells, reply.remainders, reply.rest)[q],
                )
                for reply in replies.values()
            ]
            shared.append(shared_model(found, LabelModel.start(shares)))
        federation.record(tempering=[one.model.tempering for one in shared])
        return replace(state, shared=tuple(shared))

    def judge(self, state: AuditState, federation: Federation) -> AuditState:
        """Every site judges its labels; the consortium learns how many, not which."""
        replies: Replies[LabelsJudged] = federation.ask(JudgeLabels(state.shared, self.grid(state, federation)))
        questions = len(state.shared)
        entries = {site: federation.facts[site].samples * questions for site in replies}
        counted = {site: reply.wrong.clamp(min=0).sum(0) for site, reply in replies.items()}
        level = {site: float(counted[site][0]) / entries[site] for site in replies}
        federation.find(
            Findings(
                tuple(site for site, reply in replies.items() if reply.evidence),
                unmeasured=tuple(site for site in federation.sites if site not in replies),
                level=level,
            )
        )
        columns: dict[str, dict[str, Any]] = {
            "wrong_labels": {site: int(own[0]) for site, own in counted.items()},
            "wrong_at_least": {site: int(own[1]) for site, own in counted.items()},
            "wrong_at_most": {site: int(own[2]) for site, own in counted.items()},
            "flagged": {site: reply.flagged for site, reply in replies.items()},
        }
        for name, values in columns.items():
            federation.record_sites(name, values)
        federation.record(
            audited={
                site: {
                    "wrong": reply.wrong.tolist(),
                    "evidence": reply.evidence,
                    "flagged": reply.flagged,
                    "cells": reply.cells.tolist(),
                    "remainders": reply.remainders.tolist(),
                    "rest": reply.rest.tolist(),
                }
                for site, reply in replies.items()
            }
        )
        return state


def _zeros(state: AuditState, models: int, federation: Federation) -> Tensor:
    return torch.zeros(state.width + 1, models, len(federation.classes))
