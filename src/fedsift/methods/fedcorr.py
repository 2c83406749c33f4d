"""FedCorr: Xu, Chen, Quek and Chong, FedCorr: Multi-Stage Federated Learning for Label Noise Correction,
CVPR 2022."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import numpy as np

from fedsift.aggregate import average
from fedsift.contract import ConfigError, Federation, QuorumError, Replies, Request, Stage, State
from fedsift.contract.registry import nearest
from fedsift.local.objective import CrossEntropy, Objective, Proximal, as_objective
from fedsift.local.recipe import Augment, Recipe
from fedsift.local.requests import Train, Trained
from fedsift.methods.base import TrainingMethod, methods, size_weighted, train_round
from fedsift.methods.fedcorr_site import (
    Corrected,
    CorrectLabels,
    RelabelConfident,
    SampleLoss,
    Scored,
    ScoreModel,
)
from fedsift.methods.feddyn import DynamicRound, Dynamics, begin_dynamics
from fedsift.methods.median import median_of
from fedsift.methods.power_of_choice import choose_by_loss
from fedsift.signals.counting import floor_count
from fedsift.signals.late_joiners import Score, score_sites
from fedsift.signals.lid import Form as LidForm
from fedsift.signals.mixture import split_values
from fedsift.signals.relabel import Form, clean_set, relabel_sites
from fedsift.signals.tested import tested_split

LOST_VISITS = 3
"""So many visits in a row without any reply stop the run: not a site is away then, but the network."""
FEWEST_SAMPLES = 3
"""A smaller site has no dimensionality to speak of: it trains along, but is neither judged nor corrected."""


@dataclass(frozen=True)
class FedCorrState(State):
    """The global model, and what is known of the sites."""

    visits: tuple[tuple[str, ...], ...] = ()
    """Whom this iteration visits in which round."""
    lids: tuple[dict[str, float], ...] = ()
    """LID scores by site, one entry for each iteration begun."""
    noisy: tuple[str, ...] = ()
    """S_n: the noisy sites of the last mixture over sites."""
    level: dict[str, float] = field(default_factory=dict)
    """mu_hat_k: estimated noise levels of the sites that were measured."""
    lost: int = 0
    """Visits in a row that brought no reply."""
    dynamics: Dynamics | None = None
    """FedDyn's memory, when it runs the last stage."""


