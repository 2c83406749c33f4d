"""FedCorr: Xu, Chen, Quek and Chong, FedCorr: Multi-Stage Federated Learning for Label Noise Correction,
CVPR 2022."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from fedsift.core.errors import ConfigError, QuorumError
from fedsift.core.numbers import floor_count
from fedsift.core.ranges import AtLeastOne, AtLeastZero, Count, Rate, Share
from fedsift.core.registry import nearest
from fedsift.detection.group_test import tested_split
from fedsift.detection.indicators import Form as LidForm
from fedsift.detection.indicators import site_lid
from fedsift.detection.label_rates import lone_posterior
from fedsift.detection.mixtures import split_values
from fedsift.formulas.losses import sample_loss
from fedsift.methods._base import (
    EstimateBlindShare,
    OneStage,
    beside_clean_sites,
    methods,
    mixture_incompatibilities,
    one_stage,
    oracle_note,
    tested_findings,
    tested_for_own_labels,
    train_round,
    without_reference,
)
from fedsift.methods._visits_in_turn import InTurnState, VisitsInTurn
from fedsift.protocol.federation import Federation, FederationFacts, Incompatibility, Replies
from fedsift.protocol.findings import Findings
from fedsift.protocol.messages import Reply, Request, SiteFacts, Weights, disclosed
from fedsift.protocol.method import Stage, State
from fedsift.protocol.site import Site
from fedsift.training.objective import CrossEntropy, Objective, Proximal, as_objective
from fedsift.training.predict import site_logits
from fedsift.training.recipe import Augment, Recipe
from fedsift.training.requests import Train, Trained, count_refusal

# A site's score from its LIDs of several iterations, also when it missed some (FedCorr section 3.2
# and 5)
# ------------------------------------------------------------------------------

Score = Literal["completed", "cumulative", "mean", "latest"]


def standing(lids: NDArray[np.float64]) -> NDArray[np.float64]:
    """Where a site stood among the others, on average over the iterations that it was visited in: `[T, S]
    -> [S]`.

    Each iteration's LIDs are centred and scaled over the sites visited in it, so that iterations of small and
    of large LIDs count alike. NaN for a site that was never visited; 0 where an iteration separates no sites.
    """
    visited = ~np.isnan(lids)
    count = visited.sum(axis=1, keepdims=True)
    values = np.where(visited, lids, 0.0)
    centre = values.sum(axis=1, keepdims=True) / np.maximum(count, 1)
    away = np.where(visited, lids - centre, 0.0)
    spread = np.sqrt((away**2).sum(axis=1, keepdims=True) / np.maximum(count, 1))
    scaled = np.divide(away, spread, out=np.zeros_like(away), where=spread > 0)
    visits = visited.sum(axis=0)
    return np.where(visits > 0, scaled.sum(axis=0) / np.maximum(visits, 1), np.nan)


def complete(lids: ArrayLike) -> NDArray[np.float64]:
    """Fill the iterations that a site missed by the LID that its standing would have had there, `[T, S]`.

    A missed iteration t counts as mean_t + standing * sd_t over the sites visited in t. Nothing is filled
    when every site took part; an iteration without any visit stays NaN, and so does a site never visited.
    """
    table = np.asarray(lids, dtype=np.float64)
    visited = ~np.isnan(table)
    where = standing(table)
    count = np.maximum(visited.sum(axis=1, keepdims=True), 1)
    values = np.where(visited, table, 0.0)
    centre = values.sum(axis=1, keepdims=True) / count
    spread = np.sqrt(np.where(visited, (table - centre) ** 2, 0.0).sum(axis=1, keepdims=True) / count)
    filled = np.where(visited, table, centre + spread * where)
    filled[~visited.any(axis=1)] = np.nan
    return filled


def score_sites(lids: ArrayLike, kind: Score = "completed") -> NDArray[np.float64]:
    """One score a site from its LIDs `[T, S]`, NaN where it was not visited: `[S]`, NaN for a site never
    visited.

    "cumulative": the sum over the iterations it was visited in, as published. "completed": the same sum with
    missed iterations filled in (`complete`); equal to "cumulative" when nobody missed any. "mean": the mean
    over its visits, which still compares a newcomer's late LIDs with the others' early ones. "latest": this
    iteration's LID alone (Fig. 3, left).
    """
    table = np.asarray(lids, dtype=np.float64)
    visited = ~np.isnan(table)
    if kind == "latest":
        return np.asarray(table[-1])
    if kind == "cumulative":
        total = np.where(visited, table, 0.0).sum(axis=0)
    elif kind == "mean":
        total = np.where(visited, table, 0.0).sum(axis=0) / np.maximum(visited.sum(axis=0), 1)
    elif kind == "completed":
        total = np.nansum(complete(table), axis=0)
    else:
        raise ConfigError(f"score = '{kind}': choose 'completed', 'cumulative', 'mean' or 'latest'")
    return np.where(visited.any(axis=0), total, np.nan)


# FedCorr's label correction: who is relabelled, by how much, and to what (eq
# ------------------------------------------------------------------------------

Form = Literal["paper", "official"]


def clean_set(
    noise: ArrayLike, kappa: float, *, strict: bool = False, fallback: int = 1
) -> tuple[list[int], list[int]]:
    """Sites to finetune on and the remaining ones, ascending: estimated noise <= kappa (section 3.3).

    strict: < kappa instead, as in Alg. 1 line 14. If no site qualifies, the `fallback` ones with the lowest
    estimate are taken, lower index first.
    """
    levels = np.asarray(noise, dtype=np.float64)
    chosen = np.flatnonzero(levels < kappa if strict else levels <= kappa)
    if not len(chosen):
        chosen = np.sort(np.argsort(levels, kind="stable")[:fallback])
    remaining = np.setdiff1d(np.arange(len(levels)), chosen)
    return chosen.tolist(), remaining.tolist()


def relabel_sites(noise: ArrayLike, kappa: float, mixture_noisy: Sequence[int], form: Form = "official") -> list[int]:
    """Sites relabelled after finetuning, ascending.

    "paper": estimated noise > kappa (section 3.3). "official": the last noisy set of the mixture on LID.
    """
    if form == "paper":
        return np.flatnonzero(np.asarray(noise, dtype=np.float64) > kappa).tolist()
    if form == "official":
        return sorted(int(site) for site in mixture_noisy)
    raise ConfigError(f"relabel_after_finetuning = '{form}': choose 'paper' or 'official'")


@dataclass(frozen=True)
class Relabelled:
    """New labels of a site and how they came about; all index lists are positions in the site."""

    labels: NDArray[np.int64]
    """`[n]`, relabelled entries replaced."""
    candidates: NDArray[np.int64]
    """Samples whose confidence was tested, by falling loss."""
    relabelled: NDArray[np.int64]
    """Those that passed, ascending; some may keep their label because the model agrees with it."""
    changed: NDArray[np.int64]
    """Those whose label is another one now, ascending."""


def _take_confident(
    labels: NDArray[np.int64],
    probabilities: NDArray[np.float64],
    pool: NDArray[np.int64],
    theta: float,
    form: Form,
) -> Relabelled:
    top = probabilities[pool].max(axis=1) if len(pool) else np.zeros(0)
    passed = np.sort(pool[top >= theta if form == "paper" else top > theta])
    new = labels.copy()
    new[passed] = probabilities[passed].argmax(axis=1) if len(passed) else new[passed]
    return Relabelled(new, pool, passed, np.flatnonzero(new != labels).astype(np.int64))


def _checked(labels: ArrayLike, probabilities: ArrayLike, form: Form) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    if form not in ("paper", "official"):
        raise ConfigError(f"relabel form = '{form}': choose 'paper' or 'official'")
    return np.asarray(labels, dtype=np.int64), np.asarray(probabilities, dtype=np.float64)


def relabel(
    labels: ArrayLike,
    losses: ArrayLike,
    noisy: ArrayLike,
    probabilities: ArrayLike,
    ratio: float,
    theta: float,
    form: Form = "official",
) -> Relabelled:
    """Give the most suspicious samples the global model's label where it is confident (eq. 6-7).

    labels, losses `[n]`; noisy: positions that the mixture calls noisy (D_n); probabilities `[n, K]` of the
    global model.
    "paper": the floor(ratio |D_n|) largest losses inside D_n, relabelled if max p >= theta.
    "official": as many, counted as int(n (|D_n| / n) ratio), from the whole site, if max p > theta.
    """
    given, p = _checked(labels, probabilities, form)
    values, members = np.asarray(losses, dtype=np.float64), np.sort(np.asarray(noisy, dtype=np.int64))
    if form == "paper":
        count, pool = floor_count(ratio * len(members)), members
    else:
        n = len(given)
        count, pool = (int(n * (len(members) / n) * ratio) if n else 0), np.arange(n)
    ranked = pool[np.argsort(-values[pool], kind="stable")][:count]
    return _take_confident(given, p, ranked.astype(np.int64), theta, form)


def relabel_all(labels: ArrayLike, probabilities: ArrayLike, theta: float, form: Form = "official") -> Relabelled:
    """Every confident sample takes the global model's label, whatever its loss (section 3.3)."""
    given, p = _checked(labels, probabilities, form)
    return _take_confident(given, p, np.arange(len(given)), theta, form)


