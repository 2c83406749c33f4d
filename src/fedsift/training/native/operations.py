"""Network blocks on native kernels (Winograd's 3 x 3 convolutions, batch norm, pooling) for the stacked trainer."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from fedsift.training.native.building import KINDS, address, in_parts, library

# relu(max_pool(convolution(x) + bias)) of all sites as one operation, with a gradient that skips what
# is zero
# ------------------------------------------------------------------------------


@dataclass(frozen=True)
class PooledBlock:
    """What the kernels need to know of a convolution whose result is pooled 2 x 2."""

    side: int
    padding: int

    @classmethod
    def of(cls, conv: nn.Module, pool: nn.Module) -> PooledBlock | None:
        """None when one of the two is of a kind that the kernels do not know."""
        if not isinstance(conv, nn.Conv2d) or not isinstance(pool, nn.MaxPool2d):
            return None
        side, padding = _one(conv.kernel_size), _one(conv.padding)
        plain = (conv.stride, conv.dilation, conv.groups, conv.padding_mode) == ((1, 1), (1, 1), 1, "zeros")
        halves = _one(pool.kernel_size) == 2 and _one(pool.stride) == 2 and _one(pool.padding) == 0
        halves = halves and _one(pool.dilation) == 1 and not pool.ceil_mode and not pool.return_indices
        if side is None or padding is None or not plain or not halves or conv.weight.dtype not in KINDS:
            return None
        return cls(side, padding)


def _one(value: Any) -> int | None:
    """The number that both axes share."""
    if isinstance(value, tuple):
        return _one(value[0]) if len(set(value)) == 1 else None
    return value if isinstance(value, int) else None


def block(kind: PooledBlock, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Images `[C, B, in, H, W]` to `[C, B, out, H', W']`, `H' = (H + 2 padding - side + 1) // 2`.

    weight: `[C, out, in, side, side]`, best with its input channels last in memory; bias: `[C, out]`.
    """
    result: Tensor = _Block.apply(x.contiguous(), weight, bias, kind)  # type: ignore[no-untyped-call]
    return result


