"""Batch norm in training, with the sum and the ReLU that may follow it, as one operation over all sites' channels."""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fedsift.local.native.build import library
from fedsift.local.native.call import KINDS, address

WHOLE = 16
"""Channels come in multiples of this."""


class _Settings(ctypes.Structure):
    _fields_ = (
        ("rows", ctypes.c_int64),
        ("channels", ctypes.c_int64),
        ("relu", ctypes.c_int64),
        ("momentum", ctypes.c_double),
        ("eps", ctypes.c_double),
    )


def norm_suits(images: Tensor) -> bool:
    """Whether there is a kernel for these images. It runs on one thread."""
    return (
        library() is not None
        and torch.get_num_threads() == 1
        and images.dim() == 4
        and images.dtype in KINDS
        and images.shape[1] % WHOLE == 0
        and images.is_contiguous(memory_format=torch.channels_last)
    )


def batch_norm(
    images: Tensor,
    running: tuple[Tensor, Tensor] | None,
    weight: Tensor | None,
    bias: Tensor | None,
    momentum: float,
    eps: float,
    residual: Tensor | None = None,
    relu: bool = False,
) -> Tensor:
    """relu(norm(images) + residual) of `[B, K, H, W]`, channels last; K counts the channels of all sites.

    Statistics are the batch's own; the running ones, `[K]` each, are updated in place as nn.BatchNorm2d does.
    """
    settings = (momentum, eps, relu)
    result: Tensor = _Norm.apply(images, weight, bias, residual, running, settings)  # type: ignore[no-untyped-call]
    return result


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        images: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        residual: Tensor | None,
        running: tuple[Tensor, Tensor] | None,
        settings: tuple[float, float, bool],
    ) -> Tensor:
        momentum, eps, relu = settings
        rows, channels, height, width = images.shape
        if residual is not None:
            residual = residual.contiguous(memory_format=torch.channels_last)
        result = torch.empty_like(images, memory_format=torch.channels_last)
        mean, scale = images.new_empty(2, channels)
        opened = torch.empty(result.shape, dtype=torch.uint8) if relu else None
        ctx.settings = _Settings(rows * height * width, channels, relu, momentum, eps)
        values = (images, residual, weight, bias, *(running or (None, None)), result, mean, scale, opened)
        _kernel("norm_forward", images)(ctypes.byref(ctx.settings), *(address(value) for value in values))
        ctx.save_for_backward(images, opened, weight, mean, scale)
        ctx.residual, ctx.biased = residual is not None, bias is not None
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        images, opened, weight, mean, scale = ctx.saved_tensors
        gradient = gradient.contiguous(memory_format=torch.channels_last)
        by_images = torch.empty_like(images, memory_format=torch.channels_last)
        by_residual = torch.empty_like(by_images) if ctx.residual else None
        by_weight, by_bias = torch.empty_like(mean), torch.empty_like(mean)
        values = (images, gradient, opened, weight, mean, scale, by_images, by_residual, by_weight, by_bias)
        _kernel("norm_backward", images)(ctypes.byref(ctx.settings), *(address(value) for value in values))
        own_weight = None if weight is None else by_weight
        return by_images, own_weight, by_bias if ctx.biased else None, by_residual, None, None


def _kernel(name: str, images: Tensor) -> Any:
    return getattr(library(), f"{name}_{KINDS[images.dtype]}")
