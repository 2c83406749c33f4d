"""FedDiv: Li et al., FedDiv: Collaborative Noise Filtering for Federated Learning with Noisy Labels, AAAI 2024."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, cast

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from torch.nn import functional as F

from fedsift.core.codec import WireFormat
from fedsift.core.ranges import AtLeastOne, AtLeastZero, Count, Rate, Share
from fedsift.detection.mixtures import (
    TwoGaussians,
    clean_share,
    first_filter,
    local_filter,
    pooled,
    scaled_to_one,
)
from fedsift.methods._base import ask_to_train, methods
from fedsift.methods._visits_in_turn import InTurnState, VisitsInTurn
from fedsift.protocol.federation import Federation, Replies
from fedsift.protocol.findings import Findings
from fedsift.protocol.messages import Reply, Request, SiteFacts, Weights, disclosed
from fedsift.protocol.method import Stage
from fedsift.protocol.site import Site
from fedsift.training.crossfit import part_of
from fedsift.training.job import TrainingJob, TrainingResult
from fedsift.training.objective import ClassBalance, CrossEntropy, Objective, as_objective
from fedsift.training.predict import site_logits
from fedsift.training.recipe import Recipe
from fedsift.training.requests import Train, Trained, count_refusal

# Predictions freed of what a network says of everything: FedDiv's predictive consistency
# ------------------------------------------------------------------------------

LEAST = 1e-4
"""A class's share counts as at least this. It decays like m^t where a site lacks the class; without a floor the bonus
-xi log p grows without end, and the class wins every time."""


def debiased(
    logits: ArrayLike, prior: ArrayLike, strength: float, held: ArrayLike | None = None
) -> NDArray[np.float64]:
    """F = f(x) - xi log p_hat, `[n, K]` (FedDiv eq. 9): what is predicted beyond the site's usual prediction.

    prior: p_hat, the site's running mean prediction, `[K]`. held: classes that the site has samples of, `[K]`; the
    others get the smallest bonus of all instead of the largest. None: all classes alike.
    """
    bonus = -strength * np.log(np.maximum(np.asarray(prior, dtype=np.float64), LEAST))
    if held is not None:
        bonus = np.where(np.asarray(held, dtype=np.bool_), bonus, bonus.min())
    return np.asarray(logits, dtype=np.float64) + bonus


def running_prior(
    prior: ArrayLike, probabilities: ArrayLike, momentum: float, counted: ArrayLike | None = None
) -> NDArray[np.float64]:
    """p_hat <- m p_hat + (1 - m) mean of p over the site's samples, `[K]` (FedDiv eq. 10).

    counted: samples that count, bool `[n]`; None: all. Where none does, p_hat stays.
    """
    before, p = np.asarray(prior, dtype=np.float64), np.asarray(probabilities, dtype=np.float64)
    if counted is not None:
        p = p[np.asarray(counted, dtype=np.bool_)]
    return momentum * before + (1 - momentum) * p.mean(axis=0) if len(p) else before


# FedDiv's filter at a site: two Gaussians over its samples' losses, and what they say of its labels
# ------------------------------------------------------------------------------

NAME = "feddiv"
USUAL = "feddiv usual prediction"
"""The notebook page of p_hat, the running mean of the site's predictions, float64 `[K]`."""
WORDS = (
    "means, variances and shares of two Gaussians over its samples' losses, six numbers; "
    "the share of the larger mean is about its rate of wrong labels"
)


@dataclass(frozen=True)
class FilterRules(WireFormat):
    """How a site reads the filter; symbols as in the paper."""

    clean_from: float = 0.5
    """A label is clean from this posterior on."""
    noisy_above: float = 0.1
    """A site is noisy where a larger share of its labels is not clean."""
    zeta: float = 0.75
    xi: float = 0.5
    momentum: float = 0.2
    """m"""
    relabel: bool = True
    pcs: bool = True
    pcs_when: Literal["epoch", "visit"] = "epoch"
    pcs_after: int = 0
    phat_conf: float = 0.0
    phat_over: Literal["all", "held"] = "all"
    scale: Literal["raw", "site_minmax"] = "raw"
    guarded: bool = True