# What a site does for FedCorr: score its model, split and correct its labels
# ------------------------------------------------------------------------------

NAME = "fedcorr"
LOSSES = "fedcorr losses"
"""The notebook page of the per-sample losses of the last visit, under the labels of that time."""
HIGHEST_LID = 100.0
"""A guarded LID is no larger: equidistant neighbours would give a million and decide for a site."""

SampleLoss = Literal["ce_on_softmax", "ce"]
Belief = Literal["argmax", "posterior"]
"""What eq. 7 reads a new label from: the global model's prediction, or the audit's posterior of the true label."""


def losses_of(logits: Tensor, labels: Tensor, kind: str) -> Tensor:
    """Per-sample losses, float64 `[n]`."""
    target = torch.nn.functional.one_hot(labels, logits.shape[-1]).double()
    return sample_loss(logits.double(), target, kind)


@dataclass(frozen=True)
class Scored(Reply):
    """All that the server learns of a site's predictions: one number."""

    lid: float = disclosed(
        "mean local intrinsic dimensionality of the local model's predictions", "score", least=0.0, most=1e9
    )
    samples: int = disclosed("how many samples it was measured on", "count")

    def refusal(self, request: ScoreModel, facts: SiteFacts) -> str | None:
        if not isinstance(self.lid, float) or self.lid < 0:
            return f"lid = {self.lid!r} is no dimensionality"
        return count_refusal("samples", self.samples, facts.samples)


