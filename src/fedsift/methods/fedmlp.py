"""FedMLP: Sun et al., FedMLP: Federated Multi-Label Medical Image Classification under Task Heterogeneity,
MICCAI 2024."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fedsift.contract import (
    ConfigError,
    Federation,
    FederationFacts,
    Misfit,
    Replies,
    Stage,
    State,
    Weights,
)
from fedsift.contract.ranges import AtLeastOne, AtLeastZero, Count, Rate, Share
from fedsift.local.objective import BinaryCrossEntropy, Objective, as_objective
from fedsift.local.partial import LabelsAndTeacher, MissingTo, PartialClass
from fedsift.local.recipe import Augment, Recipe
from fedsift.local.requests import Train, Trained
from fedsift.methods.base import Averaging, for_missing_classes, methods, record_loss
from fedsift.methods.fedmlp_parts import (
    average_difficulty,
    average_prototypes,
    feature_width,
    parts_of,
    record_tags,
    warn_of_gaps,
)
from fedsift.methods.fedmlp_site import (
    Portrait,
    Portray,
    TagMissing,
)


@dataclass(frozen=True)
class FedMLPState(State):
    """The global model, and what the sites' models know about the classes."""

    prototypes: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 2, 0)))
    """P_0^c and P_1^c, `[K, 2, F]`; zeros where no site has sent one yet."""
    held: NDArray[np.bool_] = field(default_factory=lambda: np.zeros((0, 2), np.bool_))
    """Which of them exist, `[K, 2]`."""
    difficulty: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    """d_c^G, `[K]`: high for a class that is easy to learn."""