class _Block(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, kind: PooledBlock) -> Tensor:
        sites, rows, channels, height, width = x.shape
        kernels = weight.permute(0, 1, 3, 4, 2).contiguous()
        out = weight.shape[1]
        sides = [(size + 2 * kind.padding - kind.side + 1) // 2 for size in (height, width)]
        pooled = x.new_empty(sites, rows, out, *sides)
        places = torch.empty(pooled.shape, dtype=torch.uint8)
        shape = (ctypes.c_int64 * 6)(channels, height, width, out, kind.side, kind.padding)
        own_bias = None if bias is None else bias.contiguous()
        pointers = [address(value) for value in (x, kernels, own_bias, pooled, places)]
        _over(sites * rows, f"block_forward_{KINDS[x.dtype]}", shape, rows, pointers)
        ctx.save_for_backward(x, kernels, pooled, places)
        ctx.shape, ctx.biased = shape, bias is not None
        return pooled

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, kernels, pooled, places = ctx.saved_tensors
        gradient = gradient.contiguous()
        by_x = torch.empty_like(x) if ctx.needs_input_grad[0] else None
        by_kernels = torch.empty_like(kernels)
        by_bias = kernels.new_empty(kernels.shape[:2]) if ctx.biased else None
        pointers = [address(v) for v in (x, kernels, pooled, places, gradient, by_x, by_kernels, by_bias)]
        _over(len(x), f"block_backward_{KINDS[x.dtype]}", ctx.shape, x.shape[1], pointers)
        return by_x, by_kernels.permute(0, 1, 4, 2, 3), by_bias, None


def _over(count: int, name: str, shape: Any, rows: int, pointers: list[int | None]) -> None:
    """Call a kernel for `count` images or sites, divided among torch's threads."""

    def call(kernel: Any, part: int, parts: int) -> None:
        kernel(shape, rows, count * part // parts, count * (part + 1) // parts, *pointers)

    in_parts(min(torch.get_num_threads(), count), name, call)


# A step's images from bytes: looked up, cropped, flipped and normalised in one pass
# ------------------------------------------------------------------------------


def take_images(
    pool: Tensor,
    rows: Tensor,
    shift: Tensor | None,
    flip: Tensor | None,
    padding: int,
    scale: Tensor,
    offset: Tensor,
    images: Tensor,
) -> None:
    """Fill `images`, `[C, B, ch, H, W]` in any memory order, with `byte * scale - offset`; padding becomes 0.

    pool: uint8 `[N, ch, H, W]`, contiguous; rows: int64 `[C * B]`; shift: int64 `[C * B, 2]` and flip: bool `[C * B]`,
    None for neither; scale, offset: float32 `[C, ch]`.
    """
    sites, batch, channels, height, width = images.shape
    kernels = library()
    assert kernels is not None and pool.is_contiguous() and pool.shape[1:] == images.shape[2:]
    sizes = (ctypes.c_int64 * 10)(channels, height, width, batch, padding, *images.stride())
    kind = "double" if images.dtype == torch.float64 else "float"
    getattr(kernels, f"take_images_{kind}")(
        sizes,
        0,
        sites * batch,
        pool.data_ptr(),
        rows.data_ptr(),
        None if shift is None else shift.data_ptr(),
        None if flip is None else flip.data_ptr(),
        scale.data_ptr(),
        offset.data_ptr(),
        images.data_ptr(),
    )


# Batch norm in training, with the sum and the ReLU that may follow it, as one operation over all
# sites' channels
# ------------------------------------------------------------------------------

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


def knows(images: Tensor, kernels: Tensor) -> bool:
    """Whether there is a kernel for these channels and numbers."""
    out, channels = kernels.shape[1:3]
    return images.dtype in KINDS and channels % WHOLE == 0 and out % WHOLE == 0


def tiles_forward(images: Tensor, kernels: Tensor, padding: int) -> Tensor:
    """`[B, C*in, H, W]` by `[C, out, 3, 3, in]` to `[B, C*out, H', W']`, images channels last."""
    height, width = images.shape[2:]
    results = _empty(images, len(kernels) * kernels.shape[1], height + 2 * padding - 2, width + 2 * padding - 2)
    _call("tiles_forward", _sizes(images, kernels, padding), images, kernels, results)
    return results


def tiles_backward(
    gradient: Tensor, images: Tensor, kernels: Tensor, padding: int, wants_images: bool
) -> tuple[Tensor | None, Tensor]:
    """Gradients by images, if wanted, and by kernels `[C, out, 3, 3, in]`, from `[B, C*out, H', W']`, channels last."""
    sizes = _sizes(images, kernels, padding)
    by_images = _empty(images, *images.shape[1:]) if wants_images else None
    if by_images is not None:
        _call("tiles_backward", sizes, gradient, kernels, by_images)
    by_kernels = torch.empty_like(kernels)
    _call("tiles_kernels", sizes, images, gradient, by_kernels)
    return by_images, by_kernels


def _empty(images: Tensor, channels: int, height: int, width: int) -> Tensor:
    return images.new_empty(images.shape[0], height, width, channels).permute(0, 3, 1, 2)


def _sizes(images: Tensor, kernels: Tensor, padding: int) -> ctypes.Array[ctypes.c_int64]:
    rows, _, height, width = images.shape
    sites, out, _, _, channels = kernels.shape
    return (ctypes.c_int64 * 7)(rows, height, width, channels, out, padding, sites)


def _call(
    name: str,
    sizes: ctypes.Array[ctypes.c_int64],
    first: Tensor,
    second: Tensor,
    to: Tensor,
) -> None:
    pointers = [address(value) for value in (first, second, to)]
    in_parts(
        torch.get_num_threads(),
        f"{name}_{KINDS[to.dtype]}",
        lambda function, part, parts: function(sizes, part, parts, *pointers),
    )