@dataclass(frozen=True)
class ScoreModel(Request[Scored]):
    """LID score of the model just trained (eq. 2, Alg. 1 line 7); per-sample losses stay in the notebook."""

    reply_type: ClassVar[type[Reply]] = Scored

    weights: Weights | None = None
    k: int = 20
    form: LidForm = "guarded"
    floor: float = 0.0
    sample_loss: SampleLoss = "ce_on_softmax"
    augment: Augment | None = None
    """Measure on augmented images, as released; None measures on the images themselves."""

    def answer(self, site: Site) -> Scored:
        logits = site_logits(site, site.weights_for(self.weights), augment=self.augment)
        # float32: how many predictions saturate to the same vector, and so score 0, depends on the precision
        rows = torch.softmax(logits.float(), -1).numpy()
        highest = HIGHEST_LID if self.form == "guarded" else None
        score = site_lid(rows, self.k, self.form, floor=self.floor, highest=highest)
        site.notebook[LOSSES] = losses_of(logits, site.labels, self.sample_loss)
        # a new measurement ends the suspicions of the last one; only a changed label stays marked
        site.keep_evidence(
            NAME,
            suspicion=losses_of(logits, site.given, self.sample_loss),
            flagged=site.labels != site.given,
        )
        return Scored(score, len(site.samples))


