"""FedClean: Jiang and Zhang, FedClean: A General Robust Label Noise Correction for Federated Learning, ICML 2025."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from torch.nn import functional as F

from fedsift.core.ranges import AtLeastOne, AtLeastZero, Count, Range, Rate, Share
from fedsift.detection.mixtures import split_values
from fedsift.methods._base import Averaging, ask_to_train, methods
from fedsift.methods._two_networks import TrainPair
from fedsift.methods.co_teaching import CoTeaching
from fedsift.methods.fedcorr import relabel
from fedsift.methods.joint_opt import JointOpt
from fedsift.protocol.federation import Federation, Replies
from fedsift.protocol.findings import Findings
from fedsift.protocol.messages import Reply, Request, SiteFacts, Weights, disclosed
from fedsift.protocol.method import Stage, State
from fedsift.protocol.site import Site
from fedsift.training.crossfit import part_of
from fedsift.training.job import TrainingJob, TrainingResult
from fedsift.training.objective import CrossEntropy
from fedsift.training.predict import site_logits
from fedsift.training.recipe import Recipe
from fedsift.training.requests import Train, Trained, TrainingRequest, count_refusal

# Labels that a site's own model disputes, settled by the global one: FedClean's two corrections
# ------------------------------------------------------------------------------

FEWEST = 10
"""Fewer values are not parted in two."""
GAP = math.log(2)
"""Two groups whose means are nearer than this are one: a mixture parts any values, those of right labels too."""


@dataclass(frozen=True)
class SettledDisputes:
    """What became of a site's disputed labels; positions are in the site, ascending."""

    labels: NDArray[np.int64]
    """All labels of the site, `[n]`, the corrected ones replaced."""
    corrected: NDArray[np.int64]
    cleared: NDArray[np.int64]
    """Disputed, but the given label may well be right."""
    score: NDArray[np.float64]
    """By what they were judged, `[n]`; NaN where a label was not looked at."""


def collaborative_loss(log_p: ArrayLike, given: ArrayLike, local: ArrayLike) -> NDArray[np.float64]:
    """L_co = CE(p, y) - CE(p, y_bar) = log p_{y_bar} - log p_y, `[n, K], [n], [n] -> [n]` (FedClean eq. 15).

    From log p, because p_y underflows where it matters most.
    """
    rows, labels, said = np.asarray(log_p, dtype=np.float64), np.asarray(given), np.asarray(local)
    every = np.arange(len(rows))
    return np.asarray(rows[every, said] - rows[every, labels])


def settle_by_agreement(
    log_p: ArrayLike, given: ArrayLike, local: ArrayLike, disputed: ArrayLike, ratio: float
) -> SettledDisputes:
    """Sub-stage I: where local and global model agree against the given label, the surest take their label.

    log_p `[n, K]` of the global model, local: y_bar, disputed: bool, all `[n]`. The disputed samples with argmax p =
    y_bar are parted by L_co, and the floor(ratio |G1|) largest of the upper part G1 become y_bar (eq. 16).
    """
    rows, labels = np.asarray(log_p, dtype=np.float64), np.asarray(given, dtype=np.int64)
    agreed = np.asarray(disputed, dtype=np.bool_) & (rows.argmax(axis=1) == np.asarray(local))
    pool = np.flatnonzero(agreed)
    score = np.full(len(labels), np.nan)
    score[pool] = collaborative_loss(rows[pool], labels[pool], np.asarray(local)[pool])
    upper = upper_group(score[pool])
    if upper is None:
        return SettledDisputes(labels, _nobody(), _nobody(), score)
    done = relabel(labels, score, pool[upper], np.exp(rows), ratio, 0.0, "paper")
    return SettledDisputes(done.labels, done.relabelled, _nobody(), score)


def settle_by_model(log_p: ArrayLike, given: ArrayLike, rest: ArrayLike, ratio: float, sure: float) -> SettledDisputes:
    """Sub-stage II: of what is left, the global model clears labels of small loss and answers where it is sure.

    rest: bool `[n]`. Parted by L_an = CE(p, y): the lower part H2 is cleared; of the upper part H1 those among the
    floor(ratio |H1|) largest with max p >= sure become argmax p (eqs. 17-18). Where there is one group alone, it is
    cleared if on average the model holds its labels for likelier than all others together, else it stays as it is.
    """
    rows, labels = np.asarray(log_p, dtype=np.float64), np.asarray(given, dtype=np.int64)
    pool = np.flatnonzero(np.asarray(rest, dtype=np.bool_))
    score = np.full(len(labels), np.nan)
    score[pool] = -rows[pool, labels[pool]]
    upper = upper_group(score[pool])
    if upper is None:
        fine = len(pool) > 0 and float(score[pool].mean()) < math.log(2)
        return SettledDisputes(labels, _nobody(), pool if fine else _nobody(), score)
    done = relabel(labels, score, pool[upper], np.exp(rows), ratio, sure, "paper")
    return SettledDisputes(done.labels, done.relabelled, np.setdiff1d(pool, pool[upper]), score)