@methods.register("fedmlp")
@dataclass(frozen=True)
class FedMLP(Averaging):
    """Warm up on the annotated classes alone, then let every site tag its missing labels by prototypes.

    The defaults are the method as printed; where paper and released code differ, the parameter says so.
    """

    summary: ClassVar[str] = "Every site annotates some classes only; missing labels are tagged by prototypes"
    paper: ClassVar[str] = "Sun et al. 2024 (MICCAI)"
    tasks: ClassVar[tuple[str, ...]] = ("multilabel",)

    rounds: AtLeastOne = 500
    """T: rounds in all, warm-up included."""
    warm_up: Count | None = None
    """t_1: rounds of stage 1; by itself 50, or half of all."""
    fraction: Share = 1.0
    """Share of the sites that train in a round; the paper has all of them."""
    views: AtLeastOne = 2
    """Independently augmented copies of every image in stage 1 (Alg. 1 line 6); stage 2 uses one."""

    mld: bool = True
    """Missing-label detection, eqs. 7-9 (Table 3)."""
    wpc: bool = True
    """L_WPC, eqs. 3-4 (Table 3); off takes the zeros of missing classes at face value (eq. 1)."""
    cr: bool = True
    """Consistency with the global model where no label is known, section 2.4 (Table 3)."""
    st: bool = True
    """Self-adaptive thresholds tau = d_c T, eq. 10 (Table 3); off sets d_c = 1, as the released code does."""

    tau: AtLeastZero = 1.0
    """Strength of the multi-label logit adjustment inside L_WPC, eq. 3; 0 turns it off (released code)."""
    prior_over: Literal["samples", "known"] = "samples"
    """pi_c of a missing class: tagged positives among all samples (released code), or among the tagged."""
    wpc_norm: Literal["known", "classes"] = "known"
    """Divide L_WPC by the known entries, or by all classes (the paper's 1 / C)."""
    cr_norm: Literal["joint", "separate"] = "joint"
    """Average labels and consistency over all entries together (released code), or each over its own."""
    stage1_consistency: bool = False
    """Pull missing classes to the global model in stage 1 too, as the released code does."""

    t0: Rate = 0.005
    """T_0: share of the samples leaning to "absent" that is tagged 0 each round, before d_c."""
    t1: Rate = 0.01
    """T_1: share of the samples leaning to "present" that is tagged 1 each round, before d_c."""
    min_select: Count = 0
    """Tag at least so many of each side while any are left; the paper's floor alone stalls, 1 mends it."""
    low: Rate = 0.3
    """L: a prediction below it counts as sure, eq. 10."""
    high: Rate = 0.7
    """R: a prediction above it counts as sure, eq. 10."""
    difficulty_over: Literal["missing", "active"] = "missing"
    """d_c over the sites that miss class c (text, released code), or that annotate it (eq. 10 as printed)."""
    prototype_weights: Literal["size", "equal"] = "size"
    """Average prototypes by size (released code) or alike (eq. 6); the same for equal sites."""
    least_members: AtLeastOne = 1
    """A site withholds a prototype over fewer samples: over one sample it is that sample's features."""
    statistics_on: Literal["eval", "train"] = "eval"
    """Measure on the images as they are, or augmented as in training (released code)."""

    local: Recipe = field(
        default_factory=lambda: Recipe(optimiser="adam", lr=3e-5, weight_decay=5e-4), kw_only=True
    )

    def __post_init__(self) -> None:
        if not 0 <= self.t_1 <= self.rounds:
            raise ConfigError(f"method.warm_up = {self.t_1}: it must be from 0 to rounds = {self.rounds}")

    @property
    def t_1(self) -> int:
        """Rounds of the warm-up."""
        return min(50, self.rounds // 2) if self.warm_up is None else self.warm_up

    def completed(self, facts: FederationFacts) -> FedMLP:
        return replace(self, warm_up=self.t_1)

    def misfits(self, facts: FederationFacts) -> Iterator[Misfit]:
        yield from super().misfits(facts)
        yield from for_missing_classes(facts)

    def begin(self, federation: Federation, weights: Weights) -> FedMLPState:
        k, width = len(federation.classes), feature_width(weights)
        return FedMLPState(weights, np.zeros((k, 2, width)), np.zeros((k, 2), np.bool_), np.ones(k))

    def stages(self) -> list[Stage]:
        tag, portray = ((TagMissing,), (Portray,)) if self.mld else ((), ())
        later = self.rounds - self.t_1
        return [
            Stage("warm up", self.t_1, self.train_on_annotated, (Train, *portray)),
            Stage("missing-label detection", later, self.train_with_tags, (Train, *tag, *portray)),
        ]

    # Stage 1, section 2.2 ------------------------------------------------------------------------------

    def train_on_annotated(self, state: FedMLPState, federation: Federation) -> FedMLPState:
        """L_WPC on two views of the annotated classes; the last round also brings the first prototypes."""
        last = federation.round.index == self.t_1 - 1
        visit = Train(
            state.weights,
            self.recipe(self.first_loss(), views=self.views),
            then=(self.portray(state),) if last and self.mld else (),
        )
        return self.take_in(state, federation.ask(visit, federation.choose(self.fraction)), federation)

    def partial_loss(self) -> Objective:
        """L_WPC, eqs. 3-4; eq. 1 when it is switched off."""
        if not self.wpc:
            return as_objective(BinaryCrossEntropy())
        return as_objective(PartialClass(self.tau, self.prior_over, self.wpc_norm))

    def first_loss(self) -> Objective:
        return self.partial_loss() + MissingTo() if self.stage1_consistency else self.partial_loss()

    # Stage 2, sections 2.3 and 2.4 ---------------------------------------------------------------------

    def train_with_tags(self, state: FedMLPState, federation: Federation) -> FedMLPState:
        """One visit: tag with the received model, train on labels, tags and teacher, measure the result."""
        visit = Train(
            state.weights,
            self.recipe(self.second_loss()),
            before=(self.tag_missing(state),) if self.mld else (),
            then=(self.portray(state),) if self.mld else (),
        )
        replies = federation.ask(visit, federation.choose(self.fraction))
        if self.mld:
            record_tags(replies, federation)
        return self.take_in(state, replies, federation)

    def second_loss(self) -> Objective:
        """Eq. 4 on labels and tags, squared error to the global model elsewhere (section 2.4)."""
        if not self.cr:
            return self.partial_loss()
        return as_objective(LabelsAndTeacher(self.tau if self.wpc else 0.0, self.prior_over, self.cr_norm))

    def tag_missing(self, state: FedMLPState) -> TagMissing:
        """Eqs. 7-9 with tau_0 = d_c T_0 and tau_1 = d_c T_1."""
        difficulty = state.difficulty if self.st else np.ones_like(state.difficulty)
        return TagMissing(
            weights=None,
            prototypes=state.prototypes,
            held=state.held,
            difficulty=difficulty,
            t0=self.t0,
            t1=self.t1,
            min_select=self.min_select,
            augment=self.seen_through(),
        )

    def portray(self, state: FedMLPState) -> Portray:
        """Eq. 5 and the first half of eq. 10."""
        k, _, width = state.prototypes.shape
        return Portray(
            weights=None,
            classes=k,
            width=width,
            low=self.low,
            high=self.high,
            difficulty_over=self.difficulty_over,
            least_members=self.least_members,
            augment=self.seen_through(),
        )

    def seen_through(self) -> Augment | None:
        return self.local.augment if self.statistics_on == "train" else None

    # Server, Alg. 1 "Global Aggregation" ---------------------------------------------------------------

    def take_in(self, state: FedMLPState, replies: Replies[Trained], federation: Federation) -> FedMLPState:
        """FedAvg; with portraits also eqs. 6 and 10."""
        record_loss(federation, replies)
        if federation.round.count == 1:
            warn_of_gaps(federation)
        state = replace(state, weights=self.merged(replies, state.weights))
        portraits = {site: part for site, part in parts_of(replies) if isinstance(part, Portrait)}
        if not portraits:
            return state
        sizes = [replies[site].samples for site in portraits]
        prototypes = average_prototypes(portraits, sizes, federation, self.prototype_weights)
        average, measured = average_difficulty(portraits, sizes, federation, self.difficulty_over)
        difficulty = np.where(measured, average, state.difficulty)
        federation.record(difficulty=difficulty.tolist())
        return replace(
            state,
            # a side that no reply holds this time keeps its last prototype, a class that none measured its difficulty
            prototypes=np.where(prototypes.held[..., None], prototypes.vectors, state.prototypes),
            held=prototypes.held | state.held,
            difficulty=difficulty,
        )

    def tiny(self) -> FedMLP:
        return replace(self, rounds=4, warm_up=2, min_select=max(1, self.min_select))
