"""Requests for sites that keep a model of their own in their notebook."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fedsift.core.errors import DataError
from fedsift.core.randomness import derive
from fedsift.formulas import losses
from fedsift.models.factory import initial_weights
from fedsift.protocol.messages import Reply, Request, SiteFacts, Weights, disclosed
from fedsift.protocol.site import Samples, Site
from fedsift.training.job import TrainingJob, TrainingResult
from fedsift.training.objective import Objective, View
from fedsift.training.predict import logits_of, site_logits
from fedsift.training.recipe import Augment, Recipe
from fedsift.training.requests import (
    RightCounts,
    TrainingRequest,
    count_refusal,
    counted,
    counts_refusal,
    nothing_counted,
)

MeasuredOn = Literal["own", "held out"]
"""A site's loss: over the samples that it trains on, or over those that it holds out."""
MODEL = "model"
"""The notebook's page with the site's own weights."""


def own_model(site: Site) -> Weights:
    """The site's own weights; before its first training, fresh ones from the run's seed and its name."""
    kept: Weights | None = site.notebook.get(MODEL)
    if kept is not None:
        return kept
    seed = derive(site.moment.seed, "own model", site.name)
    return initial_weights(site.facts.model, site.samples.shape, site.n_classes, seed)


def keep_model(site: Site, weights: Weights) -> None:
    site.notebook[MODEL] = weights


def mean_objective(
    site: Site, weights: Weights, objective: Objective, augment: Augment | None = None, on: MeasuredOn = "own"
) -> float:
    """The objective over all of the site's samples, in inference mode: RHFL's L_k (eq. 9); or over what it holds out.

    Objectives of terms that look at logits and labels alone; `augment` measures on augmented images instead.
    """
    if on == "held out":
        samples, labels = held_out_of(site)
        logits = logits_of(site.network(weights), samples).double()
    else:
        logits, labels = site_logits(site, weights, augment=augment).double(), site.labels
    target = labels.double() if site.multilabel else F.one_hot(labels, site.n_classes).double()
    view = View(logits=logits, target=target, present=torch.ones(len(target), dtype=torch.float64))
    if "prior" in objective.needs:
        view.log_prior = losses.log_prior(site.label_counts().double())[None, :]
    return float(objective.value(view))


def held_out_of(site: Site) -> tuple[Samples, Tensor]:
    """What the site never trains on, with the labels it was given."""
    if site.held_out is None or site.held_out_given is None or not site.suppress_small(len(site.held_out)):
        raise DataError(f"site '{site.name}' holds out too few samples to report their loss")
    return site.held_out, site.held_out_given


def chance_objective(objective: Objective, classes: int) -> float:
    """The objective of a model that says every class alike, one label a sample."""
    each = torch.eye(classes, dtype=torch.float64)
    view = View(logits=torch.zeros_like(each), target=each, present=torch.ones(classes, dtype=torch.float64))
    return float(objective.value(view))


# Training ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OwnTrained(Reply):
    """What a site sends after training its own model."""

    loss: float | None = disclosed("mean training loss over the local steps", "loss", spare=True)
    samples: int = disclosed("how many samples it trained on", "count")

    def refusal(self, request: TrainOwn, facts: SiteFacts) -> str | None:
        return count_refusal("samples", self.samples, facts.samples)


@dataclass(frozen=True)
class TrainOwn(TrainingRequest[OwnTrained]):
    """Train the site's own model by this recipe, and keep it."""

    reply_type: ClassVar[type[Reply]] = OwnTrained

    recipe: Recipe

    def job(self, site: Site) -> TrainingJob:
        return TrainingJob(site, own_model(site), self.recipe)

    def reply(self, site: Site, result: TrainingResult | None) -> OwnTrained:
        assert result is not None
        keep_model(site, result.weights)
        return OwnTrained(result.loss, len(site.samples))


# Evaluation -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OwnEvaluated(RightCounts):
    """Counts of the site's own model."""

    where: Literal["test set", "held out"] = disclosed(
        "whether these are held-out or common test samples", "setting", default="held out"
    )

    def refusal(self, request: EvaluateOwn, facts: SiteFacts) -> str | None:
        declared = {"test set": facts.test, "held out": facts.held_out}
        if self.where not in declared:
            return f"the site's own model was judged on '{self.where}', which nobody asked for"
        return counts_refusal(self, declared[self.where], facts)


@dataclass(frozen=True)
class EvaluateOwn(Request[OwnEvaluated]):
    """Judge the site's own model: on a simulation's common test set if there is one, else held out."""

    reply_type: ClassVar[type[Reply]] = OwnEvaluated

    def answer(self, site: Site) -> OwnEvaluated:
        return judge(site, self.model(site))

    def model(self, site: Site) -> Weights:
        return own_model(site)


def judge(site: Site, weights: Weights) -> OwnEvaluated:
    where: Literal["test set", "held out"] = "held out"
    samples, labels = site.held_out, site.held_out_given
    if site.test is not None and site.test_labels is not None:
        where, samples, labels = "test set", site.test, site.test_labels
    if samples is None or labels is None or not site.suppress_small(len(samples)):
        return OwnEvaluated(*nothing_counted(site.facts), where)
    logits = logits_of(site.network(weights), samples)
    found = counted(logits, labels, multilabel=site.multilabel, min_count=site.min_count)
    return OwnEvaluated(*found, where)
