"""Winograd's 3 x 3 convolutions by native kernels; `fedsift.local.stacked.winograd` says what they compute."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from fedsift.local.native.call import KINDS, address, in_parts

WHOLE = 16
"""Channels come in multiples of this."""


def knows(images: Tensor, kernels: Tensor) -> bool:
    """Whether there is a kernel for these channels and numbers."""
    out, channels = kernels.shape[1:3]
    return images.dtype in KINDS and channels % WHOLE == 0 and out % WHOLE == 0


def tiles_forward(images: Tensor, kernels: Tensor, padding: int) -> Tensor:
    """`[B, C*in, H, W]` by `[C, out, 3, 3, in]` to `[B, C*out, H', W']`, images channels last."""
    height, width = images.shape[2:]
    results = _empty(
        images, len(kernels) * kernels.shape[1], height + 2 * padding - 2, width + 2 * padding - 2
    )
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
