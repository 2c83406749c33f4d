"""FedMLP: Sun et al., FedMLP: Federated Multi-Label Medical Image Classification under Task Heterogeneity,
MICCAI 2024."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from fedsift.core.errors import ConfigError
from fedsift.core.numbers import floor_count
from fedsift.core.ranges import AtLeastOne, AtLeastZero, Count, Rate, Share
from fedsift.methods._base import Averaging, for_missing_classes, methods, record_loss
from fedsift.protocol.federation import Federation, FederationFacts, Incompatibility, Replies
from fedsift.protocol.messages import Reply, Request, SiteFacts, Weights, disclosed
from fedsift.protocol.method import Stage, State
from fedsift.protocol.site import Site
from fedsift.training.objective import (
    BinaryCrossEntropy,
    LabelsAndTeacher,
    MissingTo,
    Objective,
    PartialClass,
    annotated_classes,
    as_objective,
    missing_classes,
)
from fedsift.training.predict import features_of
from fedsift.training.recipe import Augment, Recipe
from fedsift.training.requests import Train, Trained

# FedMLP's pseudo tags: how hard a missing class is, and which samples are tagged each round (eq
# ------------------------------------------------------------------------------

UNTAGGED = -1


def local_difficulty(probabilities: ArrayLike, low: float = 0.3, high: float = 0.7) -> NDArray[np.float64]:
    """Share of a site's samples with p_c < low or p_c > high, `[n, K] -> [K]`; large for an easy class."""
    p = np.asarray(probabilities, dtype=np.float64)
    return np.asarray(((p < low) | (p > high)).mean(axis=0)) if len(p) else np.zeros(p.shape[1])


def global_difficulty(
    local: ArrayLike, sizes: ArrayLike, active: ArrayLike, over: Literal["missing", "active"] = "missing"
) -> NDArray[np.float64]:
    """Size-weighted mean over the sites that miss a class, or that annotate it (eq. 10): `[S, K] -> [K]`.

    active: true where a site annotates a class. A class with no such site gets 1.
    """
    if over not in ("missing", "active"):
        raise ConfigError(f"difficulty_over = '{over}': choose 'missing' or 'active'")
    values, annotated = np.asarray(local, dtype=np.float64), np.asarray(active, dtype=np.bool_)
    weights = np.asarray(sizes, dtype=np.float64)[:, None] * (annotated if over == "active" else ~annotated)
    total = weights.sum(axis=0)
    found = total > 0
    return np.where(found, (weights * values).sum(axis=0) / np.where(found, total, 1.0), 1.0)


@dataclass(frozen=True)
class TaggingRound:
    """One round of tagging for one missing class."""

    score: NDArray[np.float64]
    """z = cos(P0, f) - cos(P1, f), `[n]`; NaN for tagged samples, and for all without both prototypes."""
    leaning_negative: int
    """Untagged samples with z >= 0."""
    leaning_positive: int
    """Untagged samples with z < 0."""
    negative: NDArray[np.int64]
    """Newly tagged 0, by falling z."""
    positive: NDArray[np.int64]
    """Newly tagged 1, by rising z."""
    tags: NDArray[np.int64]
    """All tags after the round, `[n]`: 0, 1, or -1 for untagged."""


def tag(
    features: ArrayLike,
    negative: ArrayLike | None,
    positive: ArrayLike | None,
    tags: ArrayLike,
    difficulty: float,
    t0: float = 0.005,
    t1: float = 0.01,
    min_select: int = 0,
) -> TaggingRound:
    """Tag the surest samples of one missing class for good (eq. 7-9, tau = d_c T).

    features `[n, d]`; negative, positive: the class's prototypes `[d]`, None if there is none (then nothing
    is tagged); tags `[n]`: -1 untagged, tagged samples are not looked at again. Of the samples that lean to
    0 (z >= 0) the floor(d t0 ...) surest are tagged 0, of the others the floor(d t1 ...) surest 1; at least
    `min_select` while any are left, because the floor alone stalls. Each side is tagged whether or not the
    other finds anything.
    """
    current = np.asarray(tags, dtype=np.int64)
    score = np.full(len(current), np.nan)
    if negative is not None and positive is not None:
        open_ = current == UNTAGGED
        score[open_] = (cosine(negative, features) - cosine(positive, features))[open_]
    to_zero, to_one = np.flatnonzero(score >= 0), np.flatnonzero(score < 0)
    n0 = min(len(to_zero), max(floor_count(difficulty * t0 * len(to_zero)), min_select))
    n1 = min(len(to_one), max(floor_count(difficulty * t1 * len(to_one)), min_select))
    pick0 = to_zero[np.argsort(-score[to_zero], kind="stable")][:n0].astype(np.int64)
    pick1 = to_one[np.argsort(score[to_one], kind="stable")][:n1].astype(np.int64)
    updated = current.copy()
    updated[pick0], updated[pick1] = 0, 1
    return TaggingRound(score, len(to_zero), len(to_one), pick0, pick1, updated)