def upper_group(values: NDArray[np.float64]) -> NDArray[np.int64] | None:
    """Members of the group of larger mean, ascending; None where there are not two groups."""
    if len(values) < FEWEST:
        return None
    split = split_values(values)
    if split.means is None or float(split.means[1, 0] - split.means[0, 0]) < GAP:
        return None
    return split.noisy


def _nobody() -> NDArray[np.int64]:
    return np.zeros(0, dtype=np.int64)


# FedClean at a site: a learner of its own disputes labels, the global model settles the disputes, and
# the site trains on what counts as right so far
# ------------------------------------------------------------------------------

NAME = "fedclean"
LOCAL = "fedclean local labels"
"""The notebook page of y_bar, what the site's own learner says of each sample, int64 `[n]`."""
PARTS = "fedclean parts"
"""The notebook page of the part that each sample belongs to, int64 `[n]`."""

TOGETHER = "fedclean collaborative loss"
"""The notebook page of L_co, float64 `[n]`; NaN where the models do not agree against the given label."""


class SamplePart(IntEnum):
    """Where a sample stands."""

    DISPUTED = 0
    """The site's own learner says otherwise."""
    AGREED = 1
    """A_k: it says the same."""
    FIRST = 2
    """B_k: both models say otherwise, its label is theirs now."""
    SECOND = 3
    """C_k: the global model is sure of another label, which it has now."""
    CLEARED = 4
    """H2: disputed, but the global model finds nothing wrong."""


@dataclass(frozen=True)
class TrainingCount(Reply):
    """How many samples a site trains on from now on; which, stays there."""

    used: int = disclosed("how many of its labels count as right, given ones and corrected ones together", "count")

    def refusal(self, request: Request[TrainingCount], facts: SiteFacts) -> str | None:
        return count_refusal("used", self.used, facts.samples, least=0)


def counted(site: Site) -> TrainingCount:
    return TrainingCount(site.suppress_small(int((site.notebook[PARTS] != SamplePart.DISPUTED).sum())))


# Preprocessing ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SortByOwnLearner(TrainingRequest[TrainingCount]):
    """Train a model for this site alone by a central noisy-label method; labels that it contradicts are disputed."""

    reply_type: ClassVar[type[Reply]] = TrainingCount

    weights: Weights
    """What the model starts from, and its twin where the learner has two."""
    twin: Weights
    parts: tuple[Train, ...]
    """The learner, part by part: each goes on with the model that the last one left. Their replies stay at the site."""

    @property
    def besides(self) -> tuple[Request[Any], ...]:
        """Requests that accompany the learner's parts; the parts themselves disclose nothing."""
        return tuple(rider for part in self.parts for rider in part.besides)

    def job(self, site: Site) -> TrainingJob:
        site.workbench["part"], site.workbench["pages"] = 0, set(site.notebook)
        return self.part(site, self.weights, self.twin)

    def part(self, site: Site, weights: Weights, twin: Weights) -> TrainingJob:
        number = site.workbench["part"]
        own = replace(self.parts[number], weights=weights)
        if isinstance(own, TrainPair):
            own = replace(own, twin=twin)
        site.workbench["learner"] = own
        job: TrainingJob = own.job(site)
        return replace(job, purpose=f"own learner, part {number + 1}")

    def further(self, site: Site, result: TrainingResult) -> TrainingJob | None:
        site.workbench["learner"].reply(site, result)
        site.workbench["part"] += 1
        if site.workbench["part"] == len(self.parts):
            return None
        return self.part(site, result.weights, {} if result.twin is None else result.twin.weights)

    def reply(self, site: Site, result: TrainingResult | None) -> TrainingCount:
        """A_k = {y_bar = y}; all others are held suspect for now."""
        assert result is not None
        logits = site_logits(site, result.weights)
        said = logits.argmax(-1)
        disputed = said != site.given
        for page in set(site.notebook) - site.workbench["pages"]:
            del site.notebook[page]  # the learner's own, labels that it believes among them: it has served
        site.notebook[LOCAL] = said
        site.notebook[PARTS] = torch.where(disputed, int(SamplePart.DISPUTED), int(SamplePart.AGREED))
        doubt = 1 - F.softmax(logits.double(), dim=-1).gather(1, site.given.unsqueeze(1)).squeeze(1)
        site.keep_evidence(NAME, flagged=disputed, proposed=said, suspicion=doubt)
        return counted(site)


