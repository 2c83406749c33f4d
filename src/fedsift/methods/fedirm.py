"""FedIRM: Liu et al., Federated Semi-supervised Medical Image Classification via Inter-client Relation Matching, MICCAI
2021, for sites that annotate some classes only, as FedMLP's comparison (Sun et al. 2024) adapted it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from fedsift.contract import ConfigError, Federation, FederationFacts, Replies, Stage, State, Weights
from fedsift.contract.ranges import AtLeastOne, AtLeastZero, Count, Positive, Range
from fedsift.local.objective import Objective
from fedsift.local.partial import MissingTo, PositiveWeighted, SameRelations, annotated_classes
from fedsift.local.requests import Train, Trained
from fedsift.methods.base import ask_to_train, methods
from fedsift.methods.fedirm_site import Relate, Relations, TrainByRelations
from fedsift.methods.partly_annotated import PartlyAnnotated
from fedsift.signals.prototypes import mean_of_holders
from fedsift.signals.rampup import rampup


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

    summary: ClassVar[str] = (
        "A mean teacher and relations between classes, shared by all sites, for missing classes"
    )
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
            [told] = [part for part in reply.then if isinstance(part, Relations)]
            active = annotated_classes(federation.facts[site], k)
            rows[i, active], held[i, active] = told.rows.double().numpy(), told.held.numpy()
        sizes = np.array([float(reply.samples) for reply in replies.values()])
        mean, found = mean_of_holders(rows, held, sizes)
        return torch.from_numpy(mean).float(), torch.from_numpy(found)

    def tiny(self) -> FedIRM:
        return replace(self, rounds=4, warm_up=2, ramp=3)
