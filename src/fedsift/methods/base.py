"""What the methods share: their registry, the recipe that the study gives them, and plain averaging rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fedsift.aggregate import average
from fedsift.contract import Federation, Method, Registry, Replies, Weights
from fedsift.local.objective import BinaryCrossEntropy, CrossEntropy, Objective, Term, as_objective
from fedsift.local.recipe import Recipe
from fedsift.local.requests import Train, Trained

methods: Registry[type[Method]] = Registry("method", base=Method, group="fedsift.methods")


@dataclass(frozen=True)
class TrainingMethod(Method):
    """A method whose sites train a network by the study's `[train]` table."""

    local: Recipe = field(default_factory=Recipe, kw_only=True)

    def recipe(self, objective: Term | Objective, **changes: Any) -> Recipe:
        """The study's recipe with this method's objective."""
        return replace(self.local, objective=as_objective(objective), **changes)


def plain_loss(federation: Federation) -> Term:
    """The usual loss for the kind of labels at hand."""
    return BinaryCrossEntropy() if federation.multilabel else CrossEntropy()


def train_round(
    federation: Federation,
    weights: Weights,
    recipe: Recipe | Mapping[str, Recipe],
    sites: Sequence[str] | None = None,
) -> Replies[Trained]:
    """Ask sites to train from these weights; records their mean training loss."""
    if isinstance(recipe, Mapping):
        replies = federation.ask({site: Train(weights, own) for site, own in recipe.items()})
    else:
        replies = federation.ask(Train(weights, recipe), sites)
    total = sum(reply.samples for reply in replies.values())
    federation.record(train_loss=sum(reply.loss * reply.samples for reply in replies.values()) / total)
    return replies


def size_weighted(replies: Replies[Trained]) -> Weights:
    """FedAvg's aggregation: w = sum_k (n_k / n) w_k over the replies (FedNoRo eq. 2)."""
    return average(
        [reply.weights for reply in replies.values()], [reply.samples for reply in replies.values()]
    )
