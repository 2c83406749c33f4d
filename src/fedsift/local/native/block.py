"""relu(max_pool(convolution(x) + bias)) of all sites as one operation, with a gradient that skips what is zero."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from fedsift.local.native.call import KINDS, address, in_parts


@dataclass(frozen=True)
class Block:
    """What the kernels need to know of a convolution whose result is pooled 2 x 2."""

    side: int
    padding: int

    @classmethod
    def of(cls, conv: nn.Module, pool: nn.Module) -> Block | None:
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


def block(kind: Block, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Images `[C, B, in, H, W]` to `[C, B, out, H', W']`, `H' = (H + 2 padding - side + 1) // 2`.

    weight: `[C, out, in, side, side]`, best with its input channels last in memory; bias: `[C, out]`.
    """
    result: Tensor = _Block.apply(x.contiguous(), weight, bias, kind)  # type: ignore[no-untyped-call]
    return result


class _Block(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, kind: Block) -> Tensor:
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
