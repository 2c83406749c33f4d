"""Base classes of the methods: their registry, the recipe of local training, and the round of one-stage methods."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal, Protocol, TypeVar

import numpy as np
import torch

from fedsift.core.ranges import AtLeastOne, Range, Share
from fedsift.core.registry import Registry
from fedsift.detection.group_test import FEWEST_CLASSES, GroupTest, best_share, blind_share, no_clean_reference
from fedsift.formulas.aggregation import GUARDED_BY_SHARE, average, rules
from fedsift.protocol.federation import Federation, FederationFacts, Incompatibility, Replies
from fedsift.protocol.findings import Findings
from fedsift.protocol.messages import Reply, Request, Weights, disclosed
from fedsift.protocol.method import Asks, Method, Stage
from fedsift.protocol.site import Site
from fedsift.training.objective import (
    BinaryCrossEntropy,
    CrossEntropy,
    EarlyLearning,
    GeneralisedCrossEntropy,
    Objective,
    SymmetricCrossEntropy,
    Term,
    as_objective,
)
from fedsift.training.predict import site_logits
from fedsift.training.recipe import Recipe
from fedsift.training.requests import Train, Trained

methods: Registry[type[Method]] = Registry("method", base=Method, group="fedsift.methods")


@dataclass(frozen=True)
class TrainingMethod(Method):
    """A method whose sites train a network by a recipe: its own, or a study's `[train]` table in its place."""

    local: Recipe = field(default_factory=Recipe, kw_only=True)
    """How sites train. A method built alone trains by its own recipe."""

    def recipe(self, objective: Term | Objective, **changes: Any) -> Recipe:
        """The recipe of local training with this method's objective."""
        return replace(self.local, objective=as_objective(objective), **changes)


HOSTILE = 0.2
"""Share of hostile sites that is guarded against when nobody says how many there are."""


def oracle_note(*words: str | None) -> str | None:
    """What a method is given of the truth, as one note; None for nothing."""
    return ", ".join(word for word in words if word) or None


@dataclass(frozen=True)
class Averaging(TrainingMethod):
    """A method whose server makes one model of the sites' models, by a rule that a study may choose."""

    aggregate: str = field(default="mean", kw_only=True)
    """How the sites' models become one. "mean" weighs them by size (or by the method's own shares) and trusts everyone;
    "median", "trimmed", "krum", "multi-krum", "geometric-median" and "clipped" bound what a minority of the sites can
    do (docs/methods/aggregation.md); `package.module:function` names a rule of another package."""
    hostile: Annotated[float, Range(0, 0.5, below=True)] = field(default=HOSTILE, kw_only=True)
    """f / m: share of a round's sites that may send anything at all, for "trimmed", "krum" and "multi-krum". A share
    other than the usual one is taken for knowledge of the truth, and the run says so."""

    @property
    def oracle(self) -> str | None:
        guards = self.aggregate in GUARDED_BY_SHARE and self.hostile != HOSTILE
        return f"share of hostile sites {self.hostile:g} given" if guards else None

    def merge(self, models: Sequence[Weights], sizes: Sequence[float], start: Weights) -> Weights:
        """The models as one. sizes: what each counts for where the rule lets it; start: what the sites trained from."""
        return rules.get(self.aggregate)(models, sizes, start, self.hostile)

    def merged(self, replies: Replies[Trained], start: Weights) -> Weights:
        """The replies' models as one; with "mean" FedAvg's w = sum_k (n_k / n) w_k (FedNoRo eq. 2)."""
        every = replies.values()
        return self.merge([reply.weights for reply in every], [reply.samples for reply in every], start)


T = TypeVar("T", bound="OneStage")


@dataclass(frozen=True)
class OneStage(Averaging):
    """A method that repeats one round: choose sites, let them train from the global model, aggregate.

    A subclass says what differs: the loss, the choice, or the whole round.
    """

    rounds: AtLeastOne = 100
    """T: communication rounds."""
    fraction: Share = 1.0
    """C: share of the sites that train in a round."""

    def stages(self) -> list[Stage]:
        return [Stage("train", self.rounds, self.train, self.asks)]

    @property
    def asks(self) -> Asks:
        """What a round may ask."""
        return (Train,)

    def objective(self, federation: Federation) -> Term | Objective:
        """The loss of local training."""
        return plain_loss(federation)

    def choose(self, state: Any, federation: Federation) -> list[str]:
        """The sites of this round."""
        return federation.choose(self.fraction)

    def train(self, state: Any, federation: Federation) -> Any:
        """One round."""
        chosen = self.choose(state, federation)
        replies = train_round(federation, state.weights, self.recipe(self.objective(federation)), chosen)
        return replace(state, weights=self.merged(replies, state.weights))

    def tiny(self: T) -> T:
        return replace(self, rounds=3)


Loss = Literal["ce", "sce", "gce", "elr"]


@dataclass(frozen=True)
class AnyLoss(OneStage):
    """A method of one repeated round whose sites may train on any loss."""

    loss: Loss = "ce"
    """What sites minimise: cross-entropy, or a loss that bears wrong labels better: "sce" (symmetric), "gce"
    (generalised, q = 0.7) or "elr" (early-learning regularisation, lambda = 3)."""

    def objective(self, federation: Federation) -> Term | Objective:
        return plain_loss(federation) if self.loss == "ce" else ROBUST[self.loss]

    def incompatibilities(self, facts: FederationFacts) -> Iterator[Incompatibility]:
        yield from super().incompatibilities(facts)
        if self.loss != "ce" and facts.kind == "multilabel":
            yield Incompatibility(f"loss = '{self.loss}' is for one label a sample; these are several", refuses=True)


