"""CBAFed: Li et al., Class Balanced Adaptive Pseudo Labeling for Federated Semi-Supervised Learning, CVPR 2023, for
sites that annotate some classes only, as FedMLP's comparison (Sun et al. 2024) adapted it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from fedsift.core.ranges import AtLeastOne, Count, Rate, Share
from fedsift.formulas.aggregation import average
from fedsift.formulas.losses import confident_tags
from fedsift.methods._base import TrainingMethod, ask_to_train, for_missing_classes, methods
from fedsift.protocol.federation import Federation, FederationFacts, Incompatibility
from fedsift.protocol.messages import Reply, Request, SiteFacts, Weights, disclosed
from fedsift.protocol.method import Stage, State
from fedsift.protocol.site import Site
from fedsift.training.objective import PartialClass
from fedsift.training.predict import site_logits
from fedsift.training.requests import Train, count_refusal

# CBAFed at a site: tag missing labels that the received model is sure of, by a threshold for each
# class
# ------------------------------------------------------------------------------

NAME = "cbafed"


@dataclass(frozen=True)
class UsedCount(Reply):
    """How many labels a site trains on; which, stays there."""

    labels: int = disclosed("how many labels it trains on, given ones and those that it tagged itself", "count")
    positives: Tensor = disclosed(
        "how many of them say yes, for each class, [K]; 0 below the site's minimum count", "count"
    )

    def refusal(self, request: TagByThreshold, facts: SiteFacts) -> str | None:
        if self.positives.shape != (request.classes,) or self.positives.dtype != torch.int64:
            return f"the positives have shape {tuple(self.positives.shape)}, asked were {request.classes} integers"
        if bool((self.positives < 0).any()) or bool((self.positives > facts.samples).any()):
            return f"the positives are not from 0 to the {facts.samples} samples that the site declared"
        return count_refusal("labels", self.labels, facts.samples * request.classes, least=0)


@dataclass(frozen=True)
class TagByThreshold(Request[UsedCount]):
    """Give missing classes the labels that the received model is sure of; earlier tags are forgotten."""

    reply_type: ClassVar[type[Reply]] = UsedCount

    classes: int
    thresholds: tuple[float, ...] = ()
    """tau_c; empty: no tags, only the counts."""
    weights: Weights | None = None
    """None: the model received with the training that this is a part of."""

    def answer(self, site: Site) -> UsedCount:
        shape = len(site.samples), site.n_classes
        annotated = (torch.ones(site.n_classes) if site.known is None else site.known).expand(shape) > 0
        labels, known = site.given.clone(), annotated
        if self.thresholds:
            p = torch.sigmoid(site_logits(site, site.weights_for(self.weights)).double())
            tags, sure = confident_tags(p, torch.tensor(self.thresholds, dtype=torch.float64))
            known = annotated | sure
            labels = torch.where(annotated, site.given, torch.where(sure, tags.to(site.given.dtype), 0))
            site.keep_evidence(NAME, labels=labels, known=known, proposed=labels)
        positives = (labels * known).sum(0).to(torch.int64)
        return UsedCount(site.suppress_small(int(known.sum())), positives.masked_fill(positives < site.min_count, 0))


def class_thresholds(positives: ArrayLike, base: float, low: float, high: float) -> NDArray[np.float64]:
    """tau_c = clip(pt_c + base - std(pt), low, high) with pt_c the share of class c among all positives, `[K] -> [K]`.

    A frequent class must be surer than a rare one. Without any positive all shares count as equal.
    """
    counts = np.asarray(positives, dtype=np.float64)
    shares = counts / counts.sum() if counts.sum() > 0 else np.full(len(counts), 1 / len(counts))
    return np.asarray(np.clip(shares + base - shares.std(), low, high))


@dataclass(frozen=True)
class CBAFedState(State):
    """The global model, the one that it is drawn back to, and the federation's positives of each class."""

    residual: Weights = field(default_factory=dict)
    positives: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))


@methods.register("cbafed")
@dataclass(frozen=True)
class CBAFed(TrainingMethod):
    """Sites tag missing labels by thresholds that follow how frequent a class is; models are drawn back at times."""

    summary: ClassVar[str] = "Tags missing labels by a threshold for each class, higher for frequent ones"
    paper: ClassVar[str] = "Li et al. 2023; multi-label as in FedMLP's comparison"
    tasks: ClassVar[tuple[str, ...]] = ("multilabel",)

    warmup: Count = 50
    """Rounds on annotated classes alone."""
    rounds: AtLeastOne = 50
    """Rounds with tags."""
    fraction: Share = 1.0
    """Share of the sites that train in a round."""
    base: Rate = 0.45
    """tau_c = pt_c + base - std(pt)."""
    low: Rate = 0.55
    """The lowest threshold."""
    high: Rate = 0.95
    """The highest threshold."""
    every: Count = 5
    """Every so many rounds the average is drawn back to the model of the last such round; 0: never."""
    back_warm: Rate = 0.8
    """Weight of that earlier model in the warm-up."""
    back: Rate = 0.5
    """Its weight afterwards."""

    def begin(self, federation: Federation, weights: Weights) -> CBAFedState:
        return CBAFedState(weights)

    def stages(self) -> list[Stage]:
        asks = (Train, TagByThreshold)
        return [
            Stage("warm-up", self.warmup, self.warm, asks=asks),
            Stage("tag", self.rounds, self.tag, asks=asks),
        ]

    def warm(self, state: CBAFedState, federation: Federation) -> CBAFedState:
        return self.one_round(state, federation, (), self.back_warm)

    def tag(self, state: CBAFedState, federation: Federation) -> CBAFedState:
        """Before training, each site tags what the received model is sure of."""
        counts = state.positives if len(state.positives) else np.zeros(len(federation.classes))
        thresholds = class_thresholds(counts, self.base, self.low, self.high)
        federation.record(thresholds=thresholds.tolist())
        return self.one_round(state, federation, tuple(thresholds.tolist()), self.back)

    def one_round(
        self, state: CBAFedState, federation: Federation, thresholds: tuple[float, ...], back: float
    ) -> CBAFedState:
        """FedAvg weighted by the number of labels used, then the residual connection."""
        visit = Train(
            state.weights,
            self.recipe(PartialClass(adjust=0.0)),
            before=(TagByThreshold(len(federation.classes), thresholds),),
        )
        replies = ask_to_train(federation, visit, federation.choose(self.fraction))
        used = [part for reply in replies.values() for part in reply.then if isinstance(part, UsedCount)]
        federation.record(labels_used=sum(part.labels for part in used))
        averaged = average([r.weights for r in replies.values()], [max(part.labels, 1) for part in used])
        positives = np.sum([part.positives.numpy() for part in used], axis=0).astype(np.float64)
        state = replace(state, weights=averaged, positives=positives)
        if not self.every or (federation.round.index + 1) % self.every:
            return state
        drawn = average([averaged, state.residual], [1 - back, back]) if state.residual else averaged
        return replace(state, weights=drawn, residual=drawn)

    def incompatibilities(self, facts: FederationFacts) -> Iterator[Incompatibility]:
        yield from super().incompatibilities(facts)
        yield from for_missing_classes(facts)

    def tiny(self) -> CBAFed:
        return replace(self, warmup=2, rounds=2, every=2)
