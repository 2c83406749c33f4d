"""RoFL: Yang et al., Robust Federated Learning with Noisy Labels, IEEE Intelligent Systems 2022."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, cast

import torch
from torch import Tensor

from fedsift.contract import Federation, Replies, State, Weights
from fedsift.contract.method import Asks
from fedsift.contract.ranges import AtLeastZero, Count, Range, Rate
from fedsift.local import losses
from fedsift.local.recipe import Recipe
from fedsift.methods.base import OneStage, ask_to_train, methods, told
from fedsift.methods.rofl_site import Robust, RobustlyTrained, TrainRobustly
from fedsift.signals.choice import forget_rate


@dataclass(frozen=True)
class RoFLState(State):
    """The global model and the common class centroids f_G."""

    centroids: Tensor | None = None
    """`[K, F]`; None before the first round."""


@methods.register("rofl")
@dataclass(frozen=True)
class RoFL(OneStage):
    """Sites share class centroids beside the model: labels that do not lie with their class's centroid are replaced.

    The defaults are the method as described; `form = "released"` is the code that comparisons ran.
    """

    summary: ClassVar[str] = (
        "Small-loss samples, class centroids shared by all sites, labels from the global model"
    )
    paper: ClassVar[str] = "Yang et al. 2022; FedCorr Tables 2-5"
    forms: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "released": {
            "pull": False,
            "total": True,
            "by_size": False,
            "forget": 0.2,
            "sure": 0.0,
            "guarded": False,
        },
    }

    forget: Annotated[float, Range(0, 1, below=True)] | None = None
    """Share of a batch that is left out in the end, the noise rate. None: each site estimates its own from its losses.
    A number is one for all (0.2 as released); one that comes from the truth is an oracle, and the run says so."""
    forget_rounds: Count = 10
    """Rounds over which that share grows from 0, linearly."""
    pseudo_from: Count | None = None
    """T_pl: round from which the global model labels samples out of place; by itself after a tenth of all, but
    no fewer than 10, or half."""
    sure: Rate = 0.5
    """Probability above which the global model's label replaces one out of place. 0 always does, as published: a weak
    model then teaches itself, and may end with one answer for all."""
    guarded: bool = True
    """Replace a label only where the global model ranks it in the lower half of the classes. Off is as published: all
    labels out of place are replaced, which for a model that is right half of the time are mostly right ones."""
    lambda_cen: AtLeastZero = 1.0
    """lambda_cen: weight of the distance to the own class's centroid; grows linearly until T_pl."""
    lambda_e: AtLeastZero = 0.8
    """lambda_e: weight of the entropy of the predictions."""
    pull: bool = True
    """Let the distance to the centroid move the features. In the released code it cannot: they are cut off."""
    total: bool = False
    """Sum the distance over samples and features, as released; otherwise it is their mean."""
    by_size: bool = True
    """Weigh sites by their size in the average; off counts all alike, as released."""

    local: Recipe = field(
        default_factory=lambda: Recipe(epochs=5, batch_size=50, lr=0.25, momentum=0.5, weight_decay=1e-4),
        kw_only=True,
    )

    @property
    def oracle(self) -> str | None:
        return told(None if self.forget is None else f"noise rate {self.forget:g} given", super().oracle)

    @property
    def t_pl(self) -> int:
        """Rounds before T_pl."""
        return (
            max(self.rounds // 10, min(10, self.rounds // 2))
            if self.pseudo_from is None
            else self.pseudo_from
        )

    @property
    def asks(self) -> Asks:
        return (TrainRobustly,)

    def begin(self, federation: Federation, weights: Weights) -> RoFLState:
        return RoFLState(weights)

    def train(self, state: RoFLState, federation: Federation) -> RoFLState:
        """Sites train beside the common centroids and send theirs; both are averaged."""
        t = federation.round.index
        grown = min(1.0, t / self.t_pl) if self.t_pl else 1.0
        recipe = self.recipe(Robust(self.lambda_cen * grown, self.lambda_e, self.pull, self.total))
        request = TrainRobustly(
            state.weights,
            recipe,
            classes=len(federation.classes),
            centroids=state.centroids,
            refine=t >= self.t_pl,
            sure=self.sure,
            guarded=self.guarded,
            ramp=forget_rate(t, 1.0, self.forget_rounds),
            forget=self.forget,
        )
        chosen = self.choose(state, federation)
        replies = ask_to_train(federation, request, chosen)
        own = torch.stack([reply.centroids for reply in cast("Replies[RobustlyTrained]", replies).values()])
        return replace(
            state,
            weights=self.merged(replies, state.weights)
            if self.by_size
            else self.alike(replies, state.weights),
            centroids=losses.common_centroids(state.centroids, own),
        )

    def alike(self, replies: Replies[Any], start: Weights) -> Weights:
        return self.merge([reply.weights for reply in replies.values()], [1.0] * len(replies), start)

    def tiny(self) -> RoFL:
        return replace(self, rounds=3, pseudo_from=2, forget_rounds=1)
