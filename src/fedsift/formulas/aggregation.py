"""Aggregation rules by name: weighted mean, median, trimmed mean, Krum and others, and the tensor arithmetic they
need."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from fedsift.core.errors import ConfigError, DataError
from fedsift.core.numbers import floor_count
from fedsift.core.registry import Registry
from fedsift.protocol.messages import Weights

Distance = Literal["layer_sum", "l2"]

_CHUNK = 1 << 18
"""Coordinates compared at a time, so that float64 copies of a large tensor stay small."""


def squared_distances(left: Sequence[Tensor], right: Sequence[Tensor]) -> Tensor:
    """||l_i - r_j||^2 of one tensor over models, float64 `[L, R]`; equal tensors are at exactly 0."""
    total = torch.zeros(len(left), len(right), dtype=torch.float64)
    flat_left, flat_right = [t.reshape(-1) for t in left], [t.reshape(-1) for t in right]
    for start in range(0, flat_left[0].numel(), _CHUNK):
        part = slice(start, start + _CHUNK)
        a = torch.stack([t[part] for t in flat_left]).double()
        b = torch.stack([t[part] for t in flat_right]).double()
        # Differences, not a Gram matrix: two equal models must be at distance 0, without rounding.
        total += torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist").square()
    return total


def pair_distances(
    left: Sequence[Weights], right: Sequence[Weights], names: Sequence[str], distance: Distance
) -> Tensor:
    """Distances between models over the named tensors, float64 `[L, R]`.

    "l2": all tensors as one vector; "layer_sum": the sum of each tensor's L2 norm.
    """
    if distance not in ("l2", "layer_sum"):
        raise ConfigError(f"distance = '{distance}': choose 'layer_sum' or 'l2'")
    total = torch.zeros(len(left), len(right), dtype=torch.float64)
    for name in names:
        squared = squared_distances([model[name] for model in left], [model[name] for model in right])
        total += squared.sqrt() if distance == "layer_sum" else squared
    return total.sqrt() if distance == "l2" else total


def relative_sizes(sizes: Sequence[float] | None, n_sites: int) -> list[float]:
    """s_k = N_k N / sum N of every site; 1 for all without sizes."""
    return [1.0] * n_sites if sizes is None else (shares_of(sizes) * n_sites).tolist()


def each_tensor(rule: Callable[..., Tensor], first: Weights, *others: Weights) -> Weights:
    return {name: rule(tensor, *(other[name] for other in others)) for name, tensor in first.items()}


# What all aggregators share: shares from sizes, checks that models fit together, and flat views of
# them
# ------------------------------------------------------------------------------


def shares_of(sizes: Sequence[float] | Tensor) -> Tensor:
    """N_k / sum N as float64 `[C]` (FedNoRo eq. 2)."""
    counts = torch.as_tensor(sizes, dtype=torch.float64)
    if counts.numel() == 0:
        raise DataError("nothing to aggregate: no site's reply was accepted")
    if not bool(torch.isfinite(counts).all()) or bool((counts < 0).any()):
        raise DataError(f"sizes {counts.tolist()} cannot weigh models: they must be finite and not negative")
    total = counts.sum()
    if total <= 0:
        raise DataError("all sites to aggregate have size 0: at least one must hold a sample")
    return counts / total


def check_alike(models: Sequence[Weights]) -> None:
    """Refuse models whose names, shapes or types differ."""
    if not models:
        raise DataError("nothing to aggregate: no site's reply was accepted")
    first = models[0]
    for position, model in enumerate(models[1:], start=1):
        if model.keys() != first.keys():
            odd = sorted(set(model) ^ set(first))
            raise DataError(f"model {position} does not fit model 0: tensors {odd} are in one of them only")
        for name, tensor in model.items():
            if tensor.shape != first[name].shape or tensor.dtype != first[name].dtype:
                raise DataError(
                    f"model {position} does not fit model 0: '{name}' is "
                    f"{tensor.dtype} {tuple(tensor.shape)}, "
                    f"there it is {first[name].dtype} {tuple(first[name].shape)}"
                )


def merge_integers(tensors: Sequence[Tensor]) -> Tensor:
    """One integer buffer of all models (a count of batches seen), its type kept: the largest."""
    return torch.stack(list(tensors)).amax(0)


def combine(models: Sequence[Weights], merge: Callable[[list[Tensor]], Tensor]) -> Weights:
    """Apply `merge` to every floating tensor and take the largest of integers; order and types are kept."""
    merged: Weights = {}
    for name, first in models[0].items():
        tensors = [model[name] for model in models]
        if first.is_floating_point():
            merged[name] = merge(tensors).to(first.dtype)
        else:
            merged[name] = merge_integers(tensors)
    return merged


def flatten(models: Sequence[Weights], names: Sequence[str]) -> Tensor:
    """The named tensors of all models as one matrix `[C, P]`."""
    return torch.stack([torch.cat([model[name].reshape(-1) for name in names]) for model in models])


def unflatten(vector: Tensor, like: Weights, names: Sequence[str]) -> Weights:
    """The reverse of `flatten` for one row: names, shapes and types as in `like`."""
    parts = torch.split(vector, [like[name].numel() for name in names])
    return {name: part.reshape(like[name].shape).to(like[name].dtype) for name, part in zip(names, parts)}


# The size-weighted mean of models, and a server step towards it
# ------------------------------------------------------------------------------

Merge: TypeAlias = Callable[[Sequence[Weights], Sequence[float], Weights], Weights]
"""How models become one: the models, what each counts for, and the weights that all trained from."""


def weighted_sum(tensors: Sequence[Tensor], shares: Tensor) -> Tensor:
    """sum_k shares_k * tensor_k, summed in float64 in the given order: float64 of the tensors' shape.

    A share of 0 leaves its tensor out altogether, so that not even a NaN in it can pass.
    """
    total = torch.zeros(tensors[0].shape, dtype=torch.float64)
    for tensor, share in zip(tensors, shares.tolist(), strict=True):
        if share != 0:
            total.add_(tensor.detach().to("cpu"), alpha=share)
    return total


def weighted_average(models: Sequence[Weights], shares: Tensor) -> Weights:
    """The models' weighted sum with given shares `[C]` that sum to 1."""
    check_alike(models)
    if len(models) == 1:
        return {name: tensor.detach().clone() for name, tensor in models[0].items()}
    return combine(models, lambda tensors: weighted_sum(tensors, shares))


