"""Distances between a network and its anchor, summed over all parameter tensors together."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedsift.contract.errors import ConfigError


def squared_distance(params: Sequence[Tensor], anchors: Sequence[Tensor], lead: int = 0) -> Tensor:
    """||w - w_g||^2 over all tensors: `[]`, or `[C]` when each tensor has `lead` = 1 cohort axis in front.

    An anchor may lack the cohort axis; then it is the same for all sites.
    """
    if not params:
        raise ConfigError("a proximal term needs at least one parameter tensor")
    squares = []
    for param, anchor in zip(params, anchors, strict=True):
        difference = param - anchor
        squares.append(difference.reshape(*difference.shape[:lead], -1).square().sum(-1))
    return torch.stack(squares).sum(0)


def distance(params: Sequence[Tensor], anchors: Sequence[Tensor], lead: int = 0) -> Tensor:
    """||w - w_g||, `[]` or `[C]`; at the anchor the gradient is 0 where that of a plain root would be NaN."""
    squared = squared_distance(params, anchors, lead)
    away = squared > 0
    return torch.where(away, torch.sqrt(torch.where(away, squared, 1.0)), 0.0)


def inner_product(params: Sequence[Tensor], directions: Sequence[Tensor], lead: int = 0) -> Tensor:
    """<w, d> over all tensors: `[]`, or `[C]` with `lead` = 1 cohort axis in front; its gradient is d.

    A direction may lack the cohort axis; then it is the same for all sites.
    """
    products = []
    for param, direction in zip(params, directions, strict=True):
        product = param * direction.detach()
        products.append(product.reshape(*product.shape[:lead], -1).sum(-1))
    return torch.stack(products).sum(0)


def proximal(
    params: Sequence[Tensor],
    anchors: Sequence[Tensor],
    strength: float | Tensor,
    *,
    power: int = 2,
    skip: bool = False,
    lead: int = 0,
) -> Tensor:
    """strength * ||w - w_g||^power, `[]` or `[C]`.

    power 2: FedCorr eq. 5 with strength beta * mu_hat, FedProx with strength mu / 2; power 1: FedCorr's release.
    strength: one number, or `[C]` for a cohort.
    skip: the term is left out, as FedCorr's release does on the first batch of every local epoch: 0, not computed.
    """
    if power not in (1, 2):
        raise ConfigError(f"prox_power = {power}: choose 1 (the norm) or 2 (its square)")
    if skip:
        return torch.zeros(params[0].shape[:lead], dtype=params[0].dtype, device=params[0].device)
    length = squared_distance if power == 2 else distance
    return strength * length(params, anchors, lead)
