"""ARFL: Fu et al., Attack-Resistant Federated Learning with Residual-based Reweighting, 2019."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fedsift.core.numbers import floor_count
from fedsift.core.ranges import AtLeastOne, AtLeastZero, Rate, Share
from fedsift.formulas.aggregation import (
    check_alike,
    flatten,
    merge_integers,
    middle,
    shares_of,
    unflatten,
    weighted_average,
    weighted_sum,
)
from fedsift.methods._base import TrainingMethod, methods, plain_loss, train_round
from fedsift.protocol.federation import Federation, FederationFacts, Incompatibility
from fedsift.protocol.messages import Weights
from fedsift.protocol.method import Stage, State
from fedsift.training.requests import Train

# ARFL's residual-based reweighting: models far from a robust line through all of them count less
# ------------------------------------------------------------------------------

_SLOPES = 1 << 17
"""Slopes held at a time (m^2 for each coordinate): 1 MB, which stays in a processor's cache."""


@dataclass(frozen=True)
class ResidualAverage:
    """The aggregated model with the figures that led to it, in the order of the models."""

    weights: Weights
    shares: Tensor
    """Float64 `[m]`, sum 1: proportional to (score / max score)^2."""
    score: Tensor
    """Float64 `[m]`."""
    restricted: Tensor
    """`[m, P]`: the floating tensors as rows, doubtful values replaced by the line."""


def ascending(values: Tensor) -> Tensor:
    """Rows in ascending order, `[..., m] -> [..., m]`. NumPy sorts short rows three times as fast as torch."""
    return torch.from_numpy(np.sort(values.numpy(), axis=-1))


def repeated_median_line(ordered: Tensor) -> Tensor:
    """The line through sorted values on their ranks, `[P, m] -> [P, m]`.

    slope = median_i median_{j != i} (v_i - v_j) / (i - j), intercept = median(v) - slope (m - 1) / 2.
    """
    m = ordered.shape[-1]
    rank = torch.arange(m, dtype=ordered.dtype)
    others = torch.stack([torch.cat([rank[:i], rank[i + 1 :]]) for i in range(m)]).long()
    slopes = (ordered.unsqueeze(-1) - ordered[:, others]) / (rank.unsqueeze(-1) - others)
    slope = middle(ascending(middle(ascending(slopes), -1)), -1)
    intercept = middle(ordered, -1) - slope * (m - 1) / 2
    return intercept.unsqueeze(-1) + slope.unsqueeze(-1) * rank


def confidences(residual: Tensor, strength: float) -> Tensor:
    """omega of every sorted value, `[P, m] -> [P, m]`: 1 within a bound, falling as 1/|e| beyond it.

    strength: lambda of the bound lambda sqrt(2 / m) sqrt(1 - H_ii), H the hat matrix of a line over ranks.
    """
    m = residual.shape[-1]
    if m < 3:
        return torch.ones_like(residual)  # a line passes through two points: there is no residual to judge by
    size = residual.abs()
    scale = 1.4826 * (1 + 5 / (m - 1)) * middle(ascending(size)[:, 1:], -1) + 1e-7
    standardised = size / scale.unsqueeze(-1)
    centred = torch.arange(m, dtype=residual.dtype) - (m - 1) / 2
    leverage = 1 / m + centred.square() / centred.square().sum()
    bound = strength * math.sqrt(2 / m) * torch.sqrt((1 - leverage).clamp(min=0))
    return torch.where(standardised <= bound, 1.0, bound / standardised)


def _reweigh(values: Tensor, strength: float, delta: float) -> tuple[Tensor, Tensor]:
    """Scores `[m]` and restricted values `[m, P]` of one block of coordinates `[m, P]`."""
    ordered, owner = values.t().double().sort(dim=-1, stable=True)
    line = repeated_median_line(ordered)
    omega = confidences(ordered - line, strength)
    kept = torch.where(omega < delta, line, ordered)
    back = owner.argsort(dim=-1)
    omega_by_model = omega.gather(-1, back)
    score = (omega_by_model * omega.std(dim=-1, keepdim=True)).sum(0)
    return score, kept.gather(-1, back).t()


def residual_average(models: Sequence[Weights], strength: float = 2.0, delta: float = 0.1) -> ResidualAverage:
    """Weighted mean of restricted models, shares proportional to (score / max score)^2; sizes play no role.

    strength: lambda; with 2 it takes at least four models to doubt one.
    delta: values with a lower confidence are replaced by the line.
    Models that are all alike score 0 and are weighed alike.
    """
    check_alike(models)
    m = len(models)
    names = [name for name, tensor in models[0].items() if tensor.is_floating_point()]
    equal = shares_of([1.0] * m)
    if m == 1 or not names:
        matrix = flatten(models, names) if names else torch.zeros(m, 0)
        return ResidualAverage(weighted_average(models, equal), equal, torch.zeros(m).double(), matrix)
    matrix = flatten(models, names)
    restricted = torch.empty_like(matrix)
    score = torch.zeros(m, dtype=torch.float64)
    block = max(1, _SLOPES // (m * m))
    for start in range(0, matrix.shape[1], block):
        part, values = _reweigh(matrix[:, start : start + block], strength, delta)
        score += part
        restricted[:, start : start + block] = values
    largest = score.max()
    squares = (score / largest).square() if largest > 0 else torch.ones_like(score)
    shares = squares / squares.sum()
    averaged = unflatten(weighted_sum(list(restricted), shares), models[0], names)
    merged = {
        name: averaged[name] if name in averaged else merge_integers([model[name] for model in models])
        for name in models[0]
    }
    return ResidualAverage(merged, shares, score, restricted)


FEWEST = 4
"""Models among which one can be doubted: through fewer, the line passes too closely."""


@methods.register("arfl")
@dataclass(frozen=True)
class ARFL(TrainingMethod):
    """FedAvg whose models count by how well each of their values fits a robust line through everyone's."""

    summary: ClassVar[str] = "Models far from a robust line through all of them count less, value by value"
    paper: ClassVar[str] = "Fu et al. 2019; FedCorr Tables 2-5"
    tasks: ClassVar[tuple[str, ...]] = ("multiclass", "multilabel")

    rounds: AtLeastOne = 100
    """T: communication rounds."""
    fraction: Share = 1.0
    """C: share of the sites that train in a round."""
    strength: AtLeastZero = 2.0
    """lambda: values within lambda sqrt(2 / m) standardised residuals of the line are believed whole."""
    delta: Rate = 0.1
    """delta: a value less believed than this is replaced by the line's; 0 replaces none."""

    def stages(self) -> list[Stage]:
        return [Stage("train", self.rounds, self.train, asks=(Train,))]

    def train(self, state: State, federation: Federation) -> State:
        """Sites train as in FedAvg; then w = sum_k (s_k / max s)^2 w_k / sum_j (s_j / max s)^2 on restricted models."""
        chosen = federation.choose(self.fraction)
        replies = train_round(federation, state.weights, self.recipe(plain_loss(federation)), chosen)
        found = residual_average([reply.weights for reply in replies.values()], self.strength, self.delta)
        federation.record_sites("aggregation_weight", dict(zip(replies, found.shares.tolist())))
        return replace(state, weights=found.weights)

    def incompatibilities(self, facts: FederationFacts) -> Iterator[Incompatibility]:
        yield from super().incompatibilities(facts)
        if facts.sites is not None and (m := max(1, floor_count(self.fraction * facts.sites))) < FEWEST:
            yield Incompatibility(f"it doubts a model by the others' and {m} a round are too few ({FEWEST} at least)")

    def tiny(self) -> ARFL:
        return replace(self, rounds=3)