def average(models: Sequence[Weights], sizes: Sequence[float] | Tensor | None = None) -> Weights:
    """sum_k N_k / N * w_k over every floating tensor, buffers included (FedNoRo eq. 2, FedCorr eq. 3).

    sizes: N_k; None weighs all alike. Of integer buffers the largest value is taken. One model is
    returned bit for bit (a copy).
    """
    shares = shares_of([1.0] * len(models) if sizes is None else sizes)
    return weighted_average(models, shares)


def server_step(
    weights: Weights,
    models: Sequence[Weights],
    sizes: Sequence[float] | Tensor | None = None,
    server_lr: float = 1.0,
    merge: Merge | None = None,
) -> Weights:
    """w_g + server_lr * sum_k N_k / N * (w_k - w_g); with server_lr = 1 this is the average.

    FedDPCont Alg. 2 line 18 with its sign mended and weights as in section 3.1. merge: another rule than the average,
    given models, sizes and w_g.
    """
    counts = [1.0] * len(models) if sizes is None else [float(size) for size in sizes]
    averaged = average(models, counts) if merge is None else merge(models, counts, weights)
    if server_lr == 1.0:
        return averaged
    check_alike([weights, averaged])
    return {
        name: (old.double() + server_lr * (averaged[name].double() - old.double())).to(old.dtype)
        if old.is_floating_point()
        else averaged[name]
        for name, old in weights.items()
    }


# Aggregators that a few far-off models cannot move: coordinate-wise median and trimmed mean
# ------------------------------------------------------------------------------