@methods.register("fedcorr")
@dataclass(frozen=True)
class FedCorr(TrainingMethod):
    """Visit every site, judge its predictions' dimensionality, correct labels at noisy ones; train as usual.

    The defaults are what produced the published CIFAR-10 tables (the released code) where that is safe. As
    printed: `sample_loss = "ce"`, `prox_power = 2`, `prox_first_batch = true`, `mixup_stages = "first"`,
    `relabel_form = "paper"`, `rank_by = "global"`, `relabel_after = "above kappa"`.
    """

    summary: ClassVar[str] = "Finds noisy sites by LID, corrects their labels there, then trains as usual"
    paper: ClassVar[str] = "Xu et al. 2022 (CVPR)"

    iterations: int = 5
    """T_1: times that every site is visited in the first stage."""
    visit_fraction: float = 0.01
    """Share of the sites visited in one round of the first stage; 1/N in the paper, and in a study that says how
    many sites there are and no more. 0.1 is Table 6's "w/o fraction scheduling"."""
    stage1_replace: bool = False
    """Draw a visit's sites with replacement, as released: with several sites a visit, some are missed."""
    fine_tuning_rounds: int = 500
    """T_2: rounds on the clean sites."""
    usual_rounds: int = 450
    """T_3: rounds on all sites."""
    fraction: float = 0.1
    """gamma: share of all sites that train in a round of the last two stages."""

    beta: float = 5.0
    """beta: weight of the proximal term beta mu_hat_k ||w - w_g||, eq. 5; 0 leaves it out (Table 6)."""
    prox_power: Literal[1, 2] = 1
    """The norm (released code) or its square (paper, eq. 5)."""
    prox_first_batch: bool = False
    """Keep the proximal term on the first batch of every local epoch; the released code leaves it out."""
    mixup: float = 1.0
    """alpha of mixup's Beta(alpha, alpha)."""
    mixup_stages: Literal["all", "first", "none"] = "all"
    """Where mixup is on: everywhere (released code), in the first stage (paper), nowhere (Table 6)."""
    adjust: float = 0.0
    """tau: strength of logit adjustment in local training; 1 is FedCorr+LA of FedNoRo's tables."""

    lid_k: int = 20
    """k: neighbours of the LID estimate, eq. 2."""
    lid_form: LidForm = "guarded"
    """"guarded" counts the neighbours there are and caps estimates; "official" and "paper" as they are."""
    lid_floor: float = 0.0
    """Smaller distances count as this one. 0, as released: a prediction that has a duplicate scores 0."""
    score: Score = "completed"
    """What the mixture over sites sees: the cumulative LID with missed iterations filled in; as published
    ("cumulative"), which lets a newcomer pass as clean; "mean"; or the "latest" LID (Fig. 3 left)."""
    joins: dict[str, int] = field(default_factory=dict)
    """Iteration (from 1) from which a site takes part in the first stage; the others do from the start."""
    detection: Literal["paper", "tested"] = "paper"
    """Two components always ("paper"), or only where one group is refuted ("tested")."""
    false_alarm: float = 0.05
    """Of "tested": chance of naming any site in a clean federation, over all iterations together."""
    statistics_on: Literal["eval", "train"] = "eval"
    """Measure on the images as they are, or augmented as in training (the released code)."""

    sample_loss: SampleLoss = "ce_on_softmax"
    """Loss that splits and ranks a site's samples: of the softmax's softmax (released code) or plain."""
    correction: bool = True
    """Relabel at all (Table 6)."""
    ratio: float = 0.5
    """pi: share of the noisy samples, by falling loss, that may be relabelled in an iteration."""
    theta: float = 0.5
    """theta: confidence of the global model above which it relabels, eq. 7."""
    relabel_form: Form = "official"
    """"official" ranks the whole site and needs p > theta; "paper" ranks D_n and needs p >= theta."""
    rank_by: Literal["local", "global"] = "local"
    """Rank by the local model's losses (released code) or the global model's (paper, eq. 6)."""

    fine_tuning: bool = True
    """Stage 2 at all (Table 6)."""
    kappa: float = 0.1
    """kappa: largest estimated noise level of a site to fine-tune on."""
    relabel_after: Literal["mixture", "above kappa"] = "mixture"
    """Sites relabelled after fine-tuning: the last mixture's noisy ones (released code), or those with
    mu_hat > kappa (paper)."""

    usual_training: bool = True
    """Stage 3 at all (Table 6)."""
    usual: Literal["fedavg", "feddyn", "median", "poc"] = "fedavg"
    """Algorithm of stage 3 (Fig. 4)."""
    usual_lr: float = 0.0
    """Learning rate of stage 3; 0 is the study's (Fig. 4: 0.1 for FedDyn, 0.01 for the other two)."""
    feddyn_alpha: float = 0.01
    """FedDyn's alpha."""
    feddyn_decay: float = 0.998
    """FedDyn's decay of the learning rate a round."""
    poc_pool: int = 30
    """Power-of-choice's d: candidates asked for their loss."""

    def __post_init__(self) -> None:
        if not 0 < self.visit_fraction <= 1:
            raise ConfigError(f"method.visit_fraction = {self.visit_fraction}: it must be in (0, 1]")
        for name in ("ratio", "theta", "kappa"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"method.{name} = {getattr(self, name)}: it must be between 0 and 1")
        if self.iterations < 1:
            raise ConfigError(f"method.iterations = {self.iterations}: at least one is needed")

    @property
    def visits_each(self) -> int:
        """Rounds of one iteration: ceil(1 / fraction)."""
        return math.ceil(1 / self.visit_fraction - 1e-9)

    def start(self, federation: Federation) -> FedCorrState:
        for site in self.joins:
            if site not in federation.facts:
                raise ConfigError(f"unknown site 'method.joins.{site}'.{nearest(site, federation.sites)}")
        return FedCorrState(federation.initial_weights())

    def stages(self) -> list[Stage]:
        relabels = self.fine_tuning and self.correction
        return [
            Stage("pre-processing", self.iterations * self.visits_each, self.pre_process),
            Stage("fine-tuning", self.fine_tuning_rounds if self.fine_tuning else 0, self.fine_tune),
            Stage("relabel the rest", 1 if relabels else 0, self.relabel_the_rest, trains=False),
            Stage("usual training", self.usual_rounds if self.usual_training else 0, self.train_as_usual),
        ]

    # Stage 1, section 3.2, Algorithm 1 lines 1-13 ---------------------------------------------------------

    def pre_process(self, state: FedCorrState, federation: Federation) -> FedCorrState:
        """One visit; the first of an iteration shuffles the sites, the last judges and corrects them."""
        turn = federation.round.index % self.visits_each
        if turn == 0:
            state = self.begin_iteration(state, federation)
        state = self.visit(state, federation, state.visits[turn])
        return self.judge(state, federation) if turn == self.visits_each - 1 else state

    def begin_iteration(self, state: FedCorrState, federation: Federation) -> FedCorrState:
        """S = Shuffle({1..N}) (line 3), dealt out to the iteration's visits."""
        t = len(state.lids) + 1
        present = [site for site in federation.sites if self.joins.get(site, 1) <= t]
        if t == 1 and len(present) < self.visits_each:
            federation.warn(
                f"method.visit_fraction = {self.visit_fraction} plans {self.visits_each} visits an iteration "
                f"for {len(present)} sites: the others pass idle, {1 / len(present):.3g} would avoid it"
            )
        draw = federation.random("shuffle")
        if self.stage1_replace:
            visits = _with_replacement(present, self.visit_fraction, self.visits_each, draw)
        else:
            order = [present[i] for i in draw.permutation(len(present))]
            visits = tuple(tuple(order[turn :: self.visits_each]) for turn in range(self.visits_each))
        return replace(state, visits=visits, lids=(*state.lids, {}))

    def visit(self, state: FedCorrState, federation: Federation, sites: tuple[str, ...]) -> FedCorrState:
        """Local training on eq. 5, the trained model's LID in the same visit (lines 5-8), averaging (eq. 3).

        A site that cannot be reached misses this iteration, no more.
        """
        if not sites:
            return state
        score = ScoreModel(
            None, self.lid_k, self.lid_form, self.lid_floor, self.sample_loss, self._statistics()
        )
        requests = {
            site: Train(state.weights, self.local_recipe(state.level.get(site, 0.0)), then=(score,))
            for site in sites
        }
        try:
            replies: Replies[Trained] = federation.ask(requests)
        except QuorumError as error:
            if state.lost + 1 >= LOST_VISITS:
                raise
            federation.warn(f"a visit brought no reply: {error}")
            return replace(state, lost=state.lost + 1)
        # drawn twice in one visit (stage1_replace): the site's model counts twice
        sizes = [reply.samples * sites.count(site) for site, reply in replies.items()]
        weights = average([reply.weights for reply in replies.values()], sizes)
        lids = (*state.lids[:-1], {**state.lids[-1], **_lids(replies)})
        return replace(state, weights=weights, lids=lids, lost=0)

    def local_recipe(self, level: float) -> Recipe:
        """L_CE on mixed samples + beta mu_hat_k ||w_k - w_g||, eq. 5; clean sites have no second term."""
        # `Proximal` of power 2 carries FedProx's 1/2, eq. 5 does not
        strength = self.beta * level * (2.0 if self.prox_power == 2 else 1.0)
        proximal = Proximal(self.prox_power, skip_first_batch=not self.prox_first_batch)
        objective = self._loss() + strength * proximal if strength > 0 else self._loss()
        return self.recipe(objective, mixup=self.mixup if self.mixup_stages != "none" else 0.0)

    def judge(self, state: FedCorrState, federation: Federation) -> FedCorrState:
        """Noisy sites by their LID scores (line 9), noise levels and correction at them (lines 10-13)."""
        noisy = self.find_noisy_sites(state, federation)
        asked = [site for site in noisy if site in state.lids[-1]]
        replies = self._correct(state, federation, asked) if asked else {}
        judged = state.lids[-1] if self.score == "latest" else _measured(state)
        level = {**state.level, **dict.fromkeys(judged, 0.0)}
        for site in noisy:
            # without an estimate of its own, a noisy site must not pass for clean
            level[site] = replies[site].level if site in replies else state.level.get(site, 0.0) or 1.0
        federation.record(iteration=len(state.lids), noisy_sites=noisy, **_counts(replies))
        federation.record_sites("noisy", {site: site in noisy for site in level})
        federation.record_sites("noise_level", level)
        return replace(state, noisy=tuple(noisy), level=level)

    def find_noisy_sites(self, state: FedCorrState, federation: Federation) -> list[str]:
        """The upper component of a mixture on the (cumulative) LIDs; a site never measured is in neither."""
        sites = federation.sites
        lids = np.array([[entry.get(site, np.nan) for site in sites] for entry in state.lids])
        scores = score_sites(lids, self.score)
        known = np.flatnonzero(~np.isnan(scores))
        federation.record_sites("lid", {s: float(v) for s, v in zip(sites, lids[-1]) if not np.isnan(v)})
        federation.record_sites("lid_score", {sites[i]: float(scores[i]) for i in known})
        if self.detection == "paper":
            return [sites[known[i]] for i in split_values(scores[known]).noisy]
        each = self.false_alarm / self.iterations
        draws = max(999, round(10 / each))  # enough to tell chances as small as `each`
        found = tested_split(scores[:, None], federation.random("tested"), each, draws=draws)
        federation.record(two_groups_p_value=found.p_value, tested=found.facts())
        federation.record_sites("noisy_probability", {sites[i]: float(found.probability[i]) for i in known})
        return [sites[i] for i in found.noisy]

    def _correct(
        self, state: FedCorrState, federation: Federation, sites: list[str]
    ) -> Mapping[str, Corrected]:
        request = CorrectLabels(
            state.weights,
            ratio=self.ratio,
            theta=self.theta,
            form=self.relabel_form,
            rank_by=self.rank_by,
            relabel=self.correction,
            sample_loss=self.sample_loss,
            augment=self._statistics(),
        )
        return _ask_noisy(federation, request, sites)

    # Stage 2, section 3.3, Algorithm 1 lines 14-18 --------------------------------------------------------

    def clean_sites(self, state: FedCorrState, federation: Federation) -> list[str]:
        """S_c = {k : mu_hat_k <= kappa} (line 14); if that is nobody, the sites with the lowest levels."""
        measured = [site for site in federation.sites if site in state.level]
        if not measured:
            return federation.sites
        levels = [state.level[site] for site in measured]
        chosen, _ = clean_set(levels, self.kappa, fallback=self._cohort(federation))
        return [measured[i] for i in chosen]

    def fine_tune(self, state: FedCorrState, federation: Federation) -> FedCorrState:
        """FedAvg among the clean sites (lines 15-16): gamma N of them a round, or all if they are fewer."""
        clean = self.clean_sites(state, federation)
        if federation.round.index == 0:
            federation.record(clean_sites=clean)
            if all(state.level.get(site, 1.0) > self.kappa for site in clean):
                federation.warn(f"no site's noise level is within kappa = {self.kappa}: the lowest are used")
        m = min(self._cohort(federation), len(clean))
        chosen = federation.choose(m / len(clean), among=clean)
        replies = train_round(federation, state.weights, self._later_recipe(), chosen)
        return replace(state, weights=size_weighted(replies))

    def relabel_the_rest(self, state: FedCorrState, federation: Federation) -> FedCorrState:
        """What the finetuned model is sure of becomes the label at the remaining sites (lines 17-18)."""
        sites = [site for site in federation.sites if site in state.level]
        levels = [state.level[site] for site in sites]
        mixture = [sites.index(site) for site in state.noisy]
        form: Form = "official" if self.relabel_after == "mixture" else "paper"
        rest = [sites[i] for i in relabel_sites(levels, self.kappa, mixture, form)]
        if not rest:
            federation.warn("no site is left to relabel after fine-tuning")
            return state
        request = RelabelConfident(
            state.weights, self.theta, self.relabel_form, self.sample_loss, self._statistics()
        )
        federation.record(**_counts(_ask_noisy(federation, request, rest)))
        return state

    # Stage 3, section 3.4, Algorithm 1 lines 19-21 --------------------------------------------------------

    def train_as_usual(self, state: FedCorrState, federation: Federation) -> FedCorrState:
        """FedAvg on all sites with the corrected labels, or another algorithm in its place (Fig. 4)."""
        recipe = self._later_recipe()
        recipe = replace(recipe, lr=self.usual_lr or recipe.lr)
        if self.usual == "feddyn":
            return self._dynamically(state, federation, recipe)
        if self.usual == "poc":
            chosen = choose_by_loss(federation, state.weights, self.fraction, self.poc_pool)
        else:
            chosen = federation.choose(self.fraction)
        replies = train_round(federation, state.weights, recipe, chosen)
        weights = median_of(replies) if self.usual == "median" else size_weighted(replies)
        return replace(state, weights=weights)

    def _dynamically(self, state: FedCorrState, federation: Federation, recipe: Recipe) -> FedCorrState:
        recipe = replace(recipe, lr=recipe.lr * self.feddyn_decay**federation.round.index, clip=10.0)
        dynamics = state.dynamics or begin_dynamics(state.weights, federation.model_buffers())
        chosen = federation.choose(self.fraction)
        weights, dynamics = DynamicRound(self.feddyn_alpha)(federation, dynamics, recipe, chosen)
        return replace(state, weights=weights, dynamics=dynamics)

    # What the stages share --------------------------------------------------------------------------------

    def _loss(self) -> Objective:
        return as_objective(CrossEntropy(adjust=self.adjust))

    def _later_recipe(self) -> Recipe:
        """Stages 2 and 3: no proximal term; mixup as released, or not as printed."""
        return self.recipe(self._loss(), mixup=self.mixup if self.mixup_stages == "all" else 0.0)

    def _statistics(self) -> Augment | None:
        return self.local.augment if self.statistics_on == "train" else None

    def _cohort(self, federation: Federation) -> int:
        """max(floor(gamma N), 1)"""
        return max(1, floor_count(self.fraction * len(federation.sites)))

    def tiny(self) -> FedCorr:
        return replace(
            self,
            iterations=2,
            visit_fraction=0.4,
            fine_tuning_rounds=1,
            usual_rounds=1,
            fraction=0.6,
            theta=0.2,
        )