# What a site does for FedMLP beside training: tagging missing labels, measuring its own model
# ------------------------------------------------------------------------------

TAGS = "fedmlp: tags"
"""int8 `[n, K]`: 0 or 1 for good, -1 for an entry of a missing class that is not tagged yet."""
TAGGED_IN = "fedmlp: tagged in round"
"""int32 `[n, K]`: the round of each tag, from 1; 0 without one."""
NAME = "fedmlp"


# Missing-label detection, section 2.3 ------------------------------------------------------------------


@dataclass(frozen=True)
class TagCounts(Reply):
    """How far tagging is; which entries were tagged, and how, stays at the site."""

    new: int = disclosed("how many labels of missing classes it tagged in this visit", "count", least=0)
    left: int = disclosed("how many labels of missing classes are still untagged", "count", least=0)

    def refusal(self, request: TagMissing, facts: SiteFacts) -> str | None:
        most = facts.samples * len(missing_classes(facts, len(request.difficulty)))
        for name, value in (("new", self.new), ("left", self.left)):
            if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
                return f"{name} = {value!r} is no number of labels from 0 to {most}"
        if self.new + self.left > most:
            return f"{self.new} new tags and {self.left} left are more than {most} in all"
        return None


@dataclass(frozen=True)
class TagMissing(Request[TagCounts]):
    """Tag the surest entries of every missing class for good, by nearness to the prototypes (eqs. 7-9)."""

    reply_type: ClassVar[type[Reply]] = TagCounts

    weights: Weights | None
    """theta_G; None inside a training visit, where it is the model received."""
    prototypes: NDArray[np.float64]
    """P_0^c and P_1^c, `[K, 2, F]`."""
    held: NDArray[np.bool_]
    """Which of them exist, `[K, 2]`."""
    difficulty: NDArray[np.float64]
    """d_c^G, `[K]`; ones without the self-adaptive threshold."""
    t0: float = 0.005
    t1: float = 0.01
    min_select: int = 0
    augment: Augment | None = None
    """Look at augmented images, as released code does; None looks at the images themselves."""

    def answer(self, site: Site) -> TagCounts:
        n, missing = len(site.samples), missing_classes(site.facts, site.n_classes)
        if not missing:
            return TagCounts(0, 0)
        tags, when, suspicion = _tag_pages(site, n)
        network = site.network(site.weights_for(self.weights))
        features, _ = features_of(network, site.samples, augment=self.augment, generator=site.random("tagging"))
        new = 0
        for c in missing:
            negative, positive = (self.prototypes[c, side] if self.held[c, side] else None for side in (0, 1))
            found = tag(
                features.numpy(), negative, positive, tags[:, c], float(self.difficulty[c]),
                self.t0, self.t1, self.min_select,
            )  # fmt: skip
            fresh = np.concatenate([found.negative, found.positive])
            tags[:, c] = found.tags
            when[fresh, c] = site.moment.round + 1
            suspicion[:, c] = np.where(np.isnan(found.score), suspicion[:, c], -found.score)
            new += len(fresh)
        _keep_tags(site, tags, when, suspicion, missing)
        return TagCounts(site.suppress_small(new), site.suppress_small(int((tags[:, missing] == UNTAGGED).sum())))


