"""FedDiv: Li et al., FedDiv: Collaborative Noise Filtering for Federated Learning with Noisy Labels, AAAI 2024."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, cast

import torch
from torch import Tensor

from fedsift.contract import Federation, Findings, Replies, Stage, Weights
from fedsift.contract.ranges import AtLeastOne, AtLeastZero, Count, Rate, Share
from fedsift.local.objective import CrossEntropy, Objective, as_objective
from fedsift.local.recipe import Recipe
from fedsift.local.requests import Train
from fedsift.local.robust import ClassBalance
from fedsift.methods.base import ask_to_train, methods
from fedsift.methods.feddiv_filter import FitFilter, Rules, SiftLabels
from fedsift.methods.feddiv_site import TrainBehindFilter, TrainedBehindFilter
from fedsift.methods.in_turn import InTurnState, VisitsInTurn
from fedsift.signals.two_gaussians import TwoGaussians, pooled


@dataclass(frozen=True)
class FedDivState(InTurnState):
    """The global model, the filter that all sites share, and each site's own."""

    filter: Tensor = field(default_factory=lambda: torch.ones(3, 2).double())
    """W^t: means, variances and shares of both Gaussians, clean first, `[3, 2]`."""
    filters: dict[str, Tensor] = field(default_factory=dict)
    """W_k of the sites' last visits."""


