"""FedDF: Lin et al., Ensemble Distillation for Robust Model Fusion in Federated Learning, NeurIPS 2020."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from fedsift.core.errors import ConfigError
from fedsift.core.ranges import AtLeastOne, AtLeastZero, Count, Share
from fedsift.formulas.aggregation import average
from fedsift.formulas.losses import mean_scores
from fedsift.methods._base import TrainingMethod, methods, plain_loss, record_loss
from fedsift.protocol.federation import Federation, Replies
from fedsift.protocol.messages import Reply, Request, SiteFacts, Weights, disclosed
from fedsift.protocol.method import Asks, Stage, State
from fedsift.protocol.site import Site
from fedsift.training.job import TrainingJob, TrainingResult
from fedsift.training.own_models import OwnEvaluated, judge
from fedsift.training.plan import reach
from fedsift.training.public_learning import PublicLesson, PublicPart, PublicPredictions, learn, public_size
from fedsift.training.recipe import Recipe
from fedsift.training.requests import TrainingRequest, count_refusal, weights_refusal

# FedDF at a site: distil the group's average, train it privately, send it back with its public scores
# ------------------------------------------------------------------------------


@dataclass(frozen=True)
class ContributedModel(Reply):
    """A site's model and what it predicts for the public samples."""

    weights: Weights = disclosed("the site's model after local training", "model", update="weights")
    outputs: Tensor | None = disclosed("that model's logits for the public, unlabelled samples, [N0, K]", "features")
    samples: int = disclosed("how many samples it trained on", "count")
    loss: float | None = disclosed("mean training loss over the local steps", "loss", spare=True)

    def refusal(self, request: Contribute, facts: SiteFacts) -> str | None:
        problem = weights_refusal(self.weights, request.weights)
        problem = problem or count_refusal("samples", self.samples, facts.samples)
        if problem is None and request.show is not None:
            problem = request.show.refusal(self.outputs)
        if problem is None and request.show is None and self.outputs is not None:
            problem = "the reply holds public predictions that were not asked for"
        return problem

    def moves(self, request: Contribute) -> tuple[tuple[Weights, Weights], ...]:
        return ((self.weights, request.weights),)


@dataclass(frozen=True)
class Contribute(TrainingRequest[ContributedModel]):
    """Distil the ensemble into these weights, train them privately, send them with their public scores."""

    reply_type: ClassVar[type[Reply]] = ContributedModel

    weights: Weights
    lesson: PublicLesson | None
    recipe: Recipe
    show: PublicPredictions | None

    def reach(self, samples: int) -> float:
        return reach(samples, self.recipe)

    def job(self, site: Site) -> TrainingJob:
        return TrainingJob(site, student_of(site, self.weights, self.lesson), self.recipe)

    def reply(self, site: Site, result: TrainingResult | None) -> ContributedModel:
        assert result is not None
        outputs = None if self.show is None else self.show.outputs(site, result.weights)
        return ContributedModel(result.weights, outputs, len(site.samples), result.loss)


def student_of(site: Site, weights: Weights, lesson: PublicLesson | None) -> Weights:
    """The group's student. Every site of a group makes the same one: order and dropout are shared."""
    return weights if lesson is None else learn(site, weights, lesson)


@dataclass(frozen=True)
class EvaluateStudent(Request[OwnEvaluated]):
    """Judge the student that the ensemble makes of these weights."""

    reply_type: ClassVar[type[Reply]] = OwnEvaluated

    weights: Weights
    lesson: PublicLesson | None

    def answer(self, site: Site) -> OwnEvaluated:
        return judge(site, student_of(site, self.weights, self.lesson))


@dataclass(frozen=True)
class FedDFState(State):
    """One model for each kind of network, and the ensemble that teaches them."""

    networks: dict[str, str] = field(default_factory=dict)
    """Each site's network."""
    models: dict[str, Weights] = field(default_factory=dict)
    """For each network the average of its sites' models: the student before distillation."""
    ensemble: Tensor | None = None
    """Mean logits of all sites' models for the public samples, `[N_0, K]`; None before the first round."""
    shuffle: int = 0
    """Number of the public samples' order in which the ensemble is written."""
    public: int = 0


