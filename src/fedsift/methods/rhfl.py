"""RHFL: Fang and Ye, Robust Federated Learning with Noisy and Heterogeneous Clients, CVPR 2022."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedsift.contract import ConfigError, Federation
from fedsift.local.losses import teacher_mixture, teacher_weights
from fedsift.local.plan import batch_bounds
from fedsift.local.public import Collaborate, Lesson, PublicPart, Show, public_size
from fedsift.local.recipe import Augment, Recipe
from fedsift.methods.base import methods
from fedsift.methods.in_public import LearnsInPublic
from fedsift.methods.rhfl_parts import (
    LIFE,
    RHFLState,
    SymmetricAndConfident,
    losses_of,
    outputs_of,
    record_replies,
)


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

    local: Recipe = field(
        default_factory=lambda: Recipe(batch_size=256, optimiser="adam", lr=0.001), kw_only=True
    )

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
        lesson: Lesson | None,
        train: Recipe | None,
        ahead: PublicPart | None,
        closing: bool,
    ) -> Collaborate:
        """What one site is asked: learn, train, show predictions for what comes next; closing, its loss."""
        show = None
        if self.hfl and ahead is not None:
            show = Show(
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
    ) -> dict[str, Lesson]:
        """For every student k the mixture sum_{i != k} a_i p_i of its teachers, if it has any."""
        lessons: dict[str, Lesson] = {}
        teachers = [site for site in outputs if not confidence or site in confidence]
        if not self.hfl or not teachers:
            return lessons
        stacked = torch.stack([outputs[site] for site in teachers])
        for site in sites:
            shares = self.shares(site, teachers, confidence).to(stacked.dtype)
            if bool((shares != 0).any()):
                target = teacher_mixture(stacked, shares)
                lessons[site] = Lesson(part, target, "mixture", self.public_recipe(), LIFE[self.public_opt])
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
