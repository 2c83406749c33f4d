"""FedIRM: Liu et al., Federated Semi-supervised Medical Image Classification via Inter-client Relation Matching, MICCAI
2021, for sites that annotate some classes only, as FedMLP's comparison (Sun et al. 2024) adapted it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from fedsift.core.errors import ConfigError
from fedsift.core.ranges import AtLeastOne, AtLeastZero, Count, Positive, Range
from fedsift.formulas import losses
from fedsift.methods import fedirm
from fedsift.methods._base import ask_to_train, methods
from fedsift.methods._partial_annotation import PartlyAnnotated, TrainWithAverage
from fedsift.methods.fedmlp import mean_of_holders
from fedsift.methods.fednoro import rampup
from fedsift.protocol.federation import Federation, FederationFacts, Replies
from fedsift.protocol.messages import Reply, Request, SiteFacts, Weights, disclosed
from fedsift.protocol.method import Stage, State
from fedsift.protocol.site import Site
from fedsift.training.objective import (
    Extra,
    MissingTo,
    Objective,
    PerSite,
    PositiveWeighted,
    Term,
    View,
    annotated_classes,
    known_entries,
)
from fedsift.training.predict import site_logits
from fedsift.training.requests import Train, Trained

RELATIONS, RELATED = "relations between classes", "classes that have relations"
"""Extras of the term below: what other sites' models say of positives of each class, `[K, K]`, and which rows exist."""


@dataclass(frozen=True)
class SameRelations(Term):
    """FedIRM: what the network says of samples that it takes for class c is what other sites' networks say of theirs.

    Samples of which the network is sure throughout, and whose entropy is small, stand for their missing classes; the
    divergence from the received rows is averaged over the classes that the batch and the received matrix both have.
    """

    needs: ClassVar[frozenset[str]] = frozenset({RELATIONS, RELATED})

    threshold: float = 0.7
    most_entropy: float = 2.0
    temperature: float = 2.0
    divergence: Literal["plain", "binary"] = "plain"

    def value(self, view: View) -> Tensor:
        guess = view.logits.detach()
        labels, sure = losses.confident_tags(torch.sigmoid(guess), self.threshold)
        everywhere = losses.all_confident(sure, torch.ones_like(sure))
        chosen = everywhere & (losses.binary_entropy(guess).sum(-1) < self.most_entropy) & (view.present > 0)
        members = labels * (known_entries(view) == 0) * chosen.unsqueeze(-1)
        own, held = fedirm.relation_matrix(view.logits, members, self.temperature)
        compared = held & (view.site(RELATED) > 0)
        apart = fedirm.relation_divergence(own, view.site(RELATIONS), self.divergence)
        return torch.where(compared, apart, 0.0).sum(-1) / compared.sum(-1).clamp(min=1)


# What a network says of all classes where one of them is present (FedIRM), for several yes/no labels
# a sample
# ------------------------------------------------------------------------------

LEAST = 1e-6
"""Probabilities count as at least this in a divergence."""


def relation_matrix(logits: Tensor, members: Tensor, temperature: float = 2.0) -> tuple[Tensor, Tensor]:
    """Row c: sigmoid(mean over the members of class c of z / T), `[..., B, K] -> [..., K, K]`; and which rows exist.

    members: `[..., B, K]`, 1 where a sample stands for a class. A class without a member has no row (1/2 throughout).
    """
    weights = members.to(logits.dtype)
    count = weights.sum(-2)
    mean = weights.transpose(-1, -2) @ logits / count.clamp(min=1).unsqueeze(-1)
    return torch.sigmoid(mean / temperature), count > 0


def relation_divergence(own: Tensor, other: Tensor, kind: Literal["plain", "binary"] = "plain") -> Tensor:
    """(KL(p || q) + KL(q || p)) / 2 of each row, `[..., K, K] -> [..., K]`.

    "plain" takes the probabilities of a row as they stand, as released: (p - q)(log p - log q) / 2, which is never
    negative though a row need not add up to 1. "binary" takes each of them for a yes/no distribution, so that the
    other side counts too: (p - q)(logit p - logit q) / 2.
    """
    p, q = own.clamp(LEAST, 1 - LEAST), other.to(own.dtype).clamp(LEAST, 1 - LEAST)
    if kind == "plain":
        apart = p.log() - q.log()
    elif kind == "binary":
        apart = torch.logit(p) - torch.logit(q)
    else:
        raise ConfigError(f"divergence = '{kind}': choose 'plain' or 'binary'")
    return ((p - q) * apart).sum(-1) / 2


# FedIRM at a site: what its model says of all classes where one that it annotates is present, and
# training beside what other sites' models say
# ------------------------------------------------------------------------------