def filter_losses(site: Site, logits: Tensor, scale: str) -> NDArray[np.float64]:
    """Cross-entropy of the given labels, `[n]`: as it is, or scaled to 0..1 within the site."""
    found: NDArray[np.float64] = F.cross_entropy(logits.double(), site.given, reduction="none").numpy()
    return scaled_to_one(found) if scale == "site_minmax" else found


def consistent_labels(site: Site, logits: Tensor, rules: FilterRules) -> Tensor:
    """y° = argmax f(x) - xi log p_hat, int64 `[n]` (eq. 9)."""
    held = torch.bincount(site.given, minlength=site.n_classes) > 0 if rules.phat_over == "held" else None
    scores = debiased(logits.double().numpy(), usual_prediction(site), rules.xi, held)
    return torch.from_numpy(scores.argmax(axis=1))


def usual_prediction(site: Site) -> NDArray[np.float64]:
    """p_hat; all classes alike before the first visit."""
    kept: Tensor = site.notebook.get(USUAL, torch.full((site.n_classes,), 1 / site.n_classes).double())
    return kept.numpy()


@dataclass(frozen=True)
class FilteredLabels:
    """A site's labels behind the filter."""

    clean: Tensor
    """bool `[n]`: c_i >= clean_from."""
    sure: Tensor
    """bool `[n]`: max p >= zeta."""
    said: Tensor
    """int64 `[n]`: y_hat, the received model's label."""

    @property
    def noise(self) -> float:
        """delta_hat: share of the labels that are not clean."""
        return 1 - float(self.clean.double().mean())


def sift(site: Site, logits: Tensor, mixture: Tensor, rules: FilterRules) -> FilteredLabels:
    """Part the labels by the filter (eqs. 7-8), and keep as evidence what it says of each."""
    belief = clean_share(filter_losses(site, logits, rules.scale), TwoGaussians.of(mixture.numpy()))
    top = F.softmax(logits.double(), dim=-1).max(-1)
    if rules.guarded:
        belief = np.where((top.indices == site.given).numpy(), 1.0, belief)
    found = FilteredLabels(torch.from_numpy(belief >= rules.clean_from), top.values >= rules.zeta, top.indices)
    clear = ~found.clean & found.sure & (found.said == consistent_labels(site, logits, rules))
    site.keep_evidence(
        NAME,
        suspicion=torch.from_numpy(1 - belief),
        flagged=~found.clean,
        # a suspect without a clear answer keeps its label as the proposal
        proposed=torch.where(clear, found.said, site.given),
    )
    return found


def filter_refusal(table: Tensor) -> str | None:
    if table.shape != (3, 2) or not table.is_floating_point():
        return f"the filter has shape {tuple(table.shape)}, two Gaussians are (3, 2) numbers"
    return None if bool((table[1:] > 0).all()) else "the filter has a variance or a share that is not positive"


@dataclass(frozen=True)
class FittedFilter(Reply):
    """A site's own filter."""

    filter: Tensor = disclosed(WORDS, "features", least=0.0)
    samples: int = disclosed("how many samples it was fitted to", "count")

    def refusal(self, request: FitFilter, facts: SiteFacts) -> str | None:
        return filter_refusal(self.filter) or count_refusal("samples", self.samples, facts.samples)


@dataclass(frozen=True)
class FitFilter(Request[FittedFilter]):
    """Fit two Gaussians to the site's losses under these weights, from nothing: W^0."""

    reply_type: ClassVar[type[Reply]] = FittedFilter

    weights: Weights
    scale: Literal["raw", "site_minmax"] = "raw"

    def answer(self, site: Site) -> FittedFilter:
        found = first_filter(filter_losses(site, site_logits(site, self.weights), self.scale))
        return FittedFilter(torch.from_numpy(found.table), len(site.samples))


@dataclass(frozen=True)
class SuspectCount(Reply):
    """How many labels the filter holds suspect; which, stays there."""

    suspects: int = disclosed("how many of its labels the final filter holds suspect", "count")

    def refusal(self, request: FilterLabels, facts: SiteFacts) -> str | None:
        return count_refusal("suspects", self.suspects, facts.samples, least=0)


