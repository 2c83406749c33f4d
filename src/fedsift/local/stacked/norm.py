"""Batch norm over the real rows of unequal sites."""

from __future__ import annotations

import torch
from torch import Tensor


def masked_batch_norm(
    x: Tensor,
    present: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    momentum: float,
    eps: float,
) -> Tensor:
    """Batch norm in training, each site's statistics from its real rows alone.

    x: `[B, C*ch, H, W]` or `[B, C*F]`; present: `[C, B]`, 1 for real rows; all else: `[C*ch]`. Running
    statistics are updated in place as nn.BatchNorm does (the unbiased variance enters). Rows of padding are
    scaled like the others; as nothing reads them they pass no gradient on.
    """
    present = present.to(x.dtype)
    sites = present.shape[0]
    own = (x.shape[0], sites, -1)
    share = (present / present.sum(-1, keepdim=True)).t().unsqueeze(-1)  # [B, C, 1]
    if x.dim() == 4:
        row_var, row_mean = torch.var_mean(x, dim=(2, 3), correction=0)
        row_var, row_mean = row_var.view(own), row_mean.view(own)
    else:
        row_mean = x.view(own)
        row_var = torch.zeros_like(row_mean)
    mean = (share * row_mean).sum(0)  # [C, ch]
    variance = (share * (row_var + (row_mean - mean).square())).sum(0)
    with torch.no_grad():
        if running_mean is not None and running_var is not None:
            count = present.sum(-1, keepdim=True) * x[0, 0].numel()
            unbiased = variance * (count / (count - 1).clamp(min=1))
            running_mean.lerp_(mean.flatten(), momentum)
            running_var.lerp_(unbiased.flatten(), momentum)
    scale = torch.rsqrt(variance + eps).flatten()
    if weight is not None:
        scale = scale * weight
    shift = -mean.flatten() * scale
    if bias is not None:
        shift = shift + bias
    along = (1, -1, 1, 1) if x.dim() == 4 else (1, -1)
    return torch.addcmul(shift.view(along), x, scale.view(along))