@dataclass(frozen=True)
class RelationRows(Reply):
    """A site's rows of the relation matrix."""

    rows: Tensor = disclosed(
        "what its model says of every class, on average over its samples with each class that it annotates, [A, K]",
        "features",
        least=0.0,
        most=1.0,
    )
    held: Tensor = disclosed("which of these rows exist, [A]", "flag")

    def refusal(self, request: Relate, facts: SiteFacts) -> str | None:
        wanted = (len(annotated_classes(facts, request.classes)), request.classes)
        if self.rows.shape != wanted or self.held.shape != wanted[:1]:
            return f"the relations have shape {tuple(self.rows.shape)}, asked were {wanted}"
        if self.rows.dtype != torch.float32 or self.held.dtype != torch.bool:
            return "the relations' types are wrong"
        if bool(((self.rows < 0) | (self.rows > 1)).any()):
            return "a relation is no probability from 0 to 1"
        return None


@dataclass(frozen=True)
class Relate(Request[RelationRows]):
    """sigmoid(mean logit / T) over the positives of each annotated class, under a model."""

    reply_type: ClassVar[type[Reply]] = RelationRows

    classes: int
    temperature: float = 2.0
    least_members: int = 1
    """Withhold a row over fewer samples."""
    weights: Weights | None = None
    """None inside a training visit: the model just trained."""

    def answer(self, site: Site) -> RelationRows:
        active = annotated_classes(site.facts, self.classes)
        logits = site_logits(site, site.weights_for(self.weights)).double()
        members = site.given.double()
        rows, _ = relation_matrix(logits, members, self.temperature)
        held = members.sum(0) >= max(self.least_members, site.min_count)
        rows = torch.where(held.unsqueeze(-1), rows, 0.0)
        return RelationRows(rows[active].float(), held[active])


@dataclass(frozen=True)
class TrainByRelations(TrainWithAverage):
    """Train with a mean teacher beside what other sites' models say of each class."""

    reply_type: ClassVar[type[Reply]] = Trained

    relations: Tensor | None = None
    """`[K, K]`, row c from the sites that annotate class c; None: none are asked for."""
    related: Tensor | None = None
    """bool `[K]`: which rows exist."""

    def extras(self, site: Site) -> dict[str, Extra]:
        found = super().extras(site)
        if self.relations is not None and self.related is not None:
            found[RELATIONS] = PerSite(self.relations)
            found[RELATED] = PerSite(self.related.float())
        return found


@dataclass(frozen=True)
class FedIRMState(State):
    """The global model, and what the sites' models say of each class."""

    relations: Tensor = field(default_factory=lambda: torch.zeros(0, 0))
    """M, `[K, K]`: row c is the mean over the sites that annotate class c; zeros where no site has sent one yet."""
    related: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.bool))
    """Which rows exist, `[K]`."""