def _with_replacement(
    present: list[str], fraction: float, visits: int, draw: np.random.Generator
) -> tuple[tuple[str, ...], ...]:
    """As released: each visit draws floor(fraction N) sites with replacement among those not drawn before."""
    left = list(present)
    dealt: list[tuple[str, ...]] = []
    for _ in range(visits):
        count = max(1, floor_count(fraction * len(present))) if left else 0
        drawn = tuple(left[i] for i in draw.integers(len(left), size=count)) if left else ()
        left = [site for site in left if site not in drawn]
        dealt.append(drawn)
    return tuple(dealt)


def _ask_noisy(
    federation: Federation, request: Request[Corrected], sites: list[str]
) -> Mapping[str, Corrected]:
    """Ask noisy sites to correct labels. One site alone that does not answer must not stop the federation."""
    try:
        return federation.ask(request, sites)
    except QuorumError:
        if len(sites) > 1:
            raise
        federation.warn(f"{sites[0]} did not answer: its labels stay as they are this time")
        return {}


def _lids(replies: Replies[Trained]) -> dict[str, float]:
    """LID scores by site, of those large enough to have one."""
    scores: dict[str, float] = {}
    for site, reply in replies.items():
        scored = reply.then[0]
        assert isinstance(scored, Scored)
        if scored.samples >= FEWEST_SAMPLES:
            scores[site] = scored.lid
    return scores


def _measured(state: FedCorrState) -> list[str]:
    """Sites with a LID of any iteration."""
    return list(dict.fromkeys(site for entry in state.lids for site in entry))


def _counts(replies: Mapping[str, Corrected]) -> dict[str, int]:
    """Totals over the sites, for the round's line."""
    return {
        "flagged_samples": sum(reply.flagged for reply in replies.values()),
        "relabelled_samples": sum(reply.relabelled for reply in replies.values()),
        "changed_labels": sum(reply.changed for reply in replies.values()),
    }
