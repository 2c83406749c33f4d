"""Evaluation after a round: on the central test set when there is one, else at the sites on their held-out parts."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Collection
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsift.formulas.metrics import multilabel_scores
from fedsift.protocol.messages import Weights
from fedsift.protocol.method import Asks, Method
from fedsift.protocol.site import ComputeSettings, Samples
from fedsift.runtime.federation import EngineFederation
from fedsift.training.requests import Evaluate, Evaluated, RightCounts, counted
from fedsift.training.workers import predict

OF_OWN_MODELS = ("site_accuracy", "mean_site_accuracy", "mean_site_accuracy_low", "mean_site_accuracy_high")


class Evaluator:
    """Turns a method's state into a round's metrics."""

    def __init__(
        self,
        federation: EngineFederation,
        test: tuple[Samples, Tensor] | None,
        compute: ComputeSettings | None = None,
    ) -> None:
        self.federation = federation
        self.test = test
        self.compute = compute or federation.compute

    def asks(self, method: Method) -> Asks:
        """Kinds of request that evaluating may send: the method's own, or the engine's where there is no test set."""
        if method.evaluates is None:
            return ()
        of_model: Asks = () if self.test is not None else (Evaluate,)
        return (*method.evaluates, *of_model) if method.judges_both else method.evaluates or of_model

    def __call__(self, method: Method, state: Any) -> dict[str, Any]:
        self.federation.declared = self.asks(method)
        weights = method.model(state)
        if weights is None:
            request = method.evaluation(state)
            return {} if request is None else self._at_sites(request, own_models=True)
        metrics = self._of_model(weights)
        if method.judges_both:
            own = self._at_sites(method.evaluation(state), own_models=True)
            metrics.update({name: own[name] for name in OF_OWN_MODELS if name in own})
        return metrics

    def _of_model(self, weights: Weights) -> dict[str, Any]:
        """The global model, on the central test set or on what the sites hold out."""
        if self.test is not None:
            samples, labels = self.test
            classes = len(self.federation.classes)
            logits = predict(self.federation.model, weights, samples, classes, self.compute)
            return self._central(logits, labels)
        return self._at_sites(Evaluate(weights))

    def _central(self, logits: Tensor, labels: Tensor) -> dict[str, Any]:
        counts = Evaluated(*counted(logits, labels, multilabel=self.federation.multilabel))
        metrics = self._from_counts([counts])
        if self.federation.multilabel:
            scores = multilabel_scores(labels.numpy(), torch.sigmoid(logits).numpy())
            metrics.update(auc=scores.auc, map=scores.map, auc_per_class=scores.auc_per_class)
        return metrics

    def _at_sites(self, request: Any, own_models: bool = False) -> dict[str, Any]:
        """Summed counts of all sites; for sites with models of their own also the accuracy of each."""
        replies = {site: reply for site, reply in self.federation.ask(request).items() if reply.samples}
        if not replies:
            return {}
        total = sum(reply.samples for reply in replies.values())
        metrics = {**self._from_counts(replies.values()), "evaluated_at": "sites", "evaluated_on": total}
        if own_models:
            each = {site: reply.bounds.accuracy for site, reply in replies.items()}
            exact = {site: low for site, (low, high) in each.items() if low == high}
            self.federation.record_sites("accuracy", exact)
            if len(exact) < len(each):
                self.federation.record_sites("accuracy_low", {site: low for site, (low, _) in each.items()})
                self.federation.record_sites("accuracy_high", {site: high for site, (_, high) in each.items()})
            lows, highs = zip(*each.values())
            mean = _scored("mean_site_accuracy", sum(lows) / len(lows), sum(highs) / len(highs))
            metrics.update(site_accuracy=exact, **mean)
        return metrics

    def _from_counts(self, counts: Collection[RightCounts]) -> dict[str, Any]:
        """Accuracy, balanced accuracy and recalls from summed counts.

        Counts that sites rounded or lumped give an interval (`accuracy_low`, `accuracy_high`) and no value.
        """
        spoken_for = [(reply.loss, _samples_behind(reply)) for reply in counts]
        weight = sum(own for _, own in spoken_for)
        bounds = functools.reduce(operator.add, (reply.bounds for reply in counts))
        metrics: dict[str, Any] = {
            "loss": sum(loss * own for loss, own in spoken_for) / weight if weight else 0.0,
            **_scored("accuracy", *bounds.accuracy),
            **_scored("bacc", *bounds.balanced),
        }
        if self.federation.multilabel:
            return metrics
        low, high = bounds.recall
        exact = (low == high) | np.isnan(low)
        metrics["recall"] = np.where(exact, low, np.nan)
        if not exact.all():
            metrics.update(recall_low=low, recall_high=high)
        return metrics


def _scored(name: str, low: float, high: float) -> dict[str, Any]:
    """A score that is known, or the interval in which it lies."""
    if low == high or math.isnan(low):
        return {name: low}
    return {f"{name}_low": low, f"{name}_high": high}


def _samples_behind(reply: RightCounts) -> float:
    """How many samples a reply's loss is the mean of: all, or the share of them that are not lumped."""
    counted = int(reply.total.sum())
    return reply.samples * (counted / (counted + int(reply.rest[1]))) if counted else 0.0
