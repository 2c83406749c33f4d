"""RSCFed: Liang et al., RSCFed: Random Sampling Consensus Federated Semi-supervised Learning, CVPR 2022, for sites that
annotate some classes only, as FedMLP's comparison (Sun et al. 2024) adapted it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from fedsift.core.ranges import AtLeastOne, AtLeastZero, Range
from fedsift.formulas.aggregation import average, pair_distances
from fedsift.methods._base import ask_to_train, methods
from fedsift.methods._partial_annotation import PartlyAnnotated, TrainWithAverage
from fedsift.protocol.federation import Federation, Replies
from fedsift.protocol.messages import Weights
from fedsift.protocol.method import Asks
from fedsift.training.objective import MissingTo, Objective, PositiveWeighted
from fedsift.training.requests import Trained

# RSCFed's aggregation: random groups of sites agree on a model each, and these are averaged
# ------------------------------------------------------------------------------


def consensus_shares(
    models: Sequence[Weights], sizes: Sequence[float], groups: Sequence[Sequence[int]], scale: float
) -> Tensor:
    """What each model counts for in the mean of all groups' models, float64 `[C]`, sum 1.

    Within a group site i counts n_i exp(-scale d_i / n_i), d_i the sum of its tensors' distances to the group's plain
    mean; the groups count alike. A site in no group counts nothing. groups: positions in `models`.
    """
    names = [name for name, tensor in models[0].items() if tensor.is_floating_point()]
    shares = torch.zeros(len(models), dtype=torch.float64)
    counts = torch.as_tensor(sizes, dtype=torch.float64)
    for group in groups:
        own = [models[i] for i in group]
        away = pair_distances(own, [average(own)], names, "layer_sum")[:, 0]
        n = counts[list(group)]
        # in logarithms: with a large scale all factors of a group may underflow
        shares[list(group)] += torch.softmax(n.log() - scale * away / n, 0) / len(groups)
    return shares


SHARE_OF_SITES = 0.6
"""K by itself: 3 of FedMLP's 5 sites on ICH."""


@methods.register("rscfed")
@dataclass(frozen=True)
class RSCFed(PartlyAnnotated):
    """Missing classes follow a running average of the site's own model; models of random groups of sites are averaged.

    `form = "released"` is FedMLP's release exactly.
    """

    summary: ClassVar[str] = "A mean teacher for missing classes; the server averages random groups of sites"
    paper: ClassVar[str] = "Liang et al. 2022 (CVPR); multi-label as in FedMLP's comparison"
    compares_views: ClassVar[bool] = True
    forms: ClassVar[Mapping[str, Mapping[str, Any]]] = {"released": {"growing": False}}

    subsets: AtLeastOne = 10
    """M: random groups of sites a round."""
    members: AtLeastOne | None = None
    """K: sites in a group; None: three fifths of the round's sites, rounded up."""
    scale: AtLeastZero = 0.01
    """beta: a site counts n exp(-beta d / n) in its group, d its model's distance to the group's mean."""
    weight: AtLeastZero = 1.0
    """lambda_u: weight of the agreement with the mean teacher on missing classes; 0 leaves it out."""
    decay: Annotated[float, Range(0, 1, below=True)] = 0.999
    """The teacher becomes decay v + (1 - decay) w after every step."""
    growing: bool = True
    """Let the teacher be the mean of all models so far while it is young; off begins with the first model received,
    which a short run never forgets (released)."""
    pos_weight: bool = True
    """Weigh the positives of class c by N_k / n_c, as released."""

    @property
    def asks(self) -> Asks:
        return (TrainWithAverage,)

    def objective(self, federation: Federation) -> Objective:
        """Labels where there are any; (sigmoid(z(v1)) - sigmoid(z_ema(v2)))^2 on the missing classes."""
        return PositiveWeighted(weigh=self.pos_weight) + self.weight * MissingTo("average")

    def train(self, state: Any, federation: Federation) -> Any:
        recipe = self.recipe(self.objective(federation), views=2 if self.weight else 1)
        request = TrainWithAverage(state.weights, recipe, decay=self.decay, growing=self.growing)
        replies = ask_to_train(federation, request, self.choose(state, federation))
        return replace(state, weights=self.consensus(replies, state.weights, federation))

    def consensus(self, replies: Replies[Trained], start: Weights, federation: Federation) -> Weights:
        """The mean over M random groups of each group's distance-weighted mean; both are means, so one is enough."""
        models = [reply.weights for reply in replies.values()]
        size = math.ceil(SHARE_OF_SITES * len(models)) if self.members is None else self.members
        draw = federation.random("groups")
        groups = [
            sorted(draw.choice(len(models), size=min(size, len(models)), replace=False).tolist())
            for _ in range(self.subsets)
        ]
        shares = consensus_shares(models, [reply.samples for reply in replies.values()], groups, self.scale)
        federation.record_sites("aggregation_weight", dict(zip(replies, shares.tolist())))
        return self.merge(models, shares.tolist(), start)

    def tiny(self) -> RSCFed:
        return replace(self, rounds=3, subsets=3)