@dataclass(frozen=True)
class FilterLabels(Request[SuspectCount]):
    """Judge every label by the final model and filter: the site's list of suspects."""

    reply_type: ClassVar[type[Reply]] = SuspectCount

    weights: Weights
    filter: Tensor
    rules: FilterRules = field(default_factory=FilterRules)

    def answer(self, site: Site) -> SuspectCount:
        found = sift(site, site_logits(site, self.weights), self.filter, self.rules)
        return SuspectCount(site.suppress_small(int((~found.clean).sum())))


# FedDiv's training at a site: part its labels by the filter that all sites share, relabel what is
# doubtful but clear, train on what stays consistent, and fit the filter anew
# ------------------------------------------------------------------------------

CONSISTENT = "feddiv consistent labels"
"""The notebook page of y°, the debiased label of each sample at the end of the last visit, int64 `[n]`."""
VISITS = "feddiv visits"
"""The notebook page of how often the site has trained behind the filter."""
MOST_EM_STEPS = 10_000
"""Of the filter's fit, that a message may ask for."""
FEWEST = 2
"""Samples to train on."""


@dataclass(frozen=True)
class TrainedBehindFilter(Trained):
    """A model, and the site's filter."""

    filter: Tensor = disclosed(WORDS, "features", least=0.0, default_factory=lambda: torch.ones(3, 2).double())

    def refusal(self, request: Train, facts: SiteFacts) -> str | None:
        return super().refusal(request, facts) or filter_refusal(self.filter)


