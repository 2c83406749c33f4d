"""The geometric median of models: Pillutla et al., Robust Aggregation for Federated Learning (RFA), 2022."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedsift.aggregate.average import weighted_average
from fedsift.aggregate.weights import check_alike, shares_of
from fedsift.contract.messages import Weights

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
