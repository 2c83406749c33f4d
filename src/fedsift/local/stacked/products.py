"""Convolutions of many channels on few pixels, as matrix products of their windows.

A library's convolution rearranges its kernels on every call. Where the kernels are larger than the images, as in the
last stage of a deep network with small batches, that takes longer than the multiplications; products need none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from fedsift.local.stacked import layout

MANY_CHANNELS = 128


@dataclass(frozen=True)
class Geometry:
    """A convolution's windows: kernel size, stride and padding, each of rows and columns."""

    size: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]

    @classmethod
    def of(cls, conv: nn.Conv2d) -> Geometry | None:
        """None for a convolution with groups, or of a kind that is rare."""
        if conv.groups != 1 or conv.dilation != (1, 1) or isinstance(conv.padding, str):
            return None
        if conv.out_channels < MANY_CHANNELS:
            return None
        (high, wide), (down, right), (top, left) = conv.kernel_size, conv.stride, conv.padding
        return cls((high, wide), (down, right), (top, left))

    def result(self, height: int, width: int) -> tuple[int, int]:
        """Height and width of the result."""
        sides = zip((height, width), self.size, self.stride, self.padding)
        high, wide = ((side + 2 * pad - own) // step + 1 for side, own, step, pad in sides)
        return high, wide

    def suits(self, images: Tensor, kernels: Tensor) -> bool:
        """Whether products are faster: few pixels in the result, for the channels that it has."""
        high, wide = self.result(images.shape[2], images.shape[3])
        few = images.shape[0] * high * wide < 2 * kernels.shape[1]
        return few and images.is_contiguous(memory_format=torch.channels_last)


def convolve_by_products(images: Tensor, kernels: Tensor, geometry: Geometry) -> Tensor:
    """Images `[B, C*in, H, W]` by kernels `[C, out, in, h, w]` to `[B, C*out, H', W']`; channels last in memory."""
    result: Tensor = _Products.apply(images, kernels, geometry)  # type: ignore[no-untyped-call]
    return result


class _Products(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, images: Tensor, kernels: Tensor, geometry: Geometry) -> Tensor:
        sites, rows = len(kernels), images.shape[0]
        windows = _windows(images, sites, geometry)
        matrix = _matrix(kernels)
        ctx.save_for_backward(windows, matrix)
        ctx.geometry, ctx.shape, ctx.kernels = geometry, images.shape, kernels.shape
        products = torch.bmm(windows, matrix.transpose(1, 2))  # [C, B*H'*W', out]
        high, wide = geometry.result(images.shape[2], images.shape[3])
        return layout.images_from_pixels(products.view(sites, rows, high, wide, -1).permute(1, 2, 3, 0, 4))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        windows, matrix = ctx.saved_tensors
        sites, out, channels, high, wide = ctx.kernels
        own = layout.pixels(gradient, sites).permute(3, 0, 1, 2, 4).reshape(sites, -1, out)
        by_matrix = torch.bmm(own.transpose(1, 2), windows)
        by_kernels = by_matrix.view(sites, out, high, wide, channels).permute(0, 1, 4, 2, 3)
        by_images = None
        if ctx.needs_input_grad[0]:
            by_images = _add_windows(torch.bmm(own, matrix), ctx.shape, sites, ctx.geometry)
        return by_images, by_kernels, None


def _matrix(kernels: Tensor) -> Tensor:
    """`[C, out, in, h, w] -> [C, out, h*w*in]`, a view of kernels whose input channels are last in memory."""
    return kernels.permute(0, 1, 3, 4, 2).flatten(2)


def _windows(images: Tensor, sites: int, geometry: Geometry) -> Tensor:
    """All windows of all images, `[C, B*H'*W', h*w*in]`."""
    (top, left), (high, wide), (down, right) = geometry.padding, geometry.size, geometry.stride
    padded = F.pad(layout.pixels(images, sites), (0, 0, 0, 0, left, left, top, top))
    rows, _, _, _, channels = padded.shape
    by_row, by_line, by_column, by_site, by_channel = padded.stride()
    lines, columns = geometry.result(images.shape[2], images.shape[3])
    windows = padded.as_strided(
        (sites, rows, lines, columns, high, wide, channels),
        (by_site, by_row, by_line * down, by_column * right, by_line, by_column, by_channel),
    )
    return windows.reshape(sites, rows * lines * columns, high * wide * channels)


def _add_windows(values: Tensor, shape: torch.Size, sites: int, geometry: Geometry) -> Tensor:
    """The reverse: every pixel's sum over the windows that it lies in, as images of the given shape."""
    rows, channels, height, width = shape
    (top, left), (high, wide), (down, right) = geometry.padding, geometry.size, geometry.stride
    lines, columns = geometry.result(height, width)
    windows = values.view(sites, rows, lines, columns, high, wide, channels // sites).permute(
        1, 2, 3, 0, 4, 5, 6
    )
    padded = values.new_zeros(rows, height + 2 * top, width + 2 * left, sites, channels // sites)
    for i in range(high):
        for j in range(wide):
            reached = padded[
                :, i : i + down * (lines - 1) + 1 : down, j : j + right * (columns - 1) + 1 : right
            ]
            reached += windows[:, :, :, :, i, j]
    return layout.images_from_pixels(padded[:, top : top + height, left : left + width])