@dataclass(frozen=True)
class Corrected(Reply):
    """How much a site found and changed; which samples stays its secret."""

    flagged: int = disclosed("how many samples it holds suspect: its estimated noise level; 0 below its floor", "count")
    relabelled: int = disclosed("how many of them took the global model's label", "count")
    changed: int = disclosed("how many labels are another one now", "count")
    samples: int = disclosed("how many samples the site has", "count")

    def refusal(self, request: CorrectLabels | RelabelConfident, facts: SiteFacts) -> str | None:
        return (
            count_refusal("samples", self.samples, facts.samples)
            or count_refusal("flagged", self.flagged, self.samples, least=0)
            or count_refusal("relabelled", self.relabelled, self.samples, least=0)
            or count_refusal("changed", self.changed, self.relabelled, least=0)
        )

    @property
    def level(self) -> float:
        """mu_hat_k = |D_n| / |D_k| (Alg. 1 line 12)."""
        return self.flagged / self.samples


@dataclass(frozen=True)
class CorrectLabels(Request[Corrected]):
    """Split the site's samples by their losses, relabel the most suspicious ones (eqs. 6-7, lines 11-13)."""

    reply_type: ClassVar[type[Reply]] = Corrected

    weights: Weights
    """f_G: the global model at the end of the iteration."""
    ratio: float = 0.5
    theta: float = 0.5
    form: Form = "official"
    rank_by: Literal["local", "global"] = "local"
    relabel: bool = True
    sample_loss: SampleLoss = "ce_on_softmax"
    augment: Augment | None = None
    by: Belief = "argmax"

    def answer(self, site: Site) -> Corrected:
        losses = site.notebook[LOSSES].numpy()
        noisy = split_values(losses).noisy
        if not self.relabel:
            site.keep_evidence(NAME, flagged=_marks(site.labels, site.given, noisy))
            return Corrected(site.suppress_small(len(noisy)), 0, 0, len(site.samples))
        logits = site_logits(site, self.weights, augment=self.augment)
        if self.rank_by == "global":
            losses = losses_of(logits, site.labels, self.sample_loss).numpy()
        labels_to_train_on = _believed(site, logits, self.by)
        result = relabel(site.labels.numpy(), losses, noisy, labels_to_train_on, self.ratio, self.theta, self.form)
        return _apply(site, result, noisy, labels_to_train_on)


@dataclass(frozen=True)
class RelabelConfident(Request[Corrected]):
    """Every sample that the finetuned model is sure of takes its label (section 3.3, Alg. 1 lines 17-18)."""

    reply_type: ClassVar[type[Reply]] = Corrected

    weights: Weights
    theta: float = 0.5
    form: Form = "official"
    sample_loss: SampleLoss = "ce_on_softmax"
    augment: Augment | None = None
    by: Belief = "argmax"

    def answer(self, site: Site) -> Corrected:
        logits = site_logits(site, self.weights, augment=self.augment)
        labels_to_train_on = _believed(site, logits, self.by)
        result = relabel_all(site.labels.numpy(), labels_to_train_on, self.theta, self.form)
        site.keep_evidence(NAME, suspicion=losses_of(logits, site.given, self.sample_loss))
        return _apply(site, result, result.changed, labels_to_train_on)


def _believed(site: Site, logits: Tensor, by: Belief) -> NDArray[np.float64]:
    """What the true label is `[n, K]`: the model's word, or with it the given label's and how often the site errs."""
    probabilities = np.asarray(torch.softmax(logits.double(), -1).numpy())
    # as it was given: a label that the method wrote is the model's word once more
    return probabilities if by == "argmax" else lone_posterior(probabilities, site.given.numpy())


def _apply(
    site: Site, result: Relabelled, flagged: NDArray[np.int64], labels_to_train_on: NDArray[np.float64]
) -> Corrected:
    """Believe the new labels and keep, at the site, why."""
    labels = torch.from_numpy(result.labels)
    marks = _marks(labels, site.given, flagged)
    site.keep_evidence(NAME, labels=labels, flagged=marks, proposed=torch.from_numpy(labels_to_train_on.argmax(-1)))
    suspect, relabelled, changed = map(len, (flagged, result.relabelled, result.changed))
    return Corrected(
        site.suppress_small(suspect),
        site.suppress_small(relabelled),
        site.suppress_small(changed),
        len(site.samples),
    )


