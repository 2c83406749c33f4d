"""FedNoRo: Wu et al., Towards Noise-Robust Federated Learning by Addressing Class Imbalance and Label Noise
Heterogeneity, IJCAI 2023."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fedsift.aggregate import distance_aware
from fedsift.contract import (
    ConfigError,
    Federation,
    FederationFacts,
    Findings,
    Misfit,
    Replies,
    Stage,
    State,
    Weights,
)
from fedsift.contract.method import Asks
from fedsift.contract.ranges import AtLeastOne, AtLeastZero, Count, Positive, Rate
from fedsift.local.blind_labels import TellBlindShare
from fedsift.local.objective import CrossEntropy, Distillation, Objective, as_objective
from fedsift.local.recipe import Recipe
from fedsift.local.requests import Indicate, Indicators, Train, Trained
from fedsift.methods.base import (
    Averaging,
    methods,
    mixture_misfits,
    tested_findings,
    tested_for_own_labels,
    train_round,
)
from fedsift.methods.reference import beside_clean_sites, without_reference
from fedsift.signals.mixture import split_by_vote
from fedsift.signals.per_class import normalise
from fedsift.signals.rampup import rampup
from fedsift.signals.tested import tested_split

Table = NDArray[np.float64]


@dataclass(frozen=True)
class FedNoRoState(State):
    """The global model, and what stage 1 found out about the sites."""

    noisy: tuple[str, ...] = ()
    """S_n: sites of the mixture's noisy component, and those that gave no indicator."""
    buffers: tuple[str, ...] = ()
    """Names in the model that are running statistics, not parameters."""


@methods.register("fednoro")
@dataclass(frozen=True)
class FedNoRo(Averaging):
    """Warm up, find the noisy sites by their per-class losses, then train them by distillation and trust them less.

    The defaults are what produced the published tables (the released code) where that is safe; `form = "printed"` is
    the method as printed, `form = "released"` the code to the letter.
    """

    summary: ClassVar[str] = "Finds noisy sites by per-class losses; distils at them, weighs them by distance"
    paper: ClassVar[str] = "Wu et al. 2023 (IJCAI)"
    forms: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "printed": {"distance": "l2", "include_buffers": False, "votes": 1, "noisy_by": "norm"},
        "released": {"statistics_on": "train", "absent": "zero"},
    }

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
    there are two groups at all (signals/tested.py), as it does by itself for own labels."""
    false_alarm: Rate = 0.05
    """Largest chance that "tested" names any site of a clean federation."""
    votes: AtLeastOne = 9
    """Mixture fits with seeds 0..votes-1; the most frequent set of noisy sites wins. The paper prints one fit."""
    covariance: Literal["full", "tied", "diag", "spherical"] = "full"
    """Covariance of the mixture."""
    noisy_by: Literal["sum", "norm"] = "sum"
    """The noisy component has the larger sum (released code) or norm (paper) of its mean vector."""

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
    distance_aware: bool = True
    """DaAgg, eqs. 6-7 (Table 4); off is FedAvg's aggregation."""
    use_noisy_sites: bool = True
    """False trains on the clean sites alone in stage 2 (Table 4)."""
    distance: Literal["layer_sum", "l2"] = "layer_sum"
    """Sum of the tensors' norms (released code) or the norm of all weights as one vector (paper, eq. 6)."""
    include_buffers: bool = True
    """Let batch norm's running statistics count in the distance (released code)."""

    def __post_init__(self) -> None:
        if not 0 <= self.t_1 <= self.rounds:
            raise ConfigError(
                f"method.warm_up = {self.t_1}: it must be between 0 and method.rounds = {self.rounds}"
            )
        if self.votes < 1:
            raise ConfigError(f"method.votes = {self.votes}: at least one fit is needed")

    local: Recipe = field(
        default_factory=lambda: Recipe(batch_size=16, optimiser="adam", lr=3e-4, weight_decay=5e-4),
        kw_only=True,
    )

    @property
    def t_1(self) -> int:
        """Rounds of the warm-up."""
        return min(10, self.rounds // 2) if self.warm_up is None else self.warm_up

    def begin(self, federation: Federation, weights: Weights) -> FedNoRoState:
        return FedNoRoState(weights, buffers=tuple(federation.model_buffers()))

    def stages(self) -> list[Stage]:
        return [
            Stage("warm up", self.t_1, self.train_alike, asks=(Train,)),
            Stage("find noisy sites", 1, self.find_noisy_sites, asks=self.sought, trains=False),
            Stage("robust training", self.rounds - self.t_1, self.train_robustly, asks=(Train,)),
        ]

    @property
    def sought(self) -> Asks:
        """What the search asks: a test also asks whether anybody is clean."""
        return (Indicate, TellBlindShare) if self.detection == "tested" else (Indicate,)

    def completed(self, facts: FederationFacts) -> FedNoRo:
        return replace(self, warm_up=self.t_1, detection=tested_for_own_labels(self.detection, facts))

    def misfits(self, facts: FederationFacts) -> Iterator[Misfit]:
        yield from super().misfits(facts)
        yield from mixture_misfits(facts)

    def adjusted(self) -> CrossEntropy:
        """Cross-entropy on f(x) + log pi, pi the site's own class prior (section 4.1)."""
        return CrossEntropy(adjust=self.tau)

    # Stage 1, section 4.1 ------------------------------------------------------------------------------------------

    def train_alike(self, state: FedNoRoState, federation: Federation) -> FedNoRoState:
        """FedAvg with logit adjustment at every site (eq. 2)."""
        replies = train_round(federation, state.weights, self.recipe(self.adjusted()))
        return replace(state, weights=self.merged(replies, state.weights))

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
            federation.warn(
                f"no indicator from {', '.join(unmeasured)}: treated as noisy until the end of the run"
            )
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
            federation.warn(
                f"classes that tell no sites apart were left out of the mixture: {', '.join(left)}"
            )
        return features[:, kept] if len(kept) else np.zeros((len(table), 1))

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

    def tiny(self) -> FedNoRo:
        return replace(self, rounds=3, warm_up=1, ramp_begin=None, ramp_end=None)


def _table(replies: Replies[Indicators]) -> Table:
    """`[sites, K]`, NaN where a site does not hold a class."""
    return np.stack(
        [np.where(reply.held.numpy(), reply.values.double().numpy(), np.nan) for reply in replies.values()]
    )


def _without_nan(row: Table) -> list[float | None]:
    return [None if np.isnan(value) else float(value) for value in row]
