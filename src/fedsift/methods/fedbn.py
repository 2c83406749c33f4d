"""FedBN: Li et al., FedBN: Federated Learning on Non-IID Features via Local Batch Normalization, ICLR 2021."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from fedsift.methods._base import OneStage, ask_to_train, methods
from fedsift.protocol.federation import Federation
from fedsift.protocol.messages import Reply, Request, Weights, disclosed
from fedsift.protocol.method import Asks, State
from fedsift.protocol.site import Site
from fedsift.training.job import TrainingJob, TrainingResult
from fedsift.training.own_models import EvaluateOwn, OwnEvaluated
from fedsift.training.requests import Train, Trained

NORMS = "fedbn norms"
"""The notebook page with the site's own batch norm: scales, shifts and running statistics."""


def norm_names(weights: Weights, buffers: tuple[str, ...]) -> tuple[str, ...]:
    """Names of all tensors of the layers that keep a running mean: those of batch norm."""
    layers = {name.rpartition(".")[0] for name in buffers if name.endswith("running_mean")}
    return tuple(name for name in weights if name.rpartition(".")[0] in layers)


def with_own_norms(site: Site, weights: Weights, names: tuple[str, ...]) -> Weights:
    """The model as this site uses it; before its first visit, as received."""
    own: Weights = site.notebook.get(NORMS, {})
    return {name: own.get(name, value) if name in names else value for name, value in weights.items()}


# At a site ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BodyTrained(Trained):
    """A trained model without its batch norm."""

    weights: Weights = disclosed(
        "the site's model after local training; batch norm as it was received", "model", update="weights"
    )


@dataclass(frozen=True)
class TrainBody(Train):
    """Train with the site's own batch norm, and keep that at the site."""

    reply_type: ClassVar[type[Reply]] = BodyTrained

    norms: tuple[str, ...] = ()
    """Names of batch norm's tensors."""

    def job(self, site: Site) -> TrainingJob:
        return replace(super().job(site), weights=with_own_norms(site, self.weights, self.norms))

    def reply(self, site: Site, result: TrainingResult | None) -> Trained:
        trained = super().reply(site, result)
        site.notebook[NORMS] = {name: trained.weights[name] for name in self.norms}
        sent = {**trained.weights, **{name: self.weights[name] for name in self.norms}}
        return BodyTrained(sent, trained.samples, trained.loss, trained.then)


@dataclass(frozen=True)
class TrainBodyReleasingNorms(TrainBody):
    """The same, and send the batch norm too, for a model with the average of all sites."""

    reply_type: ClassVar[type[Reply]] = Trained

    def reply(self, site: Site, result: TrainingResult | None) -> Trained:
        body = super().reply(site, result)
        norms: Weights = site.notebook[NORMS]
        return Trained({**body.weights, **norms}, body.samples, body.loss, body.then)


@dataclass(frozen=True)
class EvaluateNormed(EvaluateOwn):
    """Judge the global model with the site's own batch norm."""

    reply_type: ClassVar[type[Reply]] = OwnEvaluated

    weights: Weights = field(default_factory=dict)
    norms: tuple[str, ...] = ()

    def model(self, site: Site) -> Weights:
        return with_own_norms(site, self.weights, self.norms)


# At the server -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FedBNState(State):
    """The global model, and which of its tensors stay at the sites."""

    norms: tuple[str, ...] = ()


@methods.register("fedbn")
@dataclass(frozen=True)
class FedBN(OneStage):
    """FedAvg whose sites keep batch norm to themselves: scales, shifts and statistics fit their own images.

    A federation's figure is the mean over the sites' own models (`mean_site_accuracy`), and, with `averaged`, that of
    the one model whose batch norm is the sites' average (`accuracy`).
    """

    summary: ClassVar[str] = "FedAvg with batch norm kept at each site, for sites whose images differ"
    paper: ClassVar[str] = "Li et al. 2021 (ICLR)"
    tasks: ClassVar[tuple[str, ...]] = ("multiclass", "multilabel")
    evaluates: ClassVar[Asks] = (EvaluateNormed,)

    averaged: bool = True
    """Also make one model for everyone, with the average of the sites' batch norm, which they then send; no site
    trains from it. Off: batch norm never leaves a site, and there is no model for a new site."""

    @property
    def asks(self) -> Asks:
        return (TrainBodyReleasingNorms if self.averaged else TrainBody,)

    @property
    def judges_both(self) -> bool:
        return self.averaged

    def begin(self, federation: Federation, weights: Weights) -> FedBNState:
        norms = norm_names(weights, tuple(federation.model_buffers()))
        if not norms:
            federation.warn("the network has no batch norm: FedBN is FedAvg with it")
        return FedBNState(weights, norms)

    def train(self, state: FedBNState, federation: Federation) -> FedBNState:
        """w <- sum_k (n_k / n) w_k over all layers but batch norm, which each site goes on with where it left it."""
        kind = TrainBodyReleasingNorms if self.averaged else TrainBody
        request = kind(state.weights, self.recipe(self.objective(federation)), norms=state.norms)
        replies = ask_to_train(federation, request, self.choose(state, federation))
        return replace(state, weights=self.merged(replies, state.weights))

    def model(self, state: FedBNState) -> Weights | None:
        return dict(state.weights) if self.averaged else None

    def evaluation(self, state: FedBNState) -> Request[Any]:
        return EvaluateNormed(weights=state.weights, norms=state.norms)
