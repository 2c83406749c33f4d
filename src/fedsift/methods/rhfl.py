"""RHFL: Fang and Ye, Robust Federated Learning with Noisy and Heterogeneous Clients, CVPR 2022; and its confidence
weights with FedAvg, the form in which FedNoRo and FedDPCont compare against RHFL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from fedsift.core.errors import ConfigError, DataError
from fedsift.core.ranges import AtLeastZero, RangeChecked
from fedsift.formulas.losses import teacher_mixture, teacher_weights
from fedsift.methods._base import OneStage, ask_to_train, methods, record_loss
from fedsift.methods._public_learning import LearnsInPublic
from fedsift.protocol.federation import Federation, Replies
from fedsift.protocol.messages import Reply, Request, SiteFacts, Weights, disclosed
from fedsift.protocol.method import Asks, State
from fedsift.protocol.site import Site
from fedsift.training.objective import LOG0, CrossEntropy, Objective, SymmetricCrossEntropy, as_objective
from fedsift.training.own_models import MeasuredOn, chance_objective, held_out_of, mean_objective
from fedsift.training.plan import batch_bounds
from fedsift.training.public_learning import (
    Collaborate,
    PublicLesson,
    PublicPart,
    PublicPredictions,
    PublicReply,
    public_size,
)
from fedsift.training.recipe import Augment, Recipe
from fedsift.training.requests import Train, count_refusal

# RHFL's client confidence re-weighting: a site whose loss is low and falling teaches more (eq
# ------------------------------------------------------------------------------

Mode = Literal["official", "abs", "clip", "held-out"]

_NOTHING = 1e-12
"""A normaliser this close to 0 says nothing: all shares are 0."""


@dataclass(frozen=True)
class ClientConfidence:
    """One round's figures, `[S]` each; the middle three are None in the first round and by held-out losses."""

    quality: NDArray[np.float64]
    """Q = 1 / L_t; by held-out losses the skill s."""
    drop: NDArray[np.float64] | None
    """P = L_{t-1} - L_t."""
    confidence: NDArray[np.float64] | None
    """F = Q P."""
    raw: NDArray[np.float64] | None
    """w = 1 / (S - 1) + eta share."""
    weights: NDArray[np.float64]
    """W: softmax(w), or 1 / (S - 1) in the first round."""


def shares_of_confidence(confidence: ArrayLike, mode: Mode = "official") -> NDArray[np.float64]:
    """Each site's share of the confidence, `[S] -> [S]`.

    "official": F / sum F, as printed; "abs": F / sum |F|; "clip": the positive part of F over its sum.

    F may be negative: "official" then favours the site whose loss rose most if all rise, and explodes when
    the sum is small; the other two do not. A sum of 0 gives shares of 0.
    """
    values = np.asarray(confidence, dtype=np.float64)
    if mode == "clip":
        values = np.maximum(values, 0.0)
    elif mode not in ("official", "abs"):
        raise ConfigError(f"ccr_mode = '{mode}': choose 'official', 'abs' or 'clip', or weigh by held-out losses")
    total = np.abs(values).sum() if mode == "abs" else values.sum()
    return values / total if abs(total) >= _NOTHING else np.zeros_like(values)


def held_out_credibility(losses: ArrayLike, chance: float) -> ClientConfidence:
    """Weights of all sites from their losses on samples that they never trained on, `[S]` (ours, not the paper's).

    s = 1 - L / chance, between 0 and 1, where chance is the loss of a model that says every class alike; then
    W = S / (S - 1) s / sum s. Equal sites get the 1 / (S - 1) of eq. 3; one that knows its labels by heart and nothing
    else gets 0. If nobody is better than chance, all count alike.
    """
    now = _checked(losses)
    skill = np.clip(1.0 - now / chance, 0.0, 1.0)
    total = skill.sum()
    even = np.full(len(now), 1.0 / len(now)) if total < _NOTHING else skill / total
    return ClientConfidence(skill, None, None, None, even * len(now) / max(len(now) - 1, 1))


def _checked(losses: ArrayLike) -> NDArray[np.float64]:
    now = np.asarray(losses, dtype=np.float64)
    if not np.isfinite(now).all() or (now < 0).any():
        raise DataError(f"losses {now.tolist()} cannot be weighed: they must be finite and not negative")
    return now


