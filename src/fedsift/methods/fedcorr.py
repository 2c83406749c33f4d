"""FedCorr: Xu, Chen, Quek and Chong, FedCorr: Multi-Stage Federated Learning for Label Noise Correction,
CVPR 2022."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from fedsift.contract import (
    ConfigError,
    Federation,
    Findings,
    Stage,
    Weights,
)
from fedsift.contract.registry import nearest
from fedsift.local.blind_labels import TellBlindShare
from fedsift.local.objective import CrossEntropy, Objective, Proximal, as_objective
from fedsift.local.recipe import Augment, Recipe
from fedsift.local.requests import Train
from fedsift.methods.base import (
    methods,
    tested_findings,
    train_round,
)
from fedsift.methods.fedcorr_parts import FedCorrState, ask_noisy, counts, lids_of, measured, with_replacement
from fedsift.methods.fedcorr_settings import FedCorrSettings
from fedsift.methods.fedcorr_site import Corrected, CorrectLabels, RelabelConfident, ScoreModel
from fedsift.methods.reference import beside_clean_sites, without_reference
from fedsift.signals.counting import floor_count
from fedsift.signals.late_joiners import score_sites
from fedsift.signals.mixture import split_values
from fedsift.signals.relabel import Form, clean_set, relabel_sites
from fedsift.signals.tested import tested_split


@methods.register("fedcorr")
@dataclass(frozen=True)
class FedCorr(FedCorrSettings):
    """Visit every site, judge its predictions' dimensionality, correct labels at noisy ones; train as usual.

    The defaults are what produced the published CIFAR-10 tables (the released code) where that is safe;
    `form = "printed"` is the method as printed, `form = "released"` the code to the letter.
    """

    def start(self, federation: Federation) -> FedCorrState:
        for site in self.joins:
            if site not in federation.facts:
                raise ConfigError(f"unknown site 'method.joins.{site}'.{nearest(site, federation.sites)}")
        return self.begin(federation, federation.initial_weights())

    def begin(self, federation: Federation, weights: Weights) -> FedCorrState:
        return FedCorrState(weights)

    def stages(self) -> list[Stage]:
        tune = self.tuning_rounds if self.fine_tuning else 0
        usual = self.last_rounds if self.usual_training else 0
        judge = (CorrectLabels, TellBlindShare) if self.detection == "tested" else (CorrectLabels,)
        visit, relabel = (Train, ScoreModel, *judge), (RelabelConfident,)
        relabels = 1 if self.fine_tuning and self.correction else 0
        [last] = self.last_method().stages()
        return [
            Stage("pre-processing", self.iterations * self.visits_each, self.pre_process, visit),
            Stage("fine-tuning", tune, self.fine_tune, (Train,)),
            Stage("relabel the rest", relabels, self.relabel_the_rest, relabel, trains=False),
            Stage("usual training", usual, self.train_as_usual, last.asks),
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
                f"method.visit_fraction = {self.visit_share} plans {self.visits_each} visits an iteration "
                f"for {len(present)} sites: the others pass idle, {1 / len(present):.3g} would avoid it"
            )
        draw = federation.random("shuffle")
        if self.stage1_replace:
            visits = with_replacement(present, self.visit_share, self.visits_each, draw)
        else:
            visits = self.deal(present, draw)
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
        replies = self.ask_in_turn(state, federation, requests)
        if replies is None:
            return replace(state, lost=state.lost + 1)
        # drawn twice in one visit (stage1_replace): the site's model counts twice
        sizes = [reply.samples * sites.count(site) for site, reply in replies.items()]
        weights = self.merge([reply.weights for reply in replies.values()], sizes, state.weights)
        lids = (*state.lids[:-1], {**state.lids[-1], **lids_of(replies)})
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
        found = self.find_noisy_sites(state, federation)
        if self.detection == "tested":
            found = beside_clean_sites(found, federation, state.weights)
            without_reference(found, federation)
        noisy = found.noisy
        asked = [site for site in noisy if site in state.lids[-1]]
        replies = self._correct(state, federation, asked) if asked else {}
        judged = state.lids[-1] if self.score == "latest" else measured(state)
        level = {**state.level, **dict.fromkeys(judged, 0.0), **found.level}
        for site in noisy:
            # without an estimate of its own, a noisy site must not pass for clean
            level[site] = replies[site].level if site in replies else state.level.get(site, 0.0) or 1.0
        unmeasured = tuple(site for site in federation.sites if site not in level)
        federation.find(replace(found, level=level, unmeasured=unmeasured))
        federation.record(iteration=len(state.lids), **counts(replies))
        return replace(state, noisy=noisy, level=level)

    def find_noisy_sites(self, state: FedCorrState, federation: Federation) -> Findings:
        """The upper component of a mixture on the (cumulative) LIDs; a site never measured is in neither."""
        sites = federation.sites
        lids = np.array([[entry.get(site, np.nan) for site in sites] for entry in state.lids])
        scores = score_sites(lids, self.score)
        known = np.flatnonzero(~np.isnan(scores))
        federation.record_sites("lid", {s: float(v) for s, v in zip(sites, lids[-1]) if not np.isnan(v)})
        federation.record_sites("lid_score", {sites[i]: float(scores[i]) for i in known})
        if self.detection != "tested":
            return Findings(tuple(sites[known[i]] for i in split_values(scores[known]).noisy))
        each = self.false_alarm / self.iterations
        draws = max(999, round(10 / each))  # enough to tell chances as small as `each`
        found = tested_split(scores[:, None], federation.random("tested"), each, draws=draws)
        return tested_findings(sites, found)

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
            by=self.relabel_by,
        )
        return ask_noisy(federation, request, sites)

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
        return replace(state, weights=self.merged(replies, state.weights))

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
            state.weights,
            self.theta,
            self.relabel_form,
            self.sample_loss,
            self._statistics(),
            self.relabel_by,
        )
        federation.record(**counts(ask_noisy(federation, request, rest)))
        return state

    # Stage 3, section 3.4, Algorithm 1 lines 19-21 --------------------------------------------------------

    def train_as_usual(self, state: FedCorrState, federation: Federation) -> FedCorrState:
        """FedAvg on all sites with the corrected labels, or another method in its place (Fig. 4)."""
        method = self.last_method()
        usual = method.train(state.usual or method.begin(federation, state.weights), federation)
        return replace(state, weights=usual.weights, usual=usual)

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
        return max(1, floor_count(self.gamma * len(federation.sites)))

    def tiny(self) -> FedCorr:
        short = replace(self, iterations=2, visit_fraction=0.4, fine_tuning_rounds=1, usual_rounds=1)
        return replace(short, fraction=0.6, theta=0.2)
