"""FedNoRo: Wu et al., FedNoRo: Towards Noise-Robust Federated Learning by Addressing Class Imbalance and Label Noise
Heterogeneity, IJCAI 2023; and its form for sites that annotate some classes only, as FedMLP's comparison (Sun et al.
2024) adapted it: the second stage, with every site taken for noisy."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsift.core.errors import ConfigError
from fedsift.core.ranges import AtLeastOne, AtLeastZero, Count, Positive, Rate
from fedsift.detection.group_test import tested_split
from fedsift.detection.indicators import normalise
from fedsift.detection.mixtures import split_by_vote
from fedsift.formulas.aggregation import Distance, check_alike, pair_distances, shares_of, weighted_average
from fedsift.methods._base import (
    Averaging,
    EstimateBlindShare,
    beside_clean_sites,
    methods,
    mixture_incompatibilities,
    tested_findings,
    tested_for_own_labels,
    train_round,
    without_reference,
)
from fedsift.methods._partial_annotation import PartlyAnnotated
from fedsift.protocol.federation import Federation, FederationFacts, Incompatibility, Replies
from fedsift.protocol.findings import Findings
from fedsift.protocol.messages import Weights
from fedsift.protocol.method import Asks, Stage, State
from fedsift.training.objective import CrossEntropy, Distillation, MissingTo, Objective, PartialClass, as_objective
from fedsift.training.recipe import Recipe
from fedsift.training.requests import Indicate, Indicators, Train, Trained


@dataclass(frozen=True)
class DistanceAware:
    """The aggregated model with the figures that led to it, all in the order of the models."""

    weights: Weights
    shares: Tensor
    """Float64 `[C]`, sum 1: proportional to N_i e^(-D_i)."""
    distance: Tensor
    """d, float64 `[C]`: distance of a noisy model to its nearest clean one, 0 for clean ones."""
    scaled: Tensor
    """D = d / max d, float64 `[C]`."""


def distance_aware(
    models: Sequence[Weights],
    sizes: Sequence[float] | Tensor,
    clean: Collection[int],
    *,
    distance: Distance = "layer_sum",
    include_buffers: bool = True,
    buffers: Collection[str] = (),
) -> DistanceAware:
    """Average with shares proportional to N_i e^(-D_i), D_i = d_i / max d (FedNoRo eq. 6-7).

    d_i is the distance of noisy model i to the nearest clean one, 0 for a clean one.
    clean: positions in `models`.
    distance and include_buffers: "l2" without buffers is the paper, "layer_sum" with floating buffers
    (running statistics) the release. `buffers` names the tensors that are not parameters; integer ones
    never count. Without a clean site, without a noisy one, or with max d = 0 this is the plain average.
    """
    check_alike(models)
    plain = shares_of(sizes)
    nearest = torch.zeros(len(models), dtype=torch.float64)
    noisy = [i for i in range(len(models)) if i not in clean]
    trusted = sorted(clean)
    if noisy and trusted:
        names = [
            name
            for name, tensor in models[0].items()
            if tensor.is_floating_point() and (include_buffers or name not in buffers)
        ]
        pairs = pair_distances([models[i] for i in noisy], [models[j] for j in trusted], names, distance)
        nearest[noisy] = pairs.min(dim=1).values
    largest = nearest.max()
    scaled = nearest / largest if largest > 0 else torch.zeros_like(nearest)
    shares = plain * torch.exp(-scaled)
    shares = shares / shares.sum()
    return DistanceAware(weighted_average(models, shares), shares, nearest, scaled)


# The weight that grows from almost nothing to its full value over a span of rounds
# ------------------------------------------------------------------------------


def rampup(t: float, begin: float, end: float, maximum: float = 1.0) -> float:
    """maximum * exp(-5 (1 - phi)^2), phi the share of the way from begin to end (FedNoRo section 4.2).

    It starts at maximum * e^-5, not at 0. With begin = end it is a step from there to the maximum.
    """
    phi = float(t >= begin) if end <= begin else (min(max(t, begin), end) - begin) / (end - begin)
    return maximum * math.exp(-5.0 * (1.0 - phi) ** 2)


# FedNoRo's two pieces that other methods build on: finding the noisy sites, and trusting them less
# ------------------------------------------------------------------------------

Table = NDArray[np.float64]


@dataclass(frozen=True)
class FedNoRoState(State):
    """The global model, and what stage 1 found out about the sites."""

    noisy: tuple[str, ...] = ()
    """S_n: sites of the mixture's noisy component, and those that gave no indicator."""
    buffers: tuple[str, ...] = ()
    """Names in the model that are running statistics, not parameters."""