@methods.register("feddf")
@dataclass(frozen=True)
class FedDF(TrainingMethod):
    """FedAvg among sites of the same network; then every average learns from the ensemble of all models.

    The original distils at the server. Here every site distils its group's average itself: public samples,
    order and weights are the same, so all of a group get the same student, and none is trusted with it alone.
    """

    summary: ClassVar[str] = "FedAvg within each network, then distillation of the ensemble on public samples"
    paper: ClassVar[str] = "Lin et al. 2020; the comparison of RHFL Tables 1 and 4-6"
    needs: ClassVar[tuple[str, ...]] = ("public",)
    mixed_networks: ClassVar[bool] = True
    evaluates: ClassVar[Asks] = (EvaluateStudent,)

    rounds: AtLeastOne = 80
    """Communication rounds; RHFL's comparison is 40 of pre-training and 40 more."""
    fraction: Share = 1.0
    """Share of the sites that train in a round."""
    distil_epochs: AtLeastOne = 1
    """Passes over the public samples; the original goes on until a validation set says stop."""
    distil_lr: float | None = None
    """Step of the distillation; None is train.lr."""
    distil_clip: AtLeastZero = 5.0
    """Largest gradient norm of a distillation step; 0 is off."""
    warm_up: Count = 0
    """First rounds without distillation."""
    judged: Literal["distilled", "trained"] = "distilled"
    """Which models are judged after a round: the students, or the averages before they are distilled, which is the
    moment at which RHFL's are judged."""

    def __post_init__(self) -> None:
        if self.distil_epochs < 1 or self.warm_up < 0:
            raise ConfigError(
                f"method.distil_epochs = {self.distil_epochs} must be at least 1, "
                f"method.warm_up = {self.warm_up} at least 0"
            )

    def start(self, federation: Federation) -> FedDFState:
        networks = {site: facts.model for site, facts in federation.facts.items()}
        models = {name: federation.initial_weights(name) for name in dict.fromkeys(networks.values())}
        return FedDFState(networks=networks, models=models, public=public_size(federation))

    def stages(self) -> list[Stage]:
        return [Stage("train", self.rounds, self.train, asks=(Contribute,))]

    def train(self, state: FedDFState, federation: Federation) -> FedDFState:
        """Sites distil and train; then each network's average and the ensemble's scores are made anew."""
        number = federation.round.index
        show = None
        if number + 1 > self.warm_up:
            part = PublicPart(number, 0, state.public)
            show = PublicPredictions(part, len(federation.classes), "logits")
        recipe, lesson = self.recipe(plain_loss(federation)), self.lesson(state)
        replies = federation.ask(
            {
                site: Contribute(state.models[state.networks[site]], lesson, recipe, show)
                for site in federation.choose(self.fraction)
            }
        )
        record_loss(federation, replies)
        scores = [reply.outputs for reply in replies.values() if reply.outputs is not None]
        ensemble = mean_scores(torch.stack(scores)) if scores else None
        models = {**state.models, **averages(replies, state.networks)}
        return replace(state, models=models, ensemble=ensemble, shuffle=number)

    def lesson(self, state: FedDFState) -> PublicLesson | None:
        """KL(softmax(mean_k z_k) || student), over the public samples."""
        if state.ensemble is None:
            return None
        recipe = replace(
            self.local,
            epochs=self.distil_epochs,
            lr=self.local.lr if self.distil_lr is None else self.distil_lr,
            clip=self.distil_clip,
        )
        part = PublicPart(state.shuffle, 0, state.public)
        return PublicLesson(part, state.ensemble, "kl", recipe, "visit")

    def model(self, state: FedDFState) -> None:
        """There is one for each network; they are judged at the sites."""
        return None

    def evaluation(self, state: FedDFState) -> Mapping[str, Request[Any]]:
        lesson = self.lesson(state) if self.judged == "distilled" else None
        return {site: EvaluateStudent(state.models[name], lesson) for site, name in state.networks.items()}

    def tiny(self) -> FedDF:
        return replace(self, rounds=3)


def averages(replies: Replies[ContributedModel], networks: Mapping[str, str]) -> dict[str, Weights]:
    """For each network that replied, the size-weighted mean of its sites' models."""
    result: dict[str, Weights] = {}
    for name in dict.fromkeys(networks[site] for site in replies):
        group = [reply for site, reply in replies.items() if networks[site] == name]
        result[name] = average([reply.weights for reply in group], [reply.samples for reply in group])
    return result