def _tag_pages(site: Site, n: int) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.float32]]:
    """Copies of the notebook's pages, `[n, K]` each; empty ones at first."""
    shape = (n, site.n_classes)
    if TAGS not in site.notebook:
        return (
            np.full(shape, UNTAGGED, np.int64),
            np.zeros(shape, np.int32),
            np.full(shape, np.nan, np.float32),
        )
    kept = site.evidence.suspicion
    assert kept is not None
    tags, when, suspicion = site.notebook[TAGS].numpy(), site.notebook[TAGGED_IN].numpy(), kept.numpy()
    return tags.astype(np.int64), when.copy(), suspicion.copy()


def _keep_tags(
    site: Site,
    tags: NDArray[np.int64],
    when: NDArray[np.int32],
    suspicion: NDArray[np.float32],
    missing: list[int],
) -> None:
    """Write the pages and the evidence: labels with every tag in its place, and which are known.

    suspicion: -Z, high for a 0 that is probably a 1; frozen once tagged, NaN if never looked at. flagged: zeros of
    missing classes that were tagged 1.
    """
    site.notebook[TAGS] = torch.from_numpy(tags.astype(np.int8))
    site.notebook[TAGGED_IN] = torch.from_numpy(when)
    known = np.ones(tags.shape, np.bool_)
    known[:, missing] = tags[:, missing] != UNTAGGED
    labels = site.given.clone()
    labels[:, missing] = torch.from_numpy(tags[:, missing] == 1).to(labels.dtype)
    site.keep_evidence(
        NAME,
        labels=labels,
        known=torch.from_numpy(known),
        flagged=torch.from_numpy(tags == 1),
        suspicion=torch.from_numpy(suspicion),
    )


# What a site reports of its model, Alg. 1 "Local Calculation" --------------------------------------------


def measured_classes(facts: SiteFacts, n_classes: int, over: str) -> list[int]:
    """Classes whose difficulty a site measures."""
    return (missing_classes if over == "missing" else annotated_classes)(facts, n_classes)


@dataclass(frozen=True)
class ClassPrototypes(Reply):
    """A site's prototypes and its view of the classes' difficulty."""

    prototypes: Tensor = disclosed(
        "mean feature of samples without and with each annotated class, [A, 2, F]", "features"
    )
    held: Tensor = disclosed("which of these means exist, [A, 2]", "flag")
    difficulty: Tensor = disclosed(
        "share of confident predictions for each class measured, [M]", "share", least=0.0, most=1.0
    )

    def refusal(self, request: MakePrototypes, facts: SiteFacts) -> str | None:
        active = len(annotated_classes(facts, request.classes))
        measured = len(measured_classes(facts, request.classes, request.difficulty_over))
        wanted = (active, 2, request.width)
        if self.prototypes.shape != wanted or self.held.shape != wanted[:2]:
            return f"the prototypes have shape {tuple(self.prototypes.shape)}, asked were {wanted}"
        if self.prototypes.dtype != torch.float32 or self.held.dtype != torch.bool:
            return "the prototypes' types are wrong"
        if self.difficulty.shape != (measured,) or self.difficulty.dtype != torch.float64:
            return f"the difficulties have shape {tuple(self.difficulty.shape)}, asked were ({measured},)"
        if bool(((self.difficulty < 0) | (self.difficulty > 1)).any()):
            return "a difficulty is no share from 0 to 1"
        return None


@dataclass(frozen=True)
class MakePrototypes(Request[ClassPrototypes]):
    """Prototypes of the annotated classes (eq. 5) and difficulty of the others (eq. 10) under a model."""

    reply_type: ClassVar[type[Reply]] = ClassPrototypes

    weights: Weights | None
    """theta_k; None inside a training visit, where it is the model just trained."""
    classes: int
    width: int
    """F: length of a feature vector."""
    low: float = 0.3
    high: float = 0.7
    difficulty_over: Literal["missing", "active"] = "missing"
    least_members: int = 1
    """Withhold a mean over fewer samples."""
    augment: Augment | None = None

    def answer(self, site: Site) -> ClassPrototypes:
        active = annotated_classes(site.facts, self.classes)
        network = site.network(site.weights_for(self.weights))
        features, logits = features_of(network, site.samples, augment=self.augment, generator=site.random("portrait"))
        given = site.given.numpy()[:, active]
        found = local_prototypes(features.numpy(), given, range(len(active)))
        members = np.stack([(given == 0).sum(0), (given == 1).sum(0)], axis=1)
        held = found.held & (members >= max(self.least_members, site.min_count))
        sure = local_difficulty(torch.sigmoid(logits.double()).numpy(), self.low, self.high)
        return ClassPrototypes(
            torch.from_numpy(np.where(held[..., None], found.vectors, 0.0)).to(torch.float32),
            torch.from_numpy(held),
            torch.from_numpy(sure[measured_classes(site.facts, self.classes, self.difficulty_over)]),
        )