@methods.register("feddiv")
@dataclass(frozen=True)
class FedDiv(VisitsInTurn):
    """All sites share one mixture of two Gaussians over their samples' losses, which tells clean from wrong labels.

    The defaults are the method as printed with the guards that it needs; `form = "printed"` doubts also labels that the
    model itself would give, `form = "released"` is the deleted code.
    """

    summary: ClassVar[str] = (
        "Sites share one mixture over sample losses that filters labels; relabels the clear ones"
    )
    paper: ClassVar[str] = "Li et al. 2024 (AAAI)"
    forms: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "cifar-100": {"iterations": 10, "rounds": 900},
        "clothing1m": {"iterations": 2, "rounds": 100, "fraction": 0.02},
        "iid": {"eta": 0.0},
        "printed": {"guarded": False},
        "released": {
            "guarded": False,
            "filter_scale": "site_minmax",
            "filter_cov_power": 2,
            "em_steps": 3,
            "pcs_when": "visit",
            "pcs_after_visits": 5,
            "xi": 0.2,
            "momentum": 0.5,
            "zeta": 0.0,
            "phat_conf": 0.85,
        },
    }

    rounds: AtLeastOne = 950
    """T: rounds behind the filter, after the warm-up of `iterations` visits to every site."""
    fraction: Share = 0.1
    """omega: share of the sites that train in a round."""
    mixup: AtLeastZero = 1.0
    """alpha of mixup's Beta(alpha, alpha), in all of training."""
    eta: AtLeastZero = 1.0
    """eta: weight of L_reg, which asks for all classes in a batch's mean prediction; the paper has 0 for IID sites."""

    filter: Literal["federated", "round_only", "local"] = "federated"
    """Whose losses the filter knows: all sites', those of this round's, or the site's own (Table 5)."""
    filter_weigh: Literal["size", "members"] = "size"
    """What a site counts for in the common filter: its size (eq. 5), or for each component the members it has there."""
    filter_scale: Literal["raw", "site_minmax"] = "raw"
    """Losses as they are, or scaled to 0..1 within each site (released code), where clean sites look noisy."""
    filter_cov_power: Literal[1, 2] = 1
    """Power of n_k / n in the variances' sum; 2 (released code) makes them K times too small among K equal sites."""
    em_steps: AtLeastOne | None = None
    """Steps of EM in a visit; none: until it converges (released code: 3)."""
    clean_from: Rate = 0.5
    """A label is clean from this posterior on."""
    guarded: bool = True
    """Never doubt a label that the received model itself would give: a mixture parts any losses in two, and the harder
    samples of a clean site look wrong to it. Off is as printed."""
    noisy_above: Rate = 0.1
    """A site is noisy where a larger share of its labels is not clean (eq. 11)."""

    relabel: bool = True
    """Give doubtful samples the model's label where it is sure (Table 5)."""
    zeta: Rate = 0.75
    """zeta: sure from this probability on."""
    pcs: bool = True
    """Predictive consistency: train only on samples whose label survives debiasing (Table 5)."""
    xi: AtLeastZero = 0.5
    """xi: strength of the debiasing f(x) - xi log p_hat."""
    momentum: Rate = 0.2
    """m: how much of the site's usual prediction p_hat stays after a visit."""
    pcs_when: Literal["epoch", "visit"] = "epoch"
    """Check consistency before every local epoch with the network in training (paper), or once a visit with what it
    said at the end of the last (released code)."""
    pcs_after_visits: Count = 0
    """Visits that a site makes before it relabels and checks consistency (released code: 5)."""
    phat_conf: Rate = 0.0
    """p_hat is the mean over samples predicted with more than this (released code: 0.85)."""
    phat_over: Literal["all", "held"] = "all"
    """Debias all classes (with a floor of 1e-4 for p_hat), or only those that the site has labels of."""

    local: Recipe = field(
        default_factory=lambda: Recipe(epochs=5, batch_size=10, lr=0.03, momentum=0.5), kw_only=True
    )

    def begin(self, federation: Federation, weights: Weights) -> FedDivState:
        return FedDivState(weights)

    def stages(self) -> list[Stage]:
        visits = self.iterations * self.visits_each
        return [
            Stage("warm-up", visits, self.warm_up, asks=(Train,)),
            Stage("first filter", 1, self.fit_first_filter, asks=(FitFilter,), trains=False),
            Stage("filtered training", self.rounds, self.train_filtered, asks=(TrainBehindFilter,)),
            Stage("list suspects", 1, self.list_suspects, asks=(SiftLabels,), trains=False),
        ]

    def warm_up(self, state: FedDivState, federation: Federation) -> FedDivState:
        """Every site once in each iteration, one after the other, on mixed samples (as FedCorr's first stage)."""
        turn = federation.round.index % self.visits_each
        if turn == 0:
            state = replace(state, visits=self.deal(federation.sites, federation.random("shuffle")))
        if not state.visits[turn]:
            return state
        request = Train(state.weights, self.recipe(CrossEntropy(), mixup=self.mixup))
        replies = self.ask_in_turn(state, federation, dict.fromkeys(state.visits[turn], request))
        if replies is None:
            return replace(state, lost=state.lost + 1)
        return replace(state, weights=self.merged(replies, state.weights), lost=0)

    def fit_first_filter(self, state: FedDivState, federation: Federation) -> FedDivState:
        """W^0, about which the paper is silent: every site fits its own, and they are averaged."""
        replies = federation.ask(FitFilter(state.weights, self.filter_scale))
        filters = {site: reply.filter for site, reply in replies.items()}
        return self.with_filters(state, federation, filters, filters)

    def train_filtered(self, state: FedDivState, federation: Federation) -> FedDivState:
        """One round of Alg. 1: sites filter, relabel, train and fit; models and filters are averaged by size."""
        recipe = self.recipe(self.loss(), mixup=self.mixup)
        requests = {
            site: TrainBehindFilter(
                state.weights,
                recipe,
                filter=self.filter_for(site, state),
                rules=self.rules,
                em_steps=self.em_steps,
            )
            for site in federation.choose(self.fraction)
        }
        replies = ask_to_train(federation, requests)
        own = {s: reply.filter for s, reply in cast("Replies[TrainedBehindFilter]", replies).items()}
        state = replace(state, weights=self.merged(replies, state.weights))
        return self.with_filters(state, federation, {**state.filters, **own}, own)

    def loss(self) -> Objective:
        """Cross-entropy on mixed samples + eta sum_c (1/C) log((1/C) / q_c), q the batch's mean prediction."""
        plain = as_objective(CrossEntropy())
        return plain + self.eta * ClassBalance() if self.eta > 0 else plain

    def filter_for(self, site: str, state: FedDivState) -> Tensor:
        return state.filters.get(site, state.filter) if self.filter == "local" else state.filter

    def with_filters(
        self,
        state: FedDivState,
        federation: Federation,
        every: Mapping[str, Tensor],
        new: Mapping[str, Tensor],
    ) -> FedDivState:
        """W^{t+1} = sum_k n_k W_k / sum_k n_k (eq. 5) over the sites' last filters, or over this round's."""
        used = new if self.filter == "round_only" else every
        common = pooled(
            [TwoGaussians.of(own.numpy()) for own in used.values()],
            self.sizes(federation, used),
            self.filter_weigh,
            self.filter_cov_power,
        )
        federation.record(filter=[[round(float(v), 6) for v in row] for row in common.table])
        self.tell(federation, {site: float(own[2, 1]) for site, own in every.items()})
        return replace(state, filter=torch.from_numpy(common.table), filters=dict(every))

    def sizes(self, federation: Federation, sites: Mapping[str, Any]) -> Sequence[float]:
        return [federation.facts[site].samples for site in sites]

    def tell(self, federation: Federation, level: Mapping[str, float]) -> None:
        """Who looks noisy: more than `noisy_above` of its labels belong to the larger losses."""
        noisy = tuple(site for site, share in level.items() if share > self.noisy_above)
        unmeasured = tuple(site for site in federation.sites if site not in level)
        federation.find(Findings(noisy, unmeasured=unmeasured, level=dict(level)))

    def list_suspects(self, state: FedDivState, federation: Federation) -> FedDivState:
        """Every site judges its labels by the final model and filter; delta_hat is what it says of them."""
        requests = {
            site: SiftLabels(state.weights, self.filter_for(site, state), self.rules)
            for site in federation.sites
        }
        replies = federation.ask(requests)
        self.tell(
            federation,
            {site: reply.suspects / federation.facts[site].samples for site, reply in replies.items()},
        )
        return state

    @property
    def rules(self) -> Rules:
        """What a site needs of these settings."""
        return Rules(
            clean_from=self.clean_from,
            noisy_above=self.noisy_above,
            zeta=self.zeta,
            xi=self.xi,
            momentum=self.momentum,
            relabel=self.relabel,
            pcs=self.pcs,
            pcs_when=self.pcs_when,
            pcs_after=self.pcs_after_visits,
            phat_conf=self.phat_conf,
            phat_over=self.phat_over,
            scale=self.filter_scale,
            guarded=self.guarded,
        )

    def tiny(self) -> FedDiv:
        return replace(self, iterations=1, visit_fraction=0.4, rounds=2, fraction=0.6)