def credibility(
    losses: ArrayLike, previous: ArrayLike | None = None, eta: float = 0.5, mode: Mode = "official"
) -> ClientConfidence:
    """Weights of all sites from their mean losses, `[S]`; previous: the round before, None in the first."""
    now = _checked(losses)
    base = 1.0 / max(len(now) - 1, 1)
    quality = 1.0 / np.maximum(now, _NOTHING)
    if previous is None:
        return ClientConfidence(quality, None, None, None, np.full(len(now), base))
    drop = np.asarray(previous, dtype=np.float64) - now
    confidence = quality * drop
    raw = base + eta * shares_of_confidence(confidence, mode)
    exponentials = np.exp(raw - raw.max())
    return ClientConfidence(quality, drop, confidence, raw, exponentials / exponentials.sum())


# RHFL at a site: the symmetric loss that sites train on, and the mean loss by which they are trusted
# ------------------------------------------------------------------------------


@dataclass(frozen=True)
class PrivateLoss(Reply):
    """A site's mean loss."""

    value: float = disclosed("mean loss of the model over the site's own samples and labels", "loss", least=0.0)
    samples: int = disclosed("how many samples it was measured on", "count")

    def refusal(self, request: MeasureLoss, facts: SiteFacts) -> str | None:
        if not isinstance(self.value, float) or self.value < 0:
            return f"the private loss is {self.value!r}: it must be a number that is not negative"
        measured = facts.held_out if request.on == "held out" else facts.samples
        return count_refusal("samples", self.samples, measured)


@dataclass(frozen=True)
class MeasureLoss(Request[PrivateLoss]):
    """L_k = mean of the objective over the site's samples (the denominator of eq. 9)."""

    reply_type: ClassVar[type[Reply]] = PrivateLoss

    weights: Weights | None
    objective: Objective
    augment: Augment | None = None
    on: MeasuredOn = "own"

    def answer(self, site: Site) -> PrivateLoss:
        value = mean_objective(site, site.weights_for(self.weights), self.objective, self.augment, self.on)
        return PrivateLoss(value, len(held_out_of(site)[0] if self.on == "held out" else site.samples))


# RHFL's state, and what its two forms share: the symmetric loss of private training, confidence
# weights
# ------------------------------------------------------------------------------

LIFE: dict[str, Literal["batch", "visit", "run"]] = {"fresh": "batch", "persistent": "run", "sgd": "batch"}
"""How long the optimiser on public samples is kept."""


@dataclass(frozen=True)
class RHFLState(State):
    """What the server remembers of the sites; their models it never sees."""

    public: int = 0
    """N_0: number of public samples."""
    outputs: dict[str, Tensor] = field(default_factory=dict)
    """R_k: each site's predictions for the public samples that come next, `[n, K]`."""
    losses: dict[str, float] = field(default_factory=dict)
    """L_sl^{k, t}: each site's mean private loss at the end of the last round."""
    earlier: dict[str, float] = field(default_factory=dict)
    """L_sl^{k, t-1}, empty in the first communication epoch."""


@dataclass(frozen=True)
class SymmetricAndConfident(RangeChecked):
    """Switches and weights of SL (section 3.2) and CCR (section 3.3)."""

    sl: bool = field(default=True, kw_only=True)
    """Symmetric loss in private training and in CCR; off is plain cross-entropy (Tables 2 and 3)."""
    alpha: AtLeastZero = field(default=0.1, kw_only=True)
    """lambda of eq. 7: weight of the cross-entropy."""
    beta: AtLeastZero = field(default=1.0, kw_only=True)
    """Weight of the reverse cross-entropy."""
    rce_log0: float = field(default=LOG0, kw_only=True)
    """What log 0 counts as in the reverse cross-entropy: ln 1e-4; the SCE paper has -4 and -6."""
    eta: AtLeastZero = field(default=0.5, kw_only=True)
    """eta of eq. 12: how much confidence counts."""
    ccr_mode: Mode = field(default="official", kw_only=True)
    """Normaliser of eq. 12: as printed, by absolute values ("abs"), or by falling losses alone ("clip"); "held-out"
    (ours) weighs by how far the loss on held-out samples is below chance."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.rce_log0 < 0:
            raise ConfigError(f"method.rce_log0 = {self.rce_log0}: a logarithm of 0 is negative, e.g. -9.21")

    def private_loss(self) -> Objective:
        """L_sl = alpha L_ce + beta L_rce (eq. 7), or plain cross-entropy."""
        if not self.sl:
            return as_objective(CrossEntropy())
        return as_objective(SymmetricCrossEntropy(self.alpha, self.beta, self.rce_log0))

    @property
    def measured_on(self) -> MeasuredOn:
        """Which samples the loss behind a site's confidence is of."""
        return "held out" if self.ccr_mode == "held-out" else "own"

    def require_held_out(self, federation: Federation) -> None:
        """Confidence by held-out samples needs some at every site."""
        without = [site for site, facts in federation.facts.items() if not facts.held_out]
        if self.measured_on == "held out" and without:
            raise ConfigError(
                f"method.ccr_mode = 'held-out': site '{without[0]}' holds nothing out; set evaluate.held_out, e.g. 0.15"
            )

    def confidence_weights(
        self, now: Mapping[str, float], before: Mapping[str, float], classes: int
    ) -> dict[str, float]:
        """W_k by the sites' losses (eqs. 9-13). A site whose last loss is unknown has no drop: its confidence is 0."""
        losses = list(now.values())
        if self.ccr_mode == "held-out":
            found = held_out_credibility(losses, chance_objective(self.private_loss(), classes))
        else:
            known = [before.get(site, loss) for site, loss in now.items()] if before else None
            found = credibility(losses, known, self.eta, self.ccr_mode)
        return dict(zip(now, found.weights.tolist()))