# What FedMLP's server makes of a federation, its replies and its network
# ------------------------------------------------------------------------------


def warn_of_gaps(federation: Federation) -> None:
    """Say which classes no site annotates."""
    seen = {c for facts in federation.facts.values() for c in annotated_classes(facts, len(federation.classes))}
    for c, name in enumerate(federation.classes):
        if c not in seen:
            federation.warn(f"no site annotates '{name}': nothing can be learnt about it")


def parts_of(replies: Replies[Trained]) -> list[tuple[str, Reply]]:
    """Everything that was asked beside training, with its site."""
    return [(site, part) for site, reply in replies.items() for part in reply.then]


def feature_width(weights: Weights) -> int:
    """F: inputs of the network's head."""
    head = weights.get("head.weight")
    if head is None or head.dim() != 2:
        raise ConfigError(
            "method 'fedmlp' compares features: its network needs a linear layer called 'head' on top of "
            "features(x); use a registered model, or name the last layer of your own so"
        )
    return int(head.shape[1])


def record_tags(replies: Replies[Trained], federation: Federation) -> None:
    """How far tagging is; a stall is warned of."""
    counts = {site: part for site, part in parts_of(replies) if isinstance(part, TagCounts)}
    new = sum(count.new for count in counts.values())
    left = sum(count.left for count in counts.values())
    federation.record(tags_new=new, tags_left=left)
    federation.record_sites("tags_left", {site: count.left for site, count in counts.items()})
    if left and not new:
        federation.warn(
            "no site tagged a label in some round though some are left: the floor in tau stalls; "
            "method.min_select = 1 goes on"
        )


def average_prototypes(
    portraits: Mapping[str, ClassPrototypes],
    sizes: Sequence[int],
    federation: Federation,
    weighting: Literal["size", "equal"],
) -> Prototypes:
    """P_n^c over the sites that annotate c and hold that side, eq. 6."""
    k = len(federation.classes)
    local = []
    for site, portrait in portraits.items():
        active = annotated_classes(federation.facts[site], k)
        vectors = np.zeros((k, *portrait.prototypes.shape[1:]))
        held = np.zeros((k, 2), np.bool_)
        vectors[active], held[active] = portrait.prototypes.double().numpy(), portrait.held.numpy()
        local.append(Prototypes(vectors, held))
    return global_prototypes(local, sizes, weighting)


