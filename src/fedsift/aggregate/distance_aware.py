"""FedNoRo's distance-aware aggregation: noisy sites far from every clean one count less (eq. 6-7)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedsift.aggregate.average import weighted_average
from fedsift.aggregate.weights import check_alike, shares_of
from fedsift.contract.errors import ConfigError
from fedsift.contract.messages import Weights

Distance = Literal["layer_sum", "l2"]

_CHUNK = 1 << 18
"""Coordinates compared at a time, so that float64 copies of a large tensor stay small."""


@dataclass(frozen=True)
class DistanceAware:
    """The aggregated model with the figures that led to it, all in the order of the models."""

    weights: Weights
    shares: Tensor
    """Float64 `[C]`, sum 1: proportional to N_i e^(-D_i)."""
    distance: Tensor
    """d, float64 `[C]`: distance of a noisy model to its nearest clean one, 0 for clean ones."""
    scaled: Tensor
    """D = d / max d, float64 `[C]`."""


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


def distance_aware(
    models: Sequence[Weights],
    sizes: Sequence[float] | Tensor,
    clean: Collection[int],
    *,
    distance: Distance = "layer_sum",
    include_buffers: bool = True,
    buffers: Collection[str] = (),
) -> DistanceAware:
    """Average with shares proportional to N_i e^(-D_i), D_i = d_i / max d (FedNoRo eq. 6-7).

    d_i is the distance of noisy model i to the nearest clean one, 0 for a clean one.
    clean: positions in `models`.
    distance and include_buffers: "l2" without buffers is the paper, "layer_sum" with floating buffers
    (running statistics) the release. `buffers` names the tensors that are not parameters; integer ones
    never count. Without a clean site, without a noisy one, or with max d = 0 this is the plain average.
    """
    check_alike(models)
    plain = shares_of(sizes)
    nearest = torch.zeros(len(models), dtype=torch.float64)
    noisy = [i for i in range(len(models)) if i not in clean]
    trusted = sorted(clean)
    if noisy and trusted:
        names = [
            name
            for name, tensor in models[0].items()
            if tensor.is_floating_point() and (include_buffers or name not in buffers)
        ]
        pairs = pair_distances([models[i] for i in noisy], [models[j] for j in trusted], names, distance)
        nearest[noisy] = pairs.min(dim=1).values
    largest = nearest.max()
    scaled = nearest / largest if largest > 0 else torch.zeros_like(nearest)
    shares = plain * torch.exp(-scaled)
    shares = shares / shares.sum()
    return DistanceAware(weighted_average(models, shares), shares, nearest, scaled)