def _marks(labels: Tensor, given: Tensor, flagged: NDArray[np.int64]) -> Tensor:
    """bool `[n]`: under suspicion now, or no longer the given label."""
    marks = labels != given
    marks[torch.from_numpy(flagged)] = True
    return marks


# FedCorr's settings: the paper's symbols, its printed and released forms, and what follows from the
# federation
# ------------------------------------------------------------------------------

SITES_A_ROUND = 10
"""gamma N of the paper's CIFAR-10 federation: a smaller one trains with all of its sites."""
FINE_TUNINGS, USUAL_TRAININGS = 50, 45
"""How often a site trains in stages 2 and 3 of the paper: T_2 gamma = 500 x 0.1 and T_3 gamma = 450 x 0.1."""


@dataclass(frozen=True)
class FedCorrSettings(VisitsInTurn):
    """Everything that can be set; `FedCorr` is the algorithm."""

    summary: ClassVar[str] = "Finds noisy sites by LID, corrects their labels there, then trains as usual"
    paper: ClassVar[str] = "Xu et al. 2022 (CVPR)"
    forms: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "printed": {
            "sample_loss": "ce",
            "prox_power": 2,
            "prox_first_batch": True,
            "mixup_stages": "first",
            "relabel_form": "paper",
            "rank_by": "global",
            "relabel_after": "above kappa",
        },
        "released": {
            "stage1_replace": True,
            "statistics_on": "train",
            "lid_form": "official",
            "score": "cumulative",
        },
        "la": {"adjust": 1.0},
    }
    lasting: ClassVar[Mapping[str, tuple[str, ...]]] = {"usual": ("rounds", "fraction")}
    renamed: ClassVar[Mapping[str, str]] = {
        "usual_lr": "usual = {name = ..., train = {lr = ...}}",
        "feddyn_alpha": 'usual = {name = "feddyn", alpha = ...}',
        "feddyn_decay": 'usual = {name = "feddyn", decay = ...}',
        "poc_pool": 'usual = {name = "poc", pool = ...}',
        "usual": 'a table such as usual = {name = "fedmedian"}',
    }

    stage1_replace: bool = False
    """Draw a visit's sites with replacement, as released: with several sites a visit, some are missed."""
    fine_tuning_rounds: Count | None = None
    """T_2: rounds on the clean sites; by itself 50 / gamma (500 in the paper)."""
    usual_rounds: Count | None = None
    """T_3: rounds on all sites; by itself 45 / gamma (450 in the paper)."""
    fraction: Share | None = None
    """gamma: share of all sites that train in a round of the last two stages; by itself 10 sites, or all."""

    beta: AtLeastZero = 5.0
    """beta: weight of the proximal term beta mu_hat_k ||w - w_g||, eq. 5; 0 leaves it out (Table 6)."""
    prox_power: Literal[1, 2] = 1
    """The norm (released code) or its square (paper, eq. 5)."""
    prox_first_batch: bool = False
    """Keep the proximal term on the first batch of every local epoch; the released code leaves it out."""
    mixup: AtLeastZero = 1.0
    """alpha of mixup's Beta(alpha, alpha)."""
    mixup_stages: Literal["all", "first", "none"] = "all"
    """Where mixup is on: everywhere (released code), in the first stage (paper), nowhere (Table 6)."""
    adjust: AtLeastZero = 0.0
    """tau: strength of logit adjustment in local training; 1 is FedCorr+LA of FedNoRo's tables (`form = "la"`)."""

    lid_k: AtLeastOne = 20
    """k: neighbours of the LID estimate, eq. 2."""
    lid_form: LidForm = "guarded"
    """"guarded" counts the neighbours there are and caps estimates; "official" and "paper" as they are."""
    lid_floor: AtLeastZero = 0.0
    """Smaller distances count as this one. 0, as released: a prediction that has a duplicate scores 0."""
    score: Score = "completed"
    """What the mixture over sites sees: the cumulative LID with missed iterations filled in; as published
    ("cumulative"), which lets a newcomer pass as clean; "mean"; or the "latest" LID (Fig. 3 left)."""
    joins: dict[str, int] = field(default_factory=dict)
    """Iteration (from 1) from which a site takes part in the first stage; the others do from the start."""
    detection: Literal["paper", "tested"] | None = None
    """Two components always ("paper"), or only where one group is refuted ("tested", by itself for own labels)."""
    false_alarm: Rate = 0.05
    """Of "tested": chance of naming any site in a clean federation, over all iterations together."""
    statistics_on: Literal["eval", "train"] = "eval"
    """Measure on the images as they are, or augmented as in training (the released code)."""

    sample_loss: SampleLoss = "ce_on_softmax"
    """Loss that splits and ranks a site's samples: of the softmax's softmax (released code) or plain."""
    correction: bool = True
    """Relabel at all (Table 6)."""
    ratio: Rate = 0.5
    """pi: share of the noisy samples, by falling loss, that may be relabelled in an iteration."""
    theta: Rate = 0.5
    """theta: confidence of the global model above which it relabels, eq. 7."""
    relabel_form: Form = "official"
    """"official" ranks the whole site and needs p > theta; "paper" ranks D_n and needs p >= theta."""
    rank_by: Literal["local", "global"] = "local"
    """Rank by the local model's losses (released code) or the global model's (paper, eq. 6)."""

    relabel_by: Belief = "argmax"
    """What eq. 7 reads a new label from: the global model's prediction, or (ours) the audit's posterior of the true
    label, which also weighs the given label and how often the site errs."""

    fine_tuning: bool = True
    """Stage 2 at all (Table 6)."""
    kappa: Rate = 0.1
    """kappa: largest estimated noise level of a site to fine-tune on."""
    relabel_after: Literal["mixture", "above kappa"] = "mixture"
    """Sites relabelled after fine-tuning: the last mixture's noisy ones (released code), or those with
    mu_hat > kappa (paper)."""

    usual_training: bool = True
    """Stage 3 at all (Table 6)."""
    usual: OneStage | None = None
    """Method of stage 3, a table with its `name` (Fig. 4); its rounds and fraction are those above, its recipe is
    the study's with `train = {...}` over it. By itself FedAvg, with `adjust` and `aggregate` of the other stages."""

    local: Recipe = field(default_factory=lambda: Recipe(epochs=5, batch_size=10, lr=0.03, momentum=0.5), kw_only=True)

    def completed(self, facts: FederationFacts) -> Self:
        """One site a visit; ten sites a round of the later stages, or all where there are fewer, and as many
        rounds as let each site train as often as in the paper."""
        done = replace(super().completed(facts), detection=tested_for_own_labels(self.detection, facts))
        if facts.sites is None:
            return done
        gamma = min(1.0, SITES_A_ROUND / facts.sites) if self.fraction is None else self.fraction
        return replace(
            done,
            fraction=gamma,
            fine_tuning_rounds=replace(self, fraction=gamma).tuning_rounds,
            usual_rounds=replace(self, fraction=gamma).last_rounds,
        )

    def incompatibilities(self, facts: FederationFacts) -> Iterator[Incompatibility]:
        yield from super().incompatibilities(facts)
        yield from mixture_incompatibilities(facts)
        if facts.classes == 2:
            yield Incompatibility(
                "two classes leave its measure blind: predictions lie on a line, their dimensionality is "
                "about 1 at every site, clean or noisy"
            )
        if any(samples <= self.lid_k for samples in facts.samples):
            yield Incompatibility(f"sites with {self.lid_k} samples or fewer give a coarse LID")

    @property
    def oracle(self) -> str | None:
        return oracle_note(super().oracle, self.usual.oracle if self.usual is not None else None)

    @property
    def gamma(self) -> float:
        return 0.1 if self.fraction is None else self.fraction

    @property
    def tuning_rounds(self) -> int:
        """T_2."""
        wanted = self.fine_tuning_rounds
        return round(FINE_TUNINGS / self.gamma) if wanted is None else wanted

    @property
    def last_rounds(self) -> int:
        """T_3."""
        return round(USUAL_TRAININGS / self.gamma) if self.usual_rounds is None else self.usual_rounds

    def last_method(self) -> OneStage:
        """The method of stage 3, with this one's rounds, fraction and mixup, and its recipe unless it has its own."""
        rule: dict[str, Any] = {"aggregate": self.aggregate, "hostile": self.hostile}
        usual = self.usual or (
            one_stage("fedla", tau=self.adjust, **rule) if self.adjust else one_stage("fedavg", **rule)
        )
        local = usual.local if usual.local != type(usual)().local else self.local
        local = replace(local, mixup=self.mixup if self.mixup_stages == "all" else 0.0)
        # a stage of no rounds is left out by `stages`; a method of no rounds is refused
        return replace(usual, rounds=max(self.last_rounds, 1), fraction=self.gamma, local=local)


