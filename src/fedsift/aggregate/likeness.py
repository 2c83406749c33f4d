"""How far updates go and whither, each beside the others': what tells a broken or hostile update from an honest one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from fedsift.contract.messages import Weights

_CHUNK = 1 << 18
"""Coordinates looked at together, so that float64 copies of a large tensor stay small."""
_FEWEST = 4
"""A tensor of fewer numbers may well hold equal ones."""


def relative_length(model: Weights, start: Weights, names: Sequence[str]) -> float:
    """||w_k - w|| / ||w|| over the named tensors; ||w_k|| where w is nothing but zeros."""
    change = length = 0.0
    for name in names:
        before = start[name].double()
        change += float((model[name].double() - before).square().sum())
        length += float(before.square().sum())
    return float((change / length) ** 0.5 if length > 0 else change**0.5)


def remaining(model: Weights, start: Weights, names: Sequence[str]) -> float:
    """||w_k|| / ||w|| over the named tensors; 1 where w is nothing but zeros."""
    after = sum(float(model[name].double().square().sum()) for name in names)
    before = sum(float(start[name].double().square().sum()) for name in names)
    return float((after / before) ** 0.5) if before > 0 else 1.0


def agreements(models: Sequence[Weights], starts: Sequence[Weights], names: Sequence[str]) -> list[float]:
    """cos(u_k, sum of u_j / ||u_j|| over all j but k) for every update u_k = w_k - w, in -1 to 1.

    Every other site counts alike, however long its update is. 0 for an update that goes nowhere, or where the others'
    cancel out. Two passes and sums over pieces: linear in the number of sites.
    """
    squares = torch.zeros(len(models), dtype=torch.float64)
    for rows in _updates(models, starts, names):
        squares += rows.square().sum(1)
    moved = squares > 0
    scale = torch.where(moved, squares, 1.0).rsqrt()
    with_all, whole = torch.zeros_like(squares), 0.0
    for rows in _updates(models, starts, names):
        units = rows * scale[:, None]
        total = units.sum(0)
        with_all += units @ total
        whole += float(total @ total)
    own = moved.double()
    others = (whole - 2 * with_all + own).clamp(min=0).sqrt()
    cosines = torch.where(others > 1e-9, (with_all - own) / others.clamp(min=1e-9), 0.0)
    return [float(value) for value in cosines.clamp(-1, 1)]


def _updates(models: Sequence[Weights], starts: Sequence[Weights], names: Sequence[str]) -> Iterator[Tensor]:
    """Pieces `[C, p]` of all updates, float64, in a fixed order."""
    for name in names:
        after = [model[name].reshape(-1) for model in models]
        before = [start[name].reshape(-1) for start in starts]
        for first in range(0, after[0].numel(), _CHUNK):
            part = slice(first, first + _CHUNK)
            yield torch.stack([w[part] for w in after]).double() - torch.stack([w[part] for w in before])


def flattened(model: Weights, start: Weights) -> list[str]:
    """Floating tensors that hold one number throughout (zeros, say) where those that were sent did not.

    Training moves every number in its own way: no site comes to this by learning.
    """
    return [
        name
        for name, tensor in model.items()
        if tensor.is_floating_point()
        and tensor.numel() >= _FEWEST
        and bool((tensor == tensor.reshape(-1)[0]).all())
        and not bool((start[name] == start[name].reshape(-1)[0]).all())
    ]