@dataclass(frozen=True)
class TrainBehindFilter(Train):
    """One visit of Alg. 1: filter, relabel, train on consistent samples, fit the filter anew."""

    reply_type: ClassVar[type[Reply]] = TrainedBehindFilter

    filter: Tensor = field(default_factory=lambda: torch.ones(3, 2).double())
    """W^t: means, variances and shares, clean first, `[3, 2]`."""
    rules: FilterRules = field(default_factory=FilterRules)
    em_steps: int | None = field(default=None, metadata={"least": 1, "most": MOST_EM_STEPS})

    def work(self, facts: SiteFacts) -> float:
        """With a look at every sample before each epoch, and one of the filter before and after."""
        return super().work(facts) + (self.recipe.epochs + 1) * facts.samples

    def job(self, site: Site) -> TrainingJob | None:  # type: ignore[override]
        super().job(site)
        logits = site_logits(site, self.weights)
        found = sift(site, logits, self.filter, self.rules)
        bench = site.workbench
        bench["epochs"], bench["said"] = 0, found.said
        bench["labels"], bench["usable"], bench["choosy"] = self.labels_to_train_on(site, found)
        return self.part(site, self.weights, logits)

    def labels_to_train_on(self, site: Site, found: FilteredLabels) -> tuple[Tensor, Tensor, bool]:
        """Labels `[n]`, samples that may be trained on `[n]`, and whether they must be consistent.

        A clean site has all of its own; a noisy one its clean samples with their labels, and of the rest those that
        the received model is sure of with its label (eqs. 8, 11).
        """
        if found.noise <= self.rules.noisy_above:
            return site.given, torch.ones_like(found.clean), False
        late = site.notebook.get(VISITS, 0) >= self.rules.pcs_after
        taken = ~found.clean & found.sure & (self.rules.relabel and late)
        return torch.where(taken, found.said, site.given), found.clean | taken, self.rules.pcs and late

    def part(self, site: Site, weights: Weights, logits: Tensor) -> TrainingJob | None:
        """The next epoch, or all of them where the choice of samples does not change; None where too few are left."""
        bench, rules = site.workbench, self.rules
        usable, recipe = bench["usable"], self.recipe
        if bench["choosy"] and rules.pcs_when == "epoch":
            usable = usable & (bench["said"] == consistent_labels(site, logits, rules))
            recipe = replace(recipe, epochs=1)
        elif bench["choosy"]:
            last: Tensor = site.notebook.get(CONSISTENT, bench["said"])
            usable = usable & (bench["said"] == last)
        if int(usable.sum()) < FEWEST:
            return None
        own = part_of(site, usable.nonzero().squeeze(-1), bench["labels"])
        bench["epochs"] += recipe.epochs
        return TrainingJob(own, weights, recipe, purpose=f"train to epoch {bench['epochs']}")

    def further(self, site: Site, result: TrainingResult) -> TrainingJob | None:
        if site.workbench["epochs"] >= self.recipe.epochs:
            return None
        return self.part(site, result.weights, site_logits(site, result.weights))

    def reply(self, site: Site, result: TrainingResult | None) -> TrainedBehindFilter:
        """The trained model, or the received one where nothing was trained, and the filter of its losses."""
        weights = self.weights if result is None else result.weights
        logits = site_logits(site, weights)
        own = local_filter(
            filter_losses(site, logits, self.rules.scale), TwoGaussians.of(self.filter.numpy()), self.em_steps
        )
        self.remember(site, logits)
        loss = 0.0 if result is None else result.loss
        return TrainedBehindFilter(weights, len(site.samples), loss, filter=torch.from_numpy(own.table))

    def remember(self, site: Site, logits: Tensor) -> None:
        """The site's usual prediction follows (eq. 10); y° is kept for a check at the next visit."""
        p, counted = F.softmax(logits.double(), dim=-1), None
        if self.rules.phat_conf > 0:
            scores = torch.from_numpy(debiased(logits.numpy(), usual_prediction(site), self.rules.xi))
            counted = (F.softmax(scores, dim=-1).max(-1).values > self.rules.phat_conf).numpy()
        usual = running_prior(usual_prediction(site), p.numpy(), self.rules.momentum, counted)
        site.notebook[CONSISTENT] = consistent_labels(site, logits, self.rules)
        site.notebook[USUAL] = torch.from_numpy(usual)
        site.notebook[VISITS] = site.notebook.get(VISITS, 0) + 1


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
    """All sites share one mixture of two Gaussians over their samples' losses, which separates clean from wrong labels.

    The defaults are the method as printed with the guards that it needs; `form = "printed"` doubts also labels that the
    model itself would give, `form = "released"` is the deleted code.
    """

    summary: ClassVar[str] = "Sites share one mixture over sample losses that filters labels; relabels the clear ones"
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

    local: Recipe = field(default_factory=lambda: Recipe(epochs=5, batch_size=10, lr=0.03, momentum=0.5), kw_only=True)

    def begin(self, federation: Federation, weights: Weights) -> FedDivState:
        return FedDivState(weights)

    def stages(self) -> list[Stage]:
        visits = self.iterations * self.visits_each
        return [
            Stage("warm-up", visits, self.warm_up, asks=(Train,)),
            Stage("first filter", 1, self.fit_first_filter, asks=(FitFilter,), trains=False),
            Stage("filtered training", self.rounds, self.train_filtered, asks=(TrainBehindFilter,)),
            Stage("list suspects", 1, self.list_suspects, asks=(FilterLabels,), trains=False),
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
        self.report(federation, {site: float(own[2, 1]) for site, own in every.items()})
        return replace(state, filter=torch.from_numpy(common.table), filters=dict(every))

    def sizes(self, federation: Federation, sites: Mapping[str, Any]) -> Sequence[float]:
        known = federation.sizes()
        return [known[site] for site in sites]

    def report(self, federation: Federation, level: Mapping[str, float]) -> None:
        """Who looks noisy: more than `noisy_above` of its labels belong to the larger losses."""
        noisy = tuple(site for site, share in level.items() if share > self.noisy_above)
        unmeasured = tuple(site for site in federation.sites if site not in level)
        federation.find(Findings(noisy, unmeasured=unmeasured, level=dict(level)))

    def list_suspects(self, state: FedDivState, federation: Federation) -> FedDivState:
        """Every site judges its labels by the final model and filter; delta_hat is what it says of them."""
        requests = {
            site: FilterLabels(state.weights, self.filter_for(site, state), self.rules) for site in federation.sites
        }
        replies = federation.ask(requests)
        self.report(
            federation,
            {site: reply.suspects / federation.facts[site].samples for site, reply in replies.items()},
        )
        return state

    @property
    def rules(self) -> FilterRules:
        """What a site needs of these settings."""
        return FilterRules(
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