@dataclass(frozen=True)
class FindsNoisySites(Averaging):
    """A method that warms up, finds the noisy sites once by their per-class losses, and weighs them by distance."""

    usual_warm_up: ClassVar[int] = 10
    """Rounds of the warm-up where nobody decided, unless that is more than half of all."""

    rounds: AtLeastOne = 100
    """Rounds in all, warm-up included."""
    warm_up: Count | None = None
    """T_1: rounds of FedAvg with logit adjustment before the noisy sites are sought; by itself 10, or half of all."""
    tau: AtLeastZero = 1.0
    """Strength of the logit adjustment in both stages; 0 turns LA off (Tables 3 and 4)."""

    indicator: Literal["loss", "lid", "confidence"] = "loss"
    """What is measured at the sites (Table 3)."""
    per_class: bool = True
    """One indicator for each class, else one mean over all samples (Table 3)."""
    min_max: bool = True
    """Scale each class to 0..1 over the sites, eq. 3 (Table 3)."""
    statistics_on: Literal["eval", "train"] = "eval"
    """Measure on the images as they are, or augmented as in training (the released code)."""
    detection: Literal["paper", "tested"] | None = None
    """"paper": a two-component mixture, which finds noisy sites in any federation. "tested": first asks whether
    there are two groups at all (`detection.group_test`), as it does by itself for own labels."""
    false_alarm: Rate = 0.05
    """Largest chance that "tested" names any site of a clean federation."""
    votes: AtLeastOne = 9
    """Mixture fits with seeds 0..votes-1; the most frequent set of noisy sites wins. The paper prints one fit."""
    covariance: Literal["full", "tied", "diag", "spherical"] = "full"
    """Covariance of the mixture."""
    noisy_by: Literal["sum", "norm"] = "sum"
    """The noisy component has the larger sum (released code) or norm (paper) of its mean vector."""

    distance_aware: bool = True
    """DaAgg, eqs. 6-7 (Table 4); off is FedAvg's aggregation."""
    distance: Literal["layer_sum", "l2"] = "layer_sum"
    """Sum of the tensors' norms (released code) or the norm of all weights as one vector (paper, eq. 6)."""
    include_buffers: bool = True
    """Let batch norm's running statistics count in the distance (released code)."""

    def __post_init__(self) -> None:
        if not 0 <= self.t_1 <= self.rounds:
            raise ConfigError(f"method.warm_up = {self.t_1}: it must be between 0 and method.rounds = {self.rounds}")
        if self.votes < 1:
            raise ConfigError(f"method.votes = {self.votes}: at least one fit is needed")

    @property
    def t_1(self) -> int:
        """Rounds of the warm-up."""
        return min(self.usual_warm_up, self.rounds // 2) if self.warm_up is None else self.warm_up

    def begin(self, federation: Federation, weights: Weights) -> FedNoRoState:
        return FedNoRoState(weights, buffers=tuple(federation.model_buffers()))

    def completed(self, facts: FederationFacts) -> Self:
        return replace(self, warm_up=self.t_1, detection=tested_for_own_labels(self.detection, facts))

    @property
    def sought(self) -> Asks:
        """What the search asks: a test also asks whether anybody is clean."""
        return (Indicate, EstimateBlindShare) if self.detection == "tested" else (Indicate,)

    def incompatibilities(self, facts: FederationFacts) -> Iterator[Incompatibility]:
        yield from super().incompatibilities(facts)
        yield from mixture_incompatibilities(facts)

    def adjusted(self) -> CrossEntropy:
        """Cross-entropy on f(x) + log pi, pi the site's own class prior (section 4.1)."""
        return CrossEntropy(adjust=self.tau)

    # Stage 1, section 4.1 ------------------------------------------------------------------------------------------

    def participants(self, federation: Federation) -> list[str]:
        """Who trains in a round of the warm-up."""
        return federation.sites

    def train_alike(self, state: FedNoRoState, federation: Federation) -> FedNoRoState:
        """FedAvg with logit adjustment at every site (eq. 2)."""
        recipe, sites = self.recipe(self.adjusted()), self.participants(federation)
        return replace(
            state,
            weights=self.merged(train_round(federation, state.weights, recipe, sites), state.weights),
        )

    def find_noisy_sites(self, state: FedNoRoState, federation: Federation) -> FedNoRoState:
        """Per-class losses of the warm-up model at every site, then a two-component mixture over the sites."""
        augment = self.local.augment if self.statistics_on == "train" else None
        request = Indicate(state.weights, len(federation.classes), self.indicator, self.per_class, augment)
        replies = federation.ask(request)
        table = _table(replies) * (-1.0 if self.indicator == "confidence" else 1.0)
        split = self._by_test if self.detection == "tested" else self._by_mixture
        unmeasured = [site for site in federation.sites if site not in replies]
        findings = replace(split(table, replies.sites, federation), unmeasured=tuple(unmeasured))
        if self.detection == "tested":
            findings = beside_clean_sites(findings, federation, state.weights)
        found = list(findings.noisy)
        if unmeasured:
            federation.warn(f"no indicator from {', '.join(unmeasured)}: treated as noisy until the end of the run")
        if not without_reference(findings, federation) and not found:
            federation.warn("the mixture found no noisy site: stage 2 is FedAvg with logit adjustment")
        federation.find(findings)
        federation.record_sites("indicator", {s: _without_nan(row) for s, row in zip(replies, table)})
        return replace(state, noisy=tuple(sorted(found + unmeasured)))

    def _by_mixture(self, table: Table, sites: list[str], federation: Federation) -> Findings:
        """A mixture over the sites' vectors, fitted once for every vote; the most frequent noisy set wins."""
        features = self._features(table, federation)
        result = split_by_vote(features, range(self.votes), self.noisy_by, self.covariance)
        federation.record(votes=self.votes, votes_for_set=result.votes)
        federation.record_sites("feature", {site: _without_nan(row) for site, row in zip(sites, features)})
        return Findings(tuple(sites[i] for i in result.noisy))

    def _by_test(self, table: Table, sites: list[str], federation: Federation) -> Findings:
        """One group against two, at a stated false-alarm rate; missing classes are left out, not filled."""
        result = tested_split(table, federation.random("tested detection"), self.false_alarm)
        return tested_findings(sites, result)

    def _features(self, table: Table, federation: Federation) -> Table:
        """Fill what a site lacks by the class's smallest value, then eq. 3; classes nobody has are left out."""
        result = normalise(table)
        features, kept = (result.values if self.min_max else result.filled), result.informative
        if self.per_class and len(kept) < table.shape[1]:
            left = [federation.classes[k] for k in range(table.shape[1]) if k not in set(kept)]
            federation.warn(f"classes that separate no sites were left out of the mixture: {', '.join(left)}")
        return features[:, kept] if len(kept) else np.zeros((len(table), 1))

    # Stage 2, section 4.2 ------------------------------------------------------------------------------------------

    def weigh(self, state: FedNoRoState, replies: Replies[Trained], federation: Federation) -> Weights:
        """w_g = sum_i N_i e^{-D(i)} w_i / sum_j N_j e^{-D(j)}, eqs. 6-7; without clean or noisy sites it is FedAvg.

        With another rule than the mean, N_i e^{-D(i)} stands for the sites' sizes.
        """
        if not self.distance_aware:
            return self.merged(replies, state.weights)
        models = [reply.weights for reply in replies.values()]
        result = distance_aware(
            models,
            [reply.samples for reply in replies.values()],
            clean=[i for i, site in enumerate(replies) if site not in state.noisy],
            distance=self.distance,
            buffers=state.buffers,
            include_buffers=self.include_buffers,
        )
        federation.record_sites("aggregation_weight", dict(zip(replies, result.shares.tolist())))
        if self.aggregate == "mean":
            return result.weights
        return self.merge(models, result.shares.tolist(), state.weights)


def _table(replies: Replies[Indicators]) -> Table:
    """`[sites, K]`, NaN where a site does not hold a class."""
    return np.stack([np.where(reply.held.numpy(), reply.values.double().numpy(), np.nan) for reply in replies.values()])


def _without_nan(row: Table) -> list[float | None]:
    return [None if np.isnan(value) else float(value) for value in row]


# FedNoRo: Wu et al., Towards Noise-Robust Federated Learning by Addressing Class Imbalance and Label
# Noise Heterogeneity, IJCAI 2023
# ------------------------------------------------------------------------------


@methods.register("fednoro")
@dataclass(frozen=True)
class FedNoRo(FindsNoisySites):
    """Warm up, find the noisy sites by their per-class losses, then train them by distillation and trust them less.

    The defaults are what produced the published tables (the released code) where that is safe; `form = "printed"` is
    the method as printed, `form = "released"` the code exactly.
    """

    summary: ClassVar[str] = "Finds noisy sites by per-class losses; distils at them, weighs them by distance"
    paper: ClassVar[str] = "Wu et al. 2023 (IJCAI)"
    instead: ClassVar[Mapping[str, str]] = {"multilabel": "fednoro-ml"}
    forms: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "printed": {"distance": "l2", "include_buffers": False, "votes": 1, "noisy_by": "norm"},
        "released": {"statistics_on": "train", "absent": "zero"},
    }

    temperature: Positive = 0.8
    """T: of the teacher alone, eq. 4."""
    lambda_max: Rate = 0.8
    """lambda_max: final weight of the distillation term, eq. 5."""
    ramp_begin: int | None = None
    """Round at which lambda starts to grow; T_1 by default."""
    ramp_end: int | None = None
    """Round at which lambda is lambda_max; by default after half of all rounds, 49 for the published 100."""
    adjust_teacher: bool = False
    """Adjust the teacher's logits by the site's prior too. As published only the student's are, which pushes rare
    classes up at every distilling site; where most sites distil and classes are very uneven, that runs away."""
    absent: Literal["masked", "zero", "renormalise"] = "masked"
    """Classes that a site lacks, in the distillation term: left out; as released (same gradient); or left out with the
    teacher rescaled."""

    distillation: bool = True
    """L_KL at noisy sites (Table 4)."""
    use_noisy_sites: bool = True
    """False trains on the clean sites alone in stage 2 (Table 4)."""

    local: Recipe = field(
        default_factory=lambda: Recipe(batch_size=16, optimiser="adam", lr=3e-4, weight_decay=5e-4),
        kw_only=True,
    )

    def stages(self) -> list[Stage]:
        return [
            Stage("warm up", self.t_1, self.train_alike, asks=(Train,)),
            Stage("find noisy sites", 1, self.find_noisy_sites, asks=self.sought, trains=False),
            Stage("robust training", self.rounds - self.t_1, self.train_robustly, asks=(Train,)),
        ]

    # Stage 2, section 4.2 ------------------------------------------------------------------------------------------

    def train_robustly(self, state: FedNoRoState, federation: Federation) -> FedNoRoState:
        """Cross-entropy at clean sites, eq. 5 at noisy ones, then distance-aware aggregation."""
        t = self.t_1 + federation.round.index
        share = self.distillation_share(t)
        recipes = {
            site: self.recipe(self.at_noisy_site(share) if site in state.noisy else self.adjusted())
            for site in self._participants(state, federation)
        }
        replies = train_round(federation, state.weights, recipes)
        federation.record(distillation_share=share)
        return replace(state, weights=self.weigh(state, replies, federation))

    def _participants(self, state: FedNoRoState, federation: Federation) -> list[str]:
        if self.use_noisy_sites:
            return federation.sites
        clean = [site for site in federation.sites if site not in state.noisy]
        if not clean:
            federation.warn("every site was found noisy: all of them train")
        return clean or federation.sites

    def distillation_share(self, t: int) -> float:
        """lambda at round t: a Gaussian ramp-up to lambda_max."""
        begin = self.t_1 if self.ramp_begin is None else self.ramp_begin
        end = max(begin, self.rounds // 2 - 1) if self.ramp_end is None else self.ramp_end
        return rampup(t, begin, end, self.lambda_max) if self.distillation else 0.0

    def at_noisy_site(self, share: float) -> Objective:
        """L = lambda L_KL(y_p, y_G) + (1 - lambda) L_CE(y_p, y), eq. 5; the teacher is the received global model."""
        if not self.distillation:
            return as_objective(self.adjusted())
        teacher = Distillation(self.temperature, self.tau, self.adjust_teacher, self.absent)
        return share * teacher + (1 - share) * self.adjusted()

    def tiny(self) -> FedNoRo:
        return replace(self, rounds=3, warm_up=1, ramp_begin=None, ramp_end=None)


@methods.register("fednoro-ml")
@dataclass(frozen=True)
class FedNoRoMultiLabel(PartlyAnnotated):
    """FedAvg on annotated classes with logit adjustment; the received model teaches the others, more as rounds go by.

    No noisy site is sought: all of them lack labels. So there is no first stage, and no distance-aware aggregation.
    """

    summary: ClassVar[str] = "FedNoRo's distillation for missing classes: the received model teaches them"
    paper: ClassVar[str] = "Wu et al. 2023 (IJCAI); multi-label as in FedMLP's comparison"
    instead: ClassVar[Mapping[str, str]] = {"multiclass": "fednoro"}

    tau: AtLeastZero = 1.0
    """Strength of the logit adjustment on annotated classes; 0 turns LA off."""
    temperature: Positive = 0.8
    """T: of the teacher alone, eq. 4."""
    lambda_max: Rate = 0.8
    """lambda_max: final weight of the distillation, eq. 5."""
    ramp_begin: Count = 10
    """Round until which lambda stays at its start, lambda_max e^-5."""
    ramp_end: Count | None = None
    """Round at which lambda is lambda_max; by itself the last (499 of the published 500)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ramp_end is not None and self.ramp_end < self.ramp_begin:
            raise ConfigError(
                f"method.ramp_end = {self.ramp_end}: it must be at least method.ramp_begin = {self.ramp_begin}"
            )

    def share_at(self, t: int) -> float:
        """lambda in round t, from 0."""
        end = self.rounds - 1 if self.ramp_end is None else self.ramp_end
        return rampup(t, min(self.ramp_begin, end), end, self.lambda_max)

    def objective(self, federation: Federation) -> Objective:
        """(1 - lambda) BCE on annotated classes + lambda (sigmoid(z) - sigmoid(z_G / T))^2 on missing ones."""
        share = self.share_at(federation.round.index)
        return (1 - share) * PartialClass(self.tau) + share * MissingTo(temperature=self.temperature)

    def train(self, state: Any, federation: Federation) -> Any:
        federation.record(distillation_share=self.share_at(federation.round.index))
        return super().train(state, federation)
