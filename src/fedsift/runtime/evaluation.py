"""Evaluation after a round: on the central test set when there is one, else at the sites on their held-out parts."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor

from fedsift.formulas.metrics import (
    accuracy,
    balanced_accuracy,
    balanced_accuracy_from_counts,
    mean_of_defined,
    multilabel_scores,
    recall_per_class,
)
from fedsift.protocol.messages import Weights
from fedsift.protocol.method import Asks, Method
from fedsift.protocol.site import ComputeSettings, Samples
from fedsift.runtime.federation import EngineFederation
from fedsift.training.requests import Evaluate, Evaluated, RightCounts, counted
from fedsift.training.workers import predict


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
            metrics.update({name: own[name] for name in ("site_accuracy", "mean_site_accuracy") if name in own})
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
            each = {site: self._from_counts([reply])["accuracy"] for site, reply in replies.items()}
            self.federation.record_sites("accuracy", each)
            metrics.update(site_accuracy=each, mean_site_accuracy=sum(each.values()) / len(each))
        return metrics

    def _from_counts(self, counts: Collection[RightCounts]) -> dict[str, Any]:
        """Accuracy, balanced accuracy and recalls from summed counts.

        Classes that a site lumped count for the accuracy; their recall is that of the sites that reported it.
        """
        right = torch.stack([reply.right for reply in counts]).sum(0).numpy()
        total = torch.stack([reply.total for reply in counts]).sum(0).numpy()
        lumped = torch.stack([reply.rest for reply in counts]).sum(0).numpy()
        spoken_for = [(reply.loss, _samples_behind(reply)) for reply in counts]
        weight = sum(own for _, own in spoken_for)
        metrics: dict[str, Any] = {
            "loss": sum(loss * own for loss, own in spoken_for) / weight if weight else 0.0,
            "accuracy": accuracy(right.sum() + lumped[0], total.sum() + lumped[1]),
        }
        if self.federation.multilabel:
            (tn, tp), (fp, fn) = right.T, (total - right).T
            metrics["bacc"] = mean_of_defined(balanced_accuracy_from_counts([tp, fn, tn, fp]))
            return metrics
        return {
            **metrics,
            "bacc": balanced_accuracy(right, total),
            "recall": recall_per_class(right, total),
        }


def _samples_behind(reply: RightCounts) -> float:
    """How many samples a reply's loss is the mean of: all, or the share of them that are not lumped."""
    counted = int(reply.total.sum())
    return reply.samples * (counted / (counted + int(reply.rest[1]))) if counted else 0.0
