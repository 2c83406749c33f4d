"""FedMD: Li and Wang, Heterogenous Federated Learning via Model Distillation, 2019."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedsift.core.errors import ConfigError
from fedsift.core.ranges import AtLeastOne, Count
from fedsift.formulas.losses import mean_scores
from fedsift.methods._base import methods, plain_loss, record_loss
from fedsift.methods._public_learning import LearnsInPublic
from fedsift.protocol.federation import Federation, Replies
from fedsift.protocol.method import State
from fedsift.training.public_learning import (
    Collaborate,
    PublicLesson,
    PublicPart,
    PublicPredictions,
    PublicReply,
    public_size,
)
from fedsift.training.recipe import Recipe


@dataclass(frozen=True)
class FedMDState(State):
    """The class scores that the sites communicated last; their models the server never sees."""

    public: int = 0
    """Number of public samples."""
    scores: dict[str, Tensor] = field(default_factory=dict)
    """Each site's logits for the public samples that come next, `[n, K]`."""


@methods.register("fedmd")
@dataclass(frozen=True)
class FedMD(LearnsInPublic):
    """Sites of any network fit the mean of all class scores on public samples, then train privately."""

    summary: ClassVar[str] = "Sites of any kind fit the mean of all class scores on public samples"
    paper: ClassVar[str] = "Li and Wang 2019; the comparison of RHFL Tables 1 and 4-6"

    alignment: Count = 0
    """Public samples drawn anew for every round; 0 uses all of them."""
    digest: Literal["l1", "mse", "kl"] = "l1"
    """How a site approaches the consensus: absolute or squared difference of logits, or KL of the softmax."""
    digest_epochs: AtLeastOne = 1
    """Passes over the public samples of a round."""
    digest_lr: float | None = None
    """Step of these passes; None is train.lr."""

    def __post_init__(self) -> None:
        if self.alignment < 0 or self.alignment == 1:
            raise ConfigError(f"method.alignment = {self.alignment}: it must be at least 2, or 0 for all")

    def start(self, federation: Federation) -> FedMDState:
        return FedMDState(public=public_size(federation))

    def pretrain(self, state: FedMDState, federation: Federation) -> FedMDState:
        """Transfer learning without its first half: the public samples have no labels to learn from."""
        last = federation.round.index + 1 == self.pretrain_rounds
        recipe = self.recipe(plain_loss(federation), epochs=self.pretrain_epochs)
        return self.exchange(state, federation, None, recipe, self.part(0, state.public) if last else None)

    def look(self, state: FedMDState, federation: Federation) -> FedMDState:
        return self.exchange(state, federation, None, None, self.part(0, state.public))

    def collaborate(self, state: FedMDState, federation: Federation) -> FedMDState:
        """Digest: fit the consensus of the scores. Revisit: private epochs. Communicate: the new scores."""
        number = federation.round.index
        lesson = None
        if state.scores:
            consensus = mean_scores(torch.stack(list(state.scores.values())))
            recipe = replace(
                self.local,
                epochs=self.digest_epochs,
                lr=self.local.lr if self.digest_lr is None else self.digest_lr,
            )
            lesson = PublicLesson(self.part(number, state.public), consensus, self.digest, recipe, "visit")
        ahead = self.part(number + 1, state.public) if number + 1 < self.rounds else None
        return self.exchange(state, federation, lesson, self.recipe(plain_loss(federation)), ahead)

    def part(self, number: int, total: int) -> PublicPart:
        """The public samples of a round, the same at every site."""
        return PublicPart(number, 0, min(self.alignment, total) if self.alignment else total)

    def exchange(
        self,
        state: FedMDState,
        federation: Federation,
        lesson: PublicLesson | None,
        train: Recipe | None,
        ahead: PublicPart | None,
    ) -> FedMDState:
        show = None if ahead is None else PublicPredictions(ahead, len(federation.classes), "logits")
        replies = federation.ask(Collaborate(learn=lesson, train=train, show=show))
        record_loss(federation, replies)
        return replace(state, scores=_scores(replies))

    def tiny(self) -> FedMD:
        return replace(self, rounds=2, pretrain_rounds=1, pretrain_epochs=1)


def _scores(replies: Replies[PublicReply]) -> dict[str, Tensor]:
    return {site: reply.outputs for site, reply in replies.items() if reply.outputs is not None}
