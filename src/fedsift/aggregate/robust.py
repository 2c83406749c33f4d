"""Aggregators that a few far-off models cannot move: coordinate-wise median and trimmed mean."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedsift.aggregate.weights import check_alike, combine
from fedsift.contract.errors import ConfigError
from fedsift.contract.messages import Weights


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
        raise ConfigError(
            f"trim = {alpha}: it must be at least 0 and below 0.5, or nothing is left to average"
        )
    m = len(models)
    cut = int(alpha * m + 1e-9)

    def trimmed(tensors: list[Tensor]) -> Tensor:
        ordered = torch.stack(tensors).sort(dim=0).values if cut else torch.stack(tensors)
        return ordered[cut : m - cut].double().mean(dim=0)

    return combine(models, trimmed)
