"""The size-weighted mean of models, and a server step towards it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from fedsift.aggregate.weights import check_alike, combine, shares_of
from fedsift.contract.messages import Weights

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