# Corrections -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SettleByAgreement(Request[TrainingCount]):
    """Sub-stage I: where the global model sides with the site's own against a label, the surest are corrected."""

    reply_type: ClassVar[type[Reply]] = TrainingCount

    weights: Weights
    ratio: float = 0.5
    """sigma_1"""

    def answer(self, site: Site) -> TrainingCount:
        disputed = (site.notebook[PARTS] == SamplePart.DISPUTED).numpy()
        said = site.notebook[LOCAL].numpy()
        log_p = F.log_softmax(site_logits(site, self.weights).double(), dim=-1)
        found = settle_by_agreement(log_p.numpy(), site.given.numpy(), said, disputed, self.ratio)
        site.notebook[TOGETHER] = torch.from_numpy(found.score)
        return _settled(site, found, SamplePart.FIRST, log_p)


@dataclass(frozen=True)
class SettleByModel(Request[TrainingCount]):
    """Sub-stage II: the global model clears labels, and gives its own where it is sure."""

    reply_type: ClassVar[type[Reply]] = TrainingCount

    weights: Weights
    ratio: float = 0.5
    """sigma_2"""
    sure: float = 0.5
    """epsilon"""

    def answer(self, site: Site) -> TrainingCount:
        rest = (site.notebook[PARTS] == SamplePart.DISPUTED).numpy()
        log_p = F.log_softmax(site_logits(site, self.weights).double(), dim=-1)
        found = settle_by_model(log_p.numpy(), site.given.numpy(), rest, self.ratio, self.sure)
        return _settled(site, found, SamplePart.SECOND, log_p)


def _settled(site: Site, found: SettledDisputes, part: SamplePart, log_p: Tensor) -> TrainingCount:
    """Move samples to their new parts, believe corrected labels, and keep, at the site, why.

    Suspicion is L_co where that is defined, else the global model's loss on the given label (L_an).
    """
    parts: Tensor = site.notebook[PARTS].clone()
    parts[torch.from_numpy(found.corrected)] = part
    parts[torch.from_numpy(found.cleared)] = SamplePart.CLEARED
    site.notebook[PARTS] = parts
    labels = site.labels.clone()
    changed = torch.from_numpy(found.corrected)
    labels[changed] = torch.from_numpy(found.labels)[changed]
    open_ = parts == SamplePart.DISPUTED
    together: Tensor = site.notebook.get(TOGETHER, torch.full((len(parts),), torch.nan).double())
    proposed = torch.where(open_, log_p.argmax(-1), labels)
    site.keep_evidence(
        NAME,
        labels=labels,
        flagged=open_ | (labels != site.given),
        proposed=proposed,
        suspicion=torch.where(together.isnan(), F.nll_loss(log_p, site.given, reduction="none"), together),
    )
    return counted(site)


# Training --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TrainedOnParts(Trained):
    """A model, and what it counts for."""

    fewest: ClassVar[int] = 0

    samples: int = disclosed("how many samples count as right so far, which its model is weighed by", "count")


@dataclass(frozen=True)
class TrainOnParts(Train):
    """Train on the samples of some parts, under the labels that they have by now; none: the model stays as it is."""

    reply_type: ClassVar[type[Reply]] = TrainedOnParts

    use: tuple[int, ...] = (int(SamplePart.AGREED),)

    def job(self, site: Site) -> TrainingJob | None:  # type: ignore[override]
        super().job(site)
        chosen = torch.isin(site.notebook[PARTS], torch.tensor(self.use))
        if not bool(chosen.any()):
            return None
        return TrainingJob(part_of(site, chosen.nonzero().squeeze(-1)), self.weights, self.recipe)

    def reply(self, site: Site, result: TrainingResult | None) -> TrainedOnParts:
        used = counted(site).used
        if result is None:
            return TrainedOnParts(self.weights, used, 0.0)
        return TrainedOnParts(result.weights, used, result.loss)


