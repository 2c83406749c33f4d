"""Mixup: each sample is blended with a partner of its own batch."""

from __future__ import annotations

import torch
from torch import Tensor


def blend(values: Tensor, partners: Tensor, share: float | Tensor) -> Tensor:
    """share * values + (1 - share) * partners; `share` is one number or broadcasts against the values."""
    return share * values + (1 - share) * partners


def take_partners(values: Tensor, permutation: Tensor) -> Tensor:
    """values[perm] along the batch axis: `[B, ...]` with `[B]`, or `[C, B, ...]` with `[C, B]`."""
    if permutation.dim() == 1:
        return values[permutation]
    cohort = torch.arange(len(permutation), device=permutation.device).unsqueeze(-1)
    return values[cohort, permutation]


def mixup(
    inputs: Tensor, target: Tensor, permutation: Tensor, share: float | Tensor
) -> tuple[Tensor, Tensor]:
    """lambda x + (1 - lambda) x[perm], and the same for the dense target (FedCorr section 3.2).

    inputs `[B, ...]` or `[C, B, ...]`, target `[B, K]` or `[C, B, K]`; permutation `[B]` or `[C, B]`;
    share: lambda, one number or `[C]`. Cross-entropy with the mixed target equals lambda CE(z, y) + (1 -
    lambda) CE(z, y[perm]).
    """

    def mix(values: Tensor) -> Tensor:
        weight = (
            share.reshape(-1, *[1] * (values.dim() - 1))
            if isinstance(share, Tensor) and share.dim()
            else share
        )
        return blend(values, take_partners(values, permutation), weight)

    return mix(inputs), mix(target)