def outputs_of(replies: Replies[PublicReply]) -> dict[str, Tensor]:
    return {site: reply.outputs for site, reply in replies.items() if reply.outputs is not None}


def losses_of(replies: Replies[PublicReply]) -> dict[str, float]:
    return {site: reply.private_loss for site, reply in replies.items() if reply.private_loss is not None}


def record_replies(federation: Federation, replies: Replies[PublicReply]) -> None:
    record_loss(federation, replies)
    losses = losses_of(replies)
    if losses:
        federation.record(private_losses=losses)
        federation.record_sites("private_loss", losses)


# RHFL: Fang and Ye, Robust Federated Learning with Noisy and Heterogeneous Clients, CVPR 2022
# ------------------------------------------------------------------------------


@methods.register("rhfl")
@dataclass(frozen=True)
class RHFL(SymmetricAndConfident, LearnsInPublic):
    """Sites with networks of any kind learn from each other's predictions on public samples.

    Each keeps its model. A round: learn from the others (HFL, section 3.1), from each as much as its loss
    makes it worth (CCR, section 3.3), then train privately with a noise-tolerant loss (SL, section 3.2).
    """

    summary: ClassVar[str] = "Sites of any kind learn from each other on public samples, less from noisy ones"
    paper: ClassVar[str] = "Fang and Ye 2022 (CVPR)"

    local_epochs: int | Literal["ratio"] | None = None
    """T_l: private epochs a round. None is train.epochs (released: 1); "ratio" the paper's rule N_k / N_0."""

    hfl: bool = True
    """Learn from the others on public samples (Tables 2 and 3)."""
    ccr: bool = True
    """Weigh teachers by confidence; off gives each 1 / (K - 1), eq. 3 (Tables 2 and 3)."""

    weigh: Literal["teacher", "own"] = "teacher"
    """W_i for teacher i (released), or eq. 14 as printed: the student's own W_k for all of them."""
    statistics_on: Literal["eval", "train"] = "eval"
    """Private losses on the images as they are, or augmented as in training (released)."""

    exchange: Literal["epoch", "batch"] = "epoch"
    """Predictions are exchanged once an epoch (eqs. 1-3), or for every public batch (released)."""
    public_opt: Literal["fresh", "persistent", "sgd"] = "fresh"
    """A new optimiser for every public batch (released), one that lasts for the run, or plain SGD."""
    public_lr: float | None = None
    """Its step; None is train.lr."""
    outputs_in: Literal["eval", "train"] = "eval"
    """Batch norm of a teacher by its running statistics, or by each batch's (released)."""
    public_augment: Augment = field(default_factory=Augment)
    """Augmentation of public samples, the same for teacher and student."""

    local: Recipe = field(default_factory=lambda: Recipe(batch_size=256, optimiser="adam", lr=0.001), kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.local_epochs, int) and self.local_epochs < 1:
            raise ConfigError(f"method.local_epochs = {self.local_epochs}: it must be at least 1")

    def start(self, federation: Federation) -> RHFLState:
        if self.ccr and self.hfl:
            self.require_held_out(federation)
        return RHFLState(public=public_size(federation))

    # Before the first exchange ------------------------------------------------------------------------

    def pretrain(self, state: RHFLState, federation: Federation) -> RHFLState:
        """Private training with L_sl; the last visit also shows the first predictions and losses."""
        last = federation.round.index + 1 == self.pretrain_rounds
        recipe = self.recipe(self.private_loss(), epochs=self.pretrain_epochs)
        if last:
            return self.first(state, federation, train=recipe)
        record_replies(federation, federation.ask(Collaborate(train=recipe)))
        return state

    def look(self, state: RHFLState, federation: Federation) -> RHFLState:
        """Without pre-training: predictions and losses of the random networks."""
        return self.first(state, federation, train=None)

    def first(self, state: RHFLState, federation: Federation, train: Recipe | None) -> RHFLState:
        part = self.parts(0, state.public)[0]
        replies = federation.ask(self.visit(federation, None, train, part, closing=True))
        record_replies(federation, replies)
        return replace(state, outputs=outputs_of(replies), losses=losses_of(replies))

    # A communication epoch, Fig. 3 --------------------------------------------------------------------

    def collaborate(self, state: RHFLState, federation: Federation) -> RHFLState:
        """Learn from the others (eq. 14), train privately (eq. 8), show the new predictions and the loss."""
        epoch = federation.round.index
        confidence = self.confidence(state, federation)
        parts, outputs, replies = self.parts(epoch, state.public), state.outputs, None
        for number, part in enumerate(parts):
            last = number + 1 == len(parts)
            ahead = parts[number + 1] if not last else self.next_epoch(epoch, state.public)
            lessons = self.lessons(part, outputs, confidence, federation.sites)
            recipes = self.private(federation, state) if last else {}
            replies = federation.ask(
                {
                    site: self.visit(federation, lessons.get(site), recipes.get(site), ahead, closing=last)
                    for site in federation.sites
                }
            )
            outputs = outputs_of(replies)
        assert replies is not None
        record_replies(federation, replies)
        losses = {**state.losses, **losses_of(replies)}
        return replace(state, outputs=outputs, losses=losses, earlier=state.losses)

    def parts(self, epoch: int, total: int) -> list[PublicPart]:
        """The public samples of an epoch in the order of its shuffle: all at once, or batch by batch."""
        size = total if self.exchange == "epoch" or not self.hfl else self.local.batch_size
        bounds = batch_bounds(total, size)
        return [PublicPart(epoch, start, stop, self.public_augment) for start, stop in bounds]

    def next_epoch(self, epoch: int, total: int) -> PublicPart | None:
        return self.parts(epoch + 1, total)[0] if epoch + 1 < self.rounds else None

    def visit(
        self,
        federation: Federation,
        lesson: PublicLesson | None,
        train: Recipe | None,
        ahead: PublicPart | None,
        closing: bool,
    ) -> Collaborate:
        """What one site is asked: learn, train, show predictions for what comes next; closing, its loss."""
        show = None
        if self.hfl and ahead is not None:
            show = PublicPredictions(
                ahead, len(federation.classes), mode=self.outputs_in, batch_size=self.local.batch_size
            )
        measure = self.private_loss() if self.ccr and self.hfl and closing else None
        augment = self.local.augment if self.statistics_on == "train" else None
        return Collaborate(lesson, train, measure, augment, self.measured_on, show)

    # HFL, section 3.1 ---------------------------------------------------------------------------------

    def lessons(
        self,
        part: PublicPart,
        outputs: Mapping[str, Tensor],
        confidence: Mapping[str, float],
        sites: Sequence[str],
    ) -> dict[str, PublicLesson]:
        """For every student k the mixture sum_{i != k} a_i p_i of its teachers, if it has any."""
        lessons: dict[str, PublicLesson] = {}
        teachers = [site for site in outputs if not confidence or site in confidence]
        if not self.hfl or not teachers:
            return lessons
        stacked = torch.stack([outputs[site] for site in teachers])
        for site in sites:
            shares = self.shares(site, teachers, confidence).to(stacked.dtype)
            if bool((shares != 0).any()):
                target = teacher_mixture(stacked, shares)
                lessons[site] = PublicLesson(part, target, "mixture", self.public_recipe(), LIFE[self.public_opt])
        return lessons

    def shares(self, student: str, teachers: Sequence[str], confidence: Mapping[str, float]) -> Tensor:
        """a_i of every teacher, float64 `[S]`: W_i (or W_k, eq. 14 as printed); 1 / (K - 1) without CCR."""
        like = torch.zeros(0, dtype=torch.float64)
        if student not in teachers:  # its last reply was set aside: it learns from all who did reply
            even = 1 / len(teachers)
            by_teacher = bool(confidence) and self.weigh == "teacher"
            own = [confidence[i] if by_teacher else even for i in teachers]
            return torch.tensor(own, dtype=torch.float64)
        place = list(teachers).index(student)
        if not confidence:
            return teacher_weights("uniform", len(teachers), place, like=like)
        weights = torch.tensor([confidence[i] for i in teachers], dtype=torch.float64)
        return teacher_weights(self.weigh, len(teachers), place, weights, like=like)

    def public_recipe(self) -> Recipe:
        """The step of eqs. 3 and 14: one pass over the public samples."""
        recipe = replace(self.local, epochs=1, lr=self.local.lr if self.public_lr is None else self.public_lr)
        return replace(recipe, optimiser="sgd", momentum=0.0) if self.public_opt == "sgd" else recipe

    # SL, section 3.2 ----------------------------------------------------------------------------------

    def private(self, federation: Federation, state: RHFLState) -> dict[str, Recipe]:
        """Private training of every site, eq. 8, with its T_l."""
        if self.local_epochs == "ratio":
            sizes = {site: facts.samples for site, facts in federation.facts.items()}
            epochs = {site: max(1, round(size / state.public)) for site, size in sizes.items()}
        else:
            epochs = dict.fromkeys(federation.sites, self.local_epochs or self.local.epochs)
        return {site: self.recipe(self.private_loss(), epochs=count) for site, count in epochs.items()}

    # CCR, section 3.3 ---------------------------------------------------------------------------------

    def confidence(self, state: RHFLState, federation: Federation) -> dict[str, float]:
        """W_k of the sites that can teach (eqs. 9-13); empty without CCR."""
        teachers = [site for site in state.outputs if site in state.losses]
        if not (self.ccr and self.hfl and teachers):
            return {}
        now, classes = {site: state.losses[site] for site in teachers}, len(federation.classes)
        weights = self.confidence_weights(now, state.earlier, classes)
        federation.record_sites("confidence_weight", weights)
        federation.record(confidence_weights=weights)
        return weights

    def tiny(self) -> RHFL:
        return replace(self, rounds=2, pretrain_rounds=1, pretrain_epochs=1)