def middle(ordered: Tensor, dim: int = 0) -> Tensor:
    """The median along `dim` of sorted values: of an even number, the mean of the two middle ones."""
    n = ordered.shape[dim]
    upper = ordered.select(dim, n // 2)
    return upper if n % 2 else (ordered.select(dim, n // 2 - 1).double() + upper.double()) / 2


def coordinate_median(models: Sequence[Weights]) -> Weights:
    """The median of every coordinate; sizes play no role. One model is returned bit for bit."""
    check_alike(models)
    return combine(models, lambda tensors: middle(torch.stack(tensors).sort(dim=0).values).clone())


def trimmed_mean(models: Sequence[Weights], alpha: float = 0.2) -> Weights:
    """The mean of every coordinate without its floor(alpha m) smallest and as many largest values."""
    check_alike(models)
    if not 0 <= alpha < 0.5:
        raise ConfigError(f"trim = {alpha}: it must be at least 0 and below 0.5, or nothing is left to average")
    m = len(models)
    cut = int(alpha * m + 1e-9)

    def trimmed(tensors: list[Tensor]) -> Tensor:
        ordered = torch.stack(tensors).sort(dim=0).values if cut else torch.stack(tensors)
        return ordered[cut : m - cut].double().mean(dim=0)

    return combine(models, trimmed)


# Averaging of updates no longer than the usual one: what a single site can move is bounded
# ------------------------------------------------------------------------------


def update_length(model: Weights, start: Weights) -> float:
    """||w_k - w||_2 over all floating tensors."""
    squares = [
        (tensor.double() - start[name].double()).square().sum()
        for name, tensor in model.items()
        if tensor.is_floating_point()
    ]
    return float(torch.stack(squares).sum().sqrt()) if squares else 0.0


def clipped_average(models: Sequence[Weights], shares: Tensor, start: Weights, longest: float | None = None) -> Weights:
    """w + sum_k shares_k min(1, c / ||w_k - w||) (w_k - w), c the median length unless `longest` says it.

    An update that is short enough counts as it is, bit for bit.
    """
    check_alike([*models, start])
    lengths = [update_length(model, start) for model in models]
    bound = statistics.median(lengths) if longest is None else longest
    shortened = [
        model if length <= bound else _towards(start, model, bound / length) for model, length in zip(models, lengths)
    ]
    return weighted_average(shortened, shares)


def _towards(start: Weights, model: Weights, share: float) -> Weights:
    return {
        name: (start[name].double() + share * (tensor.double() - start[name].double())).to(tensor.dtype)
        if tensor.is_floating_point()
        else tensor
        for name, tensor in model.items()
    }


# The geometric median of models: Pillutla et al., Robust Aggregation for Federated Learning (RFA),
# 2022
# ------------------------------------------------------------------------------

STEPS = 1000
"""Weiszfeld's steps at the most. RFA takes 3 to 8; from the Gram matrix alone a step costs next to nothing."""
SMOOTHING = 1e-6
"""nu: a distance counts as at least this, so that a model may lie on the median itself."""
CLOSE = 1e-12
"""Stop when no share moves by more."""


def geometric_median(models: Sequence[Weights], sizes: Sequence[float] | Tensor) -> Weights:
    """argmin_v sum_k N_k / N ||v - w_k|| by the smoothed Weiszfeld algorithm (RFA, Algorithm 2).

    Each step weighs model k by N_k / max(nu, ||v - w_k||). Only shares are iterated: v is always their average.
    """
    check_alike(models)
    plain = shares_of(sizes)
    if len(models) < 3:
        return weighted_average(models, plain)
    gram = _gram(models)
    shares = plain
    for _ in range(STEPS):
        # ||v - w_k||^2 with v = sum_j s_j w_j, from inner products of differences alone
        squared = shares @ gram @ shares - 2 * gram @ shares + gram.diagonal()
        pulled = plain / squared.clamp(min=0).sqrt().clamp(min=SMOOTHING)
        moved = pulled / pulled.sum()
        done = float((moved - shares).abs().max()) < CLOSE
        shares = moved
        if done:
            break
    return weighted_average(models, shares)


def _gram(models: Sequence[Weights]) -> Tensor:
    """Inner products of the models' differences from the first, float64 `[m, m]`: small numbers lose nothing."""
    total = torch.zeros(len(models), len(models), dtype=torch.float64)
    for name, first in models[0].items():
        if first.is_floating_point():
            rows = torch.stack([(model[name] - first).reshape(-1) for model in models]).double()
            total += rows @ rows.T
    return total


# Krum and multi-Krum: Blanchard et al., Machine Learning with Adversaries, NeurIPS 2017
# ------------------------------------------------------------------------------


def krum_scores(squared: Tensor, hostile: int) -> Tensor:
    """s(i) = sum of ||w_i - w_j||^2 over the m - f - 2 models j nearest to i, float64 `[m]`.

    squared: squared distances `[m, m]`; hostile: f, models that may be anything. At least one neighbour counts, so that
    small cohorts have a score as well.
    """
    m = len(squared)
    neighbours = min(max(m - hostile - 2, 1), m - 1)
    others = squared.clone()
    others.fill_diagonal_(torch.inf)
    return others.sort(dim=1).values[:, :neighbours].sum(dim=1)


def krum_choice(models: Sequence[Weights], hostile: int, keep: int = 1) -> list[int]:
    """Positions of the `keep` models with the smallest scores, in their own order; ties go to the earlier one."""
    if len(models) <= keep:
        return list(range(len(models)))
    names = [name for name, tensor in models[0].items() if tensor.is_floating_point()]
    scores = krum_scores(pair_distances(models, models, names, "l2").square(), hostile)
    return sorted(torch.argsort(scores, stable=True)[:keep].tolist())


Rule: TypeAlias = Callable[[Sequence[Weights], Sequence[float], Weights, float], Weights]
"""An aggregation rule: models, their sizes, the weights that the sites trained from, the share of sites that may send
anything at all; to one model."""

rules: Registry[Rule] = Registry("aggregation rule", group="fedsift.rules")
GUARDED_BY_SHARE = ("trimmed", "krum", "multi-krum")
"""Rules that use the share of hostile sites."""


@rules.register("mean")
def mean_rule(models: Sequence[Weights], sizes: Sequence[float], start: Weights, hostile: float) -> Weights:
    """The mean by size, which trusts everyone."""
    return average(models, sizes)


@rules.register("median")
def median_rule(models: Sequence[Weights], sizes: Sequence[float], start: Weights, hostile: float) -> Weights:
    """The median of each coordinate; a declared size would be one more thing to lie about."""
    return coordinate_median(models)


@rules.register("trimmed")
def trimmed_rule(models: Sequence[Weights], sizes: Sequence[float], start: Weights, hostile: float) -> Weights:
    """The mean of each coordinate without a share `hostile` of the values at both ends."""
    return trimmed_mean(models, hostile)


@rules.register("geometric-median")
def geometric_rule(models: Sequence[Weights], sizes: Sequence[float], start: Weights, hostile: float) -> Weights:
    """The geometric median of the models, by size."""
    return geometric_median(models, sizes)


@rules.register("clipped")
def clipped_rule(models: Sequence[Weights], sizes: Sequence[float], start: Weights, hostile: float) -> Weights:
    """The mean by size of updates no longer than the usual one."""
    return clipped_average(models, shares_of(sizes), start)


@rules.register("krum")
def krum_rule(models: Sequence[Weights], sizes: Sequence[float], start: Weights, hostile: float) -> Weights:
    """The one model that is nearest to the others."""
    return average([models[i] for i in krum_choice(models, _hostile_count(models, hostile), 1)])


@rules.register("multi-krum")
def multi_krum_rule(models: Sequence[Weights], sizes: Sequence[float], start: Weights, hostile: float) -> Weights:
    """The mean of the models that are nearest to the others, without as many as may be hostile."""
    f = _hostile_count(models, hostile)
    return average([models[i] for i in krum_choice(models, f, max(1, len(models) - f))])


def _hostile_count(models: Sequence[Weights], hostile: float) -> int:
    return floor_count(hostile * len(models))