def average_difficulty(
    portraits: Mapping[str, ClassPrototypes],
    sizes: Sequence[int],
    federation: Federation,
    over: Literal["missing", "active"],
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """d_c^G by size, eq. 10, `[K]`; and which classes anybody measured."""
    k = len(federation.classes)
    local, active = np.zeros((len(portraits), k)), np.zeros((len(portraits), k), np.bool_)
    measured = np.zeros(k, np.bool_)
    for row, (site, portrait) in enumerate(portraits.items()):
        facts = federation.facts[site]
        classes = measured_classes(facts, k, over)
        local[row, classes] = portrait.difficulty.numpy()
        active[row, annotated_classes(facts, k)] = True
        measured[classes] = True
    return global_difficulty(local, sizes, active, over), measured


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

    local: Recipe = field(default_factory=lambda: Recipe(optimiser="adam", lr=3e-5, weight_decay=5e-4), kw_only=True)

    def __post_init__(self) -> None:
        if not 0 <= self.t_1 <= self.rounds:
            raise ConfigError(f"method.warm_up = {self.t_1}: it must be from 0 to rounds = {self.rounds}")

    @property
    def t_1(self) -> int:
        """Rounds of the warm-up."""
        return min(50, self.rounds // 2) if self.warm_up is None else self.warm_up

    def completed(self, facts: FederationFacts) -> FedMLP:
        return replace(self, warm_up=self.t_1)

    def incompatibilities(self, facts: FederationFacts) -> Iterator[Incompatibility]:
        yield from super().incompatibilities(facts)
        yield from for_missing_classes(facts)

    def begin(self, federation: Federation, weights: Weights) -> FedMLPState:
        k, width = len(federation.classes), feature_width(weights)
        return FedMLPState(weights, np.zeros((k, 2, width)), np.zeros((k, 2), np.bool_), np.ones(k))

    def stages(self) -> list[Stage]:
        tag, portray = ((TagMissing,), (MakePrototypes,)) if self.mld else ((), ())
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

    def portray(self, state: FedMLPState) -> MakePrototypes:
        """Eq. 5 and the first half of eq. 10."""
        k, _, width = state.prototypes.shape
        return MakePrototypes(
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
        portraits = {site: part for site, part in parts_of(replies) if isinstance(part, ClassPrototypes)}
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


# Prototypes
# ------------------------------------------------------------------------------


def cosine(vector: ArrayLike, rows: ArrayLike) -> NDArray[np.float64]:
    """Cosine between one vector and every row, `[d], [n, d] -> [n]`; 0 with a zero vector."""
    v, m = np.asarray(vector, dtype=np.float64), np.asarray(rows, dtype=np.float64)
    norms = np.linalg.norm(m, axis=1) * np.linalg.norm(v)
    return np.where(norms > 0, (m @ v) / np.where(norms > 0, norms, 1.0), 0.0)


@dataclass(frozen=True)
class Prototypes:
    """Mean features by class and side; finite everywhere, so that they can be sent."""

    vectors: NDArray[np.float64]
    """`[K, 2, d]`: side 0 negatives, side 1 positives; zeros where none is held."""
    held: NDArray[np.bool_]
    """`[K, 2]`: whether there is one."""

    def get(self, c: int, side: int) -> NDArray[np.float64] | None:
        return np.asarray(self.vectors[c, side]) if self.held[c, side] else None


def local_prototypes(features: ArrayLike, labels: ArrayLike, active: Sequence[int]) -> Prototypes:
    """Mean feature of each annotated class's negatives and positives (eq. 5): `[n, d], [n, K]`."""
    rows, given = np.asarray(features, dtype=np.float64), np.asarray(labels)
    vectors = np.zeros((given.shape[1], 2, rows.shape[1]))
    held = np.zeros((given.shape[1], 2), dtype=np.bool_)
    for c in active:
        for side in (0, 1):
            members = rows[(given[:, c] > 0.5) == bool(side)]
            if len(members):
                vectors[c, side], held[c, side] = members.mean(axis=0), True
    return Prototypes(vectors, held)


def global_prototypes(
    local: Sequence[Prototypes], sizes: ArrayLike, weighting: Literal["equal", "size"] = "size"
) -> Prototypes:
    """Average over the sites that hold a side; not held if nobody does (eq. 6).

    weighting: "equal" as printed, "size" as released.
    """
    if weighting not in ("equal", "size"):
        raise ConfigError(f"prototype weighting = '{weighting}': choose 'equal' or 'size'")
    held = np.stack([one.held for one in local])
    vectors = np.stack([one.vectors for one in local])
    weights = np.ones(len(local)) if weighting == "equal" else np.asarray(sizes, dtype=np.float64)
    return Prototypes(*mean_of_holders(vectors, held, weights))


def mean_of_holders(
    vectors: NDArray[np.float64], held: NDArray[np.bool_], weights: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Weighted mean of each vector over the sites that hold it, `[S, *, d], [S, *], [S] -> [*, d]`; and which anybody
    holds, `[*]`: the others are zeros."""
    shares = weights.reshape(-1, *[1] * (held.ndim - 1)) * held
    total = shares.sum(axis=0)
    found = total > 0
    sums = (shares[..., None] * vectors).sum(axis=0)
    return np.where(found[..., None], sums / np.where(found, total, 1.0)[..., None], 0.0), found