# FedCorr's state, and what its stages share: dealing out visits, asking noisy sites, reading replies
# ------------------------------------------------------------------------------

FEWEST_SAMPLES = 3
"""A smaller site has no dimensionality to speak of: it trains along, but is neither judged nor corrected."""


@dataclass(frozen=True)
class FedCorrState(InTurnState):
    """The global model, and what is known of the sites."""

    lids: tuple[dict[str, float], ...] = ()
    """LID scores by site, one entry for each iteration begun."""
    noisy: tuple[str, ...] = ()
    """S_n: the noisy sites of the last mixture over sites."""
    level: dict[str, float] = field(default_factory=dict)
    """mu_hat_k: estimated noise levels of the sites that were measured."""
    usual: State | None = None
    """State of the method of the last stage, once that has begun."""


def with_replacement(
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


def ask_noisy(federation: Federation, request: Request[Corrected], sites: list[str]) -> Mapping[str, Corrected]:
    """Ask noisy sites to correct labels. One site alone that does not answer must not stop the federation."""
    try:
        return federation.ask(request, sites)
    except QuorumError:
        if len(sites) > 1:
            raise
        federation.warn(f"{sites[0]} did not answer: its labels stay as they are this time")
        return {}


def lids_of(replies: Replies[Trained]) -> dict[str, float]:
    """LID scores by site, of those large enough to have one."""
    scores: dict[str, float] = {}
    for site, reply in replies.items():
        scored = reply.then[0]
        assert isinstance(scored, Scored)
        if scored.samples >= FEWEST_SAMPLES:
            scores[site] = scored.lid
    return scores


def measured(state: FedCorrState) -> list[str]:
    """Sites with a LID of any iteration."""
    return list(dict.fromkeys(site for entry in state.lids for site in entry))


def counts(replies: Mapping[str, Corrected]) -> dict[str, int]:
    """Totals over the sites, for the round's line."""
    return {
        "flagged_samples": sum(reply.flagged for reply in replies.values()),
        "relabelled_samples": sum(reply.relabelled for reply in replies.values()),
        "changed_labels": sum(reply.changed for reply in replies.values()),
    }


@methods.register("fedcorr")
@dataclass(frozen=True)
class FedCorr(FedCorrSettings):
    """Visit every site, judge its predictions' dimensionality, correct labels at noisy ones; train as usual.

    The defaults are what produced the published CIFAR-10 tables (the released code) where that is safe;
    `form = "printed"` is the method as printed, `form = "released"` the code exactly.
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
        judge = (CorrectLabels, EstimateBlindShare) if self.detection == "tested" else (CorrectLabels,)
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
        score = ScoreModel(None, self.lid_k, self.lid_form, self.lid_floor, self.sample_loss, self._statistics())
        requests = {
            site: Train(state.weights, self.local_recipe(state.level.get(site, 0.0)), then=(score,)) for site in sites
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
        draws = max(999, round(10 / each))  # enough for probabilities as small as `each`
        found = tested_split(scores[:, None], federation.random("tested"), each, draws=draws)
        return tested_findings(sites, found)

    def _correct(self, state: FedCorrState, federation: Federation, sites: list[str]) -> Mapping[str, Corrected]:
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