@methods.register("fedirm")
@dataclass(frozen=True)
class FedIRM(PartlyAnnotated):
    """What a model says of samples that it takes for class c is what models of sites that annotate c say of theirs.

    Rounds on annotated classes alone, then rounds with a mean teacher and relation matrices for the missing ones.
    """

    summary: ClassVar[str] = "A mean teacher and relations between classes, shared by all sites, for missing classes"
    paper: ClassVar[str] = "Liu et al. 2021 (MICCAI); multi-label as in FedMLP's comparison"
    compares_views: ClassVar[bool] = True

    warm_up: Count | None = None
    """Rounds on annotated classes alone; by itself 20, or half of all."""
    ramp: Count = 30
    """omega: round, counted from the first of all, at which the weight of both unsupervised parts is full."""
    weight: AtLeastZero = 1.0
    """lambda: that weight; 15 in the original."""
    mean_teacher: bool = True
    """Agree with a running average of the site's own model."""
    agree_on: Literal["all", "missing"] = "all"
    """Classes on which it agrees with that: all (released), or those that it does not annotate."""
    matching: bool = True
    """Match relations; off is FedAvg with a mean teacher, the original's ablation, and no relations leave a site."""
    threshold: Annotated[float, Range(0.5, 1, below=True)] = 0.7
    """A sample stands for a class only if the model is surer than this of every class, yes or no."""
    most_entropy: AtLeastZero = 2.0
    """h: and only if the entropies of its classes add up to less than this."""
    temperature: Positive = 2.0
    """tau: rows are sigmoid(mean logit / tau)."""
    divergence: Literal["plain", "binary"] = "plain"
    """Compare a row's probabilities as they stand (released), or each as a yes/no distribution."""
    decay: Annotated[float, Range(0, 1, below=True)] = 0.99
    """The teacher becomes decay v + (1 - decay) w after every step."""
    least_members: AtLeastOne = 1
    """A site withholds a row over fewer samples: over one sample it is what the model says of that one."""
    pos_weight: bool = True
    """Weigh the positives of class c by N_k / n_c, as released."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.t_1 > self.rounds:
            raise ConfigError(f"method.warm_up = {self.t_1}: it must be from 0 to rounds = {self.rounds}")

    @property
    def t_1(self) -> int:
        """Rounds of the warm-up."""
        return min(20, self.rounds // 2) if self.warm_up is None else self.warm_up

    def completed(self, facts: FederationFacts) -> FedIRM:
        return replace(self, warm_up=self.t_1)

    def begin(self, federation: Federation, weights: Weights) -> FedIRMState:
        k = len(federation.classes)
        return FedIRMState(weights, torch.zeros(k, k), torch.zeros(k, dtype=torch.bool))

    def stages(self) -> list[Stage]:
        relate = (Relate,) if self.matching else ()
        later = self.rounds - self.t_1
        return [
            Stage("warm up", self.t_1, self.train_on_annotated, (Train, *relate)),
            Stage("relation matching", later, self.train_on_all, (TrainByRelations, *relate)),
        ]

    def train_on_annotated(self, state: FedIRMState, federation: Federation) -> FedIRMState:
        """FedAvg on annotated classes; the last round also brings the first relations."""
        last = federation.round.index == self.t_1 - 1
        recipe = self.recipe(self.labels())
        visit = Train(state.weights, recipe, then=self.relate(federation) if last else ())
        return self.take_in(state, visit, federation)

    def train_on_all(self, state: FedIRMState, federation: Federation) -> FedIRMState:
        """L = L_labels + lambda_t (L_teacher + L_relations) at every site."""
        share = self.share_at(self.t_1 + federation.round.index)
        federation.record(unsupervised_weight=share)
        visit = TrainByRelations(
            state.weights,
            self.recipe(self.with_missing(share), views=2 if self.mean_teacher and share else 1),
            then=self.relate(federation),
            decay=self.decay,
            relations=state.relations if self.matching else None,
            related=state.related if self.matching else None,
        )
        return self.take_in(state, visit, federation)

    def share_at(self, t: int) -> float:
        """lambda_t in round t of all, from 0: lambda exp(-5 (1 - t / ramp)^2)."""
        return rampup(t, 0, self.ramp, self.weight)

    def labels(self) -> PositiveWeighted:
        return PositiveWeighted(weigh=self.pos_weight)

    def with_missing(self, share: float) -> Objective:
        """Beside the labels: squared distances to the mean teacher, summed over classes, and relation matching."""
        objective = 1.0 * self.labels()
        if self.mean_teacher:
            everywhere = self.agree_on == "all"
            objective = objective + share * MissingTo("average", total=True, everywhere=everywhere)
        if self.matching:
            match = SameRelations(self.threshold, self.most_entropy, self.temperature, self.divergence)
            objective = objective + share * match
        return objective

    def relate(self, federation: Federation) -> tuple[Relate, ...]:
        """Asked after training, of the model just trained."""
        k = len(federation.classes)
        return (Relate(k, self.temperature, self.least_members),) if self.matching else ()

    def take_in(self, state: FedIRMState, visit: Train, federation: Federation) -> FedIRMState:
        """FedAvg; rows of the relation matrix are averaged by size over the sites that hold them."""
        replies = ask_to_train(federation, visit, self.choose(state, federation))
        state = replace(state, weights=self.merged(replies, state.weights))
        if not visit.then:
            return state
        rows, held = self.common_relations(replies, federation)
        return replace(
            state,
            # a class of which no reply has a row this time keeps its last one
            relations=torch.where(held.unsqueeze(-1), rows, state.relations),
            related=held | state.related,
        )

    def common_relations(self, replies: Replies[Trained], federation: Federation) -> tuple[Tensor, Tensor]:
        """M_c = sum_{k in S_c} n_k M_c^k / sum n_k, `[K, K]`, and which rows anybody holds."""
        k = len(federation.classes)
        rows, held = np.zeros((len(replies), k, k)), np.zeros((len(replies), k), np.bool_)
        for i, (site, reply) in enumerate(replies.items()):
            [relations] = [part for part in reply.then if isinstance(part, RelationRows)]
            active = annotated_classes(federation.facts[site], k)
            rows[i, active], held[i, active] = relations.rows.double().numpy(), relations.held.numpy()
        sizes = np.array([float(reply.samples) for reply in replies.values()])
        mean, found = mean_of_holders(rows, held, sizes)
        return torch.from_numpy(mean).float(), torch.from_numpy(found)

    def tiny(self) -> FedIRM:
        return replace(self, rounds=4, warm_up=2, ramp=3)
