"""Batch norm over the real rows of unequal sites."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


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

    x: `[B, C*ch, H, W]` or `[B, C*F]`; present: `[C, B]`, 1 for real rows; all else: `[C*ch]`. Running statistics are
    updated in place as nn.BatchNorm does (the unbiased variance enters). Rows of padding are scaled like the others;
    they get no gradient.
    """
    images = x if x.dim() == 4 else x[:, :, None, None]
    channels = images.shape[1] // len(present)
    keep = present.t().to(x.dtype).repeat_interleave(channels, dim=1)  # [B, C*ch]
    count = keep.sum(0) * images[0, 0].numel()
    mean, variance = _statistics(images.detach(), keep, count)
    if running_mean is not None and running_var is not None:
        running_mean.lerp_(mean, momentum)
        running_var.lerp_(variance * (count / (count - 1).clamp(min=1)), momentum)
    weight = torch.ones_like(mean) if weight is None else weight
    bias = torch.zeros_like(mean) if bias is None else bias
    values: Tensor = _Normalise.apply(images, weight, bias, mean, variance, keep, count, eps)  # type: ignore[no-untyped-call]
    return values if x.dim() == 4 else values[:, :, 0, 0]


def _statistics(images: Tensor, keep: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and (biased) variance of every channel over the rows that count, in two passes: `[C*ch]` each.

    Sums run over the pixels of a row first, with the channels side by side as they lie in memory.
    """
    rows, channels, height, width = images.shape
    pixels = images.permute(0, 2, 3, 1).reshape(rows, height * width, channels)
    mean = (keep * pixels.sum(1)).sum(0) / count
    spread = (pixels - mean).square_().sum(1)
    return mean, (keep * spread).sum(0) / count


class _Normalise(torch.autograd.Function):
    """weight * (x - mean) / sqrt(variance + eps) + bias, with mean and variance functions of the rows kept."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        mean: Tensor,
        variance: Tensor,
        keep: Tensor,
        count: Tensor,
        eps: float,
    ) -> Tensor:
        ctx.save_for_backward(x, weight, mean, variance, keep, count)
        ctx.eps = eps
        return torch.nn.functional.batch_norm(x, mean, variance, weight, bias, False, 0.0, eps)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """dx = w s (g - sum g / n - xhat sum(g xhat) / n) on rows that count, where s = 1 / sqrt(variance + eps).

        The first term and both sums are what the norm with fixed statistics gives back; the rest is linear in x.
        """
        x, weight, mean, variance, keep, count = ctx.saved_tensors
        own, by_weight, by_bias = torch.ops.aten.native_batch_norm_backward(
            gradient, x, weight, mean, variance, None, None, False, ctx.eps, [True, True, True]
        )
        scale = torch.rsqrt(variance + ctx.eps)
        slope = weight * scale.square() * by_weight / count
        offset = weight * scale * by_bias / count - slope * mean
        along = (*keep.shape, 1, 1)
        own.addcmul_(x, (keep * slope).view(along), value=-1.0)
        own.sub_((keep * offset).view(along))
        return own, by_weight, by_bias, None, None, None, None, None