@dataclass(frozen=True)
class RHFLAveragedState(State):
    """The global model and each site's last known private loss."""

    losses: dict[str, float] = field(default_factory=dict)


@methods.register("rhfl-avg")
@dataclass(frozen=True)
class RHFLAveraged(SymmetricAndConfident, OneStage):
    """FedAvg whose sites train with the symmetric loss and count by client confidence (RHFL eqs. 9-13)."""

    summary: ClassVar[str] = "FedAvg with RHFL's symmetric loss and confidence weights, one network for all"
    paper: ClassVar[str] = "Fang and Ye 2022 (CVPR), as compared against in FedNoRo and FedDPCont"

    ccr: bool = True
    """Confidence weights; off is FedAvg's mean."""
    by_size: bool = False
    """Multiply the confidence weights by the sites' sizes; neither paper says."""

    def begin(self, federation: Federation, weights: Weights) -> RHFLAveragedState:
        if self.ccr:
            self.require_held_out(federation)
        return RHFLAveragedState(weights)

    @property
    def asks(self) -> Asks:
        return (Train, MeasureLoss) if self.ccr else (Train,)

    def objective(self, federation: Federation) -> Objective:
        return self.private_loss()

    def train(self, state: RHFLAveragedState, federation: Federation) -> RHFLAveragedState:
        """Train, report the trained model's private loss in the same visit, average by confidence."""
        chosen = federation.choose(self.fraction)
        objective = self.objective(federation)
        measure = (MeasureLoss(None, objective, on=self.measured_on),) if self.ccr else ()
        replies = ask_to_train(federation, Train(state.weights, self.recipe(objective), then=measure), chosen)
        sizes = {site: float(reply.samples) for site, reply in replies.items()}
        shares, losses = sizes, state.losses
        if self.ccr:
            now = {site: _loss(reply.then[0]) for site, reply in replies.items()}
            shares = self.confidence_weights(now, state.losses, len(federation.classes))
            losses = {**state.losses, **now}
            if self.by_size:
                shares = {site: share * sizes[site] for site, share in shares.items()}
            federation.record_sites("confidence_weight", shares)
            federation.record_sites("private_loss", now)
        models = [reply.weights for reply in replies.values()]
        weights = self.merge(models, [shares[site] for site in replies], state.weights)
        return replace(state, weights=weights, losses=losses)


def _loss(reply: object) -> float:
    assert isinstance(reply, PrivateLoss)
    return reply.value
