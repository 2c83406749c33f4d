"""FedNoRo's two pieces that other methods build on: finding the noisy sites, and trusting them less."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

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
    State,
    Weights,
)
from fedsift.contract.method import Asks
from fedsift.contract.ranges import AtLeastOne, AtLeastZero, Count, Rate
from fedsift.local.blind_labels import TellBlindShare
from fedsift.local.objective import CrossEntropy
from fedsift.local.requests import Indicate, Indicators, Trained
from fedsift.methods.base import (
    Averaging,
    mixture_misfits,
    tested_findings,
    tested_for_own_labels,
    train_round,
)
from fedsift.methods.reference import beside_clean_sites, without_reference
from fedsift.signals.mixture import split_by_vote
from fedsift.signals.per_class import normalise
from fedsift.signals.tested import tested_split

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
    there are two groups at all (signals/tested.py), as it does by itself for own labels."""
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
            raise ConfigError(
                f"method.warm_up = {self.t_1}: it must be between 0 and method.rounds = {self.rounds}"
            )
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
        return (Indicate, TellBlindShare) if self.detection == "tested" else (Indicate,)

    def misfits(self, facts: FederationFacts) -> Iterator[Misfit]:
        yield from super().misfits(facts)
        yield from mixture_misfits(facts)

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
    return np.stack(
        [np.where(reply.held.numpy(), reply.values.double().numpy(), np.nan) for reply in replies.values()]
    )


def _without_nan(row: Table) -> list[float | None]:
    return [None if np.isnan(value) else float(value) for value in row]
