"""Averaging of updates no longer than the usual one: what a single site can move is bounded."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import torch
from torch import Tensor

from fedsift.aggregate.average import weighted_average
from fedsift.aggregate.weights import check_alike
from fedsift.contract.messages import Weights


def update_length(model: Weights, start: Weights) -> float:
    """||w_k - w||_2 over all floating tensors."""
    squares = [
        (tensor.double() - start[name].double()).square().sum()
        for name, tensor in model.items()
        if tensor.is_floating_point()
    ]
    return float(torch.stack(squares).sum().sqrt()) if squares else 0.0


def clipped_average(
    models: Sequence[Weights], shares: Tensor, start: Weights, longest: float | None = None
) -> Weights:
    """w + sum_k shares_k min(1, c / ||w_k - w||) (w_k - w), c the median length unless `longest` says it.

    An update that is short enough counts as it is, bit for bit.
    """
    check_alike([*models, start])
    lengths = [update_length(model, start) for model in models]
    bound = statistics.median(lengths) if longest is None else longest
    shortened = [
        model if length <= bound else _towards(start, model, bound / length)
        for model, length in zip(models, lengths)
    ]
    return weighted_average(shortened, shares)


def _towards(start: Weights, model: Weights, share: float) -> Weights:
    return {
        name: (start[name].double() + share * (tensor.double() - start[name].double())).to(tensor.dtype)
        if tensor.is_floating_point()
        else tensor
        for name, tensor in model.items()
    }