NOBODY = 0.01
"""Where no site disputes more than this share of its labels, the local learners may have learnt them by heart."""


@dataclass(frozen=True)
class FedCleanState(State):
    """The global model, and who takes part."""

    sorted: tuple[str, ...] = ()
    """Sites that have parted their labels; one that missed it has no right labels to train on."""


@methods.register("fedclean")
@dataclass(frozen=True)
class FedClean(Averaging):
    """Each site first learns alone, robustly, and disputes labels; twice the global model then settles disputes.

    No site is taken for clean: it is made for federations in which all are noisy.
    """

    summary: ClassVar[str] = "Sites dispute labels by learners of their own; the global model settles them in two steps"
    paper: ClassVar[str] = "Jiang and Zhang 2025 (ICML)"
    forms: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "fedclean-1": {"cnll": "co-teaching"},
        "clothing1m": {
            "rounds_1": 50,
            "rounds_2": 100,
            "rounds_3": 100,
            "fraction": 0.02,
            "sigma_1": 0.8,
            "sigma_2": 0.8,
            "epsilon": 0.9,
        },
    }

    cnll: Literal["joint-opt", "co-teaching", "none"] = "joint-opt"
    """The central method by which a site learns alone: FedClean^2, FedClean^1, or plain training (Table 5)."""
    cnll_epochs: AtLeastOne = 50
    """Epochs of it. Longer training learns wrong labels by heart, and nothing is disputed."""
    cnll_warm: Count = 10
    """Epochs of plain training before JointOpt moves labels, or over which Co-teaching's forgotten share grows."""
    noise_rate: Annotated[float, Range(0, 1, below=True)] | None = None
    """Co-teaching's tau. None: each site estimates its own. A true one given here is an oracle, and the run says so."""

    rounds_1: Count = 100
    """T1: rounds on the labels that nobody disputes."""
    rounds_2: Count = 150
    """T2: rounds after sub-stage I."""
    rounds_3: AtLeastOne = 150
    """T3: rounds after sub-stage II."""
    fraction: Share = 0.1
    """Share of the sites that train in a round."""

    sigma_1: Rate = 0.5
    """sigma_1: share of the upper part of L_co that sub-stage I corrects."""
    sigma_2: Rate = 0.5
    """sigma_2: share of the upper part of L_an that sub-stage II looks at."""
    epsilon: Rate = 0.5
    """epsilon: confidence from which the global model corrects in sub-stage II."""
    correct_1: bool = True
    """Sub-stage I at all (Table 5)."""
    correct_2: bool = True
    """Sub-stage II at all (Table 5)."""
    assa: bool = True
    """Weigh sites by the samples that count as right so far, else by all that they have (Table 5)."""
    mixup: AtLeastZero = 1.0
    """alpha of mixup's Beta(alpha, alpha) in federated training; 0 is off (Table 5)."""
    stage_data: Literal["union", "new_only"] = "union"
    """What sites train on after a correction: all that counts as right so far, or what it brought (Alg. 1)."""

    local: Recipe = field(default_factory=lambda: Recipe(epochs=5, batch_size=10, lr=0.01, momentum=0.5), kw_only=True)

    @property
    def oracle(self) -> str | None:
        return self.learner().oracle if self.cnll == "co-teaching" else None

    def begin(self, federation: Federation, weights: Weights) -> FedCleanState:
        return FedCleanState(weights)

    def stages(self) -> list[Stage]:
        train = (TrainOnParts,)
        first, second = int(self.correct_1), int(self.correct_2)
        return [
            Stage("local learners", 1, self.sort_labels, asks=(SortByOwnLearner,), trains=False),
            Stage("undisputed labels", self.rounds_1, self.train_on_agreed, train),
            Stage("sub-stage I", first, self.settle_by_agreement, (SettleByAgreement,), trains=False),
            Stage("after sub-stage I", self.rounds_2, self.train_after_first, train),
            Stage("sub-stage II", second, self.settle_by_model, (SettleByModel,), trains=False),
            Stage("after sub-stage II", self.rounds_3, self.train_after_second, train),
        ]

    # Preprocessing -------------------------------------------------------------------------------------------------

    def sort_labels(self, state: FedCleanState, federation: Federation) -> FedCleanState:
        """theta_k at each site alone; A_k = {y_bar = y}, the rest is disputed."""
        twin = federation.initial_weights(draw=1) if self.cnll == "co-teaching" else {}
        visit = SortByOwnLearner(state.weights, twin, self.learner_parts())
        replies = federation.ask(visit)
        level = {site: 1 - reply.used / federation.facts[site].samples for site, reply in replies.items()}
        unmeasured = tuple(site for site in federation.sites if site not in level)
        federation.find(Findings((), unmeasured=unmeasured, level=level))
        if unmeasured:
            federation.warn(f"labels of {', '.join(unmeasured)} were not sorted: they take no part")
        if max(level.values()) < NOBODY:
            federation.warn(
                "no site disputes its labels: they are clean, or the local learners know them by heart; "
                f"try fewer than method.cnll_epochs = {self.cnll_epochs}"
            )
        self.say(federation, replies)
        return replace(state, sorted=tuple(replies))

    def learner_parts(self) -> tuple[Train, ...]:
        """A site's own learner as the requests that it goes through."""
        if self.cnll == "none":
            return (Train({}, self.recipe(CrossEntropy(), epochs=self.cnll_epochs, mixup=0.0)),)
        return self.learner().alone()

    def learner(self) -> CoTeaching | JointOpt:
        one = replace(self.local, epochs=1, mixup=0.0)
        warm = min(self.cnll_warm, self.cnll_epochs - 1)
        if self.cnll == "co-teaching":
            return CoTeaching(rounds=self.cnll_epochs, warm=self.cnll_warm, noise_rate=self.noise_rate, local=one)
        return JointOpt(warmup=warm, rounds=self.cnll_epochs - warm, local=one)

    # Corrections ---------------------------------------------------------------------------------------------------

    def settle_by_agreement(self, state: FedCleanState, federation: Federation) -> FedCleanState:
        """B_k: disputed labels that theta_G rejects as well, by the largest L_co."""
        return self.settle(state, federation, SettleByAgreement(state.weights, self.sigma_1))

    def settle_by_model(self, state: FedCleanState, federation: Federation) -> FedCleanState:
        """C_k and H2: theta_G alone judges what is left, by L_an."""
        return self.settle(state, federation, SettleByModel(state.weights, self.sigma_2, self.epsilon))

    def settle(self, state: FedCleanState, federation: Federation, request: Request[TrainingCount]) -> FedCleanState:
        self.say(federation, federation.ask(request, state.sorted))
        return state

    def say(self, federation: Federation, replies: Replies[TrainingCount]) -> None:
        federation.record(samples_used=sum(reply.used for reply in replies.values()))
        federation.record_sites("samples_used", {site: reply.used for site, reply in replies.items()})

    # Training ------------------------------------------------------------------------------------------------------

    def train_on_agreed(self, state: FedCleanState, federation: Federation) -> FedCleanState:
        """T1 rounds on A_k."""
        return self.train(state, federation, (SamplePart.AGREED,))

    def train_after_first(self, state: FedCleanState, federation: Federation) -> FedCleanState:
        """T2 rounds on A_k and B_k; Alg. 1 prints B_k alone."""
        return self.train(state, federation, (SamplePart.AGREED,) * self.union + (SamplePart.FIRST,))

    def train_after_second(self, state: FedCleanState, federation: Federation) -> FedCleanState:
        """T3 rounds on A_k, B_k, C_k and H2; Alg. 1 prints C_k alone, the text C_k and H2."""
        earlier = (SamplePart.AGREED, SamplePart.FIRST) * self.union
        return self.train(state, federation, (*earlier, SamplePart.SECOND, SamplePart.CLEARED))

    @property
    def union(self) -> int:
        return int(self.stage_data == "union")

    def train(self, state: FedCleanState, federation: Federation, parts: tuple[SamplePart, ...]) -> FedCleanState:
        """FedAvg with mixup on these parts, weighed by the samples that count as right so far (ASSA)."""
        recipe = self.recipe(CrossEntropy(), mixup=self.mixup)
        request = TrainOnParts(state.weights, recipe, use=tuple(int(part) for part in parts))
        replies = ask_to_train(federation, request, federation.choose(self.fraction, among=state.sorted))
        counts = [reply.samples for reply in replies.values()]
        if not self.assa or not any(counts):
            sizes = federation.sizes()
            counts = [sizes[site] for site in replies]
        models = [reply.weights for reply in replies.values()]
        return replace(state, weights=self.merge(models, counts, state.weights))

    def tiny(self) -> FedClean:
        return replace(self, cnll_epochs=2, cnll_warm=1, rounds_1=1, rounds_2=1, rounds_3=1, fraction=0.6)