ROBUST: Mapping[str, Term] = {
    "sce": SymmetricCrossEntropy(),
    "gce": GeneralisedCrossEntropy(),
    "elr": EarlyLearning(),
}


def plain_loss(federation: Federation) -> Term:
    """The usual loss for the kind of labels at hand."""
    return BinaryCrossEntropy() if federation.multilabel else CrossEntropy()


def train_round(
    federation: Federation,
    weights: Weights,
    recipe: Recipe | Mapping[str, Recipe],
    sites: Sequence[str] | None = None,
) -> Replies[Trained]:
    """Ask sites to train from these weights, all by one recipe or each by its own; records their mean training loss."""
    if isinstance(recipe, Mapping):
        return ask_to_train(federation, {site: Train(weights, own) for site, own in recipe.items()})
    return ask_to_train(federation, Train(weights, recipe), sites)


def ask_to_train(
    federation: Federation, request: Train | Mapping[str, Train], sites: Sequence[str] | None = None
) -> Replies[Trained]:
    """Ask sites for training of any kind; records their mean training loss, by the samples that they trained on."""
    replies = federation.ask(request, sites)
    record_loss(federation, replies)
    return replies


class TrainingReply(Protocol):
    """A reply to training of any kind."""

    @property
    def loss(self) -> float | None: ...
    @property
    def samples(self) -> int: ...


def record_loss(federation: Federation, replies: Mapping[str, TrainingReply]) -> None:
    """Keep the sites' mean training loss, by the samples that they trained on, with the round; of those that say it."""
    known = [(reply.loss, reply.samples) for reply in replies.values() if reply.loss is not None]
    if known or not replies:
        federation.record(train_loss=sum(loss * own for loss, own in known) / max(sum(own for _, own in known), 1))


def size_weighted(replies: Replies[Trained]) -> Weights:
    """FedAvg's aggregation: w = sum_k (n_k / n) w_k over the replies (FedNoRo eq. 2)."""
    return average([reply.weights for reply in replies.values()], [reply.samples for reply in replies.values()])


# What several methods have to say about the federations that they fit ------------------------------------------------

FEWEST_FOR_A_MIXTURE = 4
"""Sites that are needed to separate two groups."""


def mixture_incompatibilities(facts: FederationFacts) -> Iterator[Incompatibility]:
    """Of two sites a mixture calls one noisy whatever their labels are like, and no test can say otherwise: refused.

    Three can be split, but hardly significantly: a run continues with a warning.
    """
    if facts.sites is not None and facts.sites < FEWEST_FOR_A_MIXTURE:
        words = f"it separates noisy from clean sites by a mixture; {facts.sites} sites are too few"
        yield Incompatibility(f"{words} ({FEWEST_FOR_A_MIXTURE} at least)", refuses=facts.sites < 3)


def for_missing_classes(facts: FederationFacts) -> Iterator[Incompatibility]:
    if facts.annotates_all:
        yield Incompatibility("made for sites that annotate some classes only; here every site annotates all")


def tested_for_own_labels(detection: str | None, facts: FederationFacts) -> Literal["paper", "tested"]:
    """Own labels may well be clean, and the papers' mixtures find noise in any federation: a method that can test
    for noise first does so for them unless configured otherwise."""
    if detection in ("paper", "tested"):
        return detection  # type: ignore[return-value]
    return "tested" if facts.own_labels else "paper"


def tested_findings(sites: Sequence[str], found: GroupTest) -> Findings:
    """What a test for two groups says of these sites, in its order."""
    return Findings(
        tuple(sites[i] for i in found.noisy),
        probability={s: float(p) for s, p in zip(sites, found.probability) if not np.isnan(p)},
        p_value=found.p_value,
        threshold=found.threshold,
        steadiness=found.steadiness,
        borderline=found.borderline,
    )


def one_stage(name: str, **settings: Any) -> OneStage:
    """A registered method of one repeated stage, for a method that ends in another one."""
    made = methods.get(name)(**settings)
    assert isinstance(made, OneStage)
    return made


# Is any site clean enough to compare with?
# ------------------------------------------------------------------------------


# Ask sites how many of their labels look as if nobody had looked at the sample
# ------------------------------------------------------------------------------


@dataclass(frozen=True)
class BlindShare(Reply):
    """What a site estimates of its own labels."""

    share: float = disclosed(
        "estimated share of its labels that look drawn at random, by the received model", "share", least=0, most=1
    )


@dataclass(frozen=True)
class EstimateBlindShare(Request[BlindShare]):
    """Estimate the share of blind labels under this model (`detection.group_test`); three classes at least."""

    reply_type: ClassVar[type[Reply]] = BlindShare

    weights: Weights

    def answer(self, site: Site) -> BlindShare:
        p = torch.softmax(site_logits(site, self.weights).double(), -1)
        return BlindShare(blind_share(p.numpy(), site.labels.numpy()))


def beside_clean_sites(found: Findings, federation: Federation, weights: Weights) -> Findings:
    """These findings, or, where even the best sites have many blind labels under this model, that no site can be called
    noisy.

    The sites' own estimates are then their noise levels.
    """
    if len(federation.classes) < FEWEST_CLASSES:
        return found
    shares = {site: reply.share for site, reply in federation.ask(EstimateBlindShare(weights)).items()}
    federation.record(best_blind_share=best_share(list(shares.values())))
    if not no_clean_reference(list(shares.values())):
        return found
    return Findings((), found.unmeasured, level=shares, no_clean_reference=True)


def without_reference(found: Findings, federation: Federation) -> bool:
    """Say once, in words, that no site can be called noisy."""
    if found.no_clean_reference:
        federation.warn(
            "no clean reference: even the best sites have many labels that look drawn at random, so no site can be "
            "called noisy beside the others"
        )
    return found.no_clean_reference
