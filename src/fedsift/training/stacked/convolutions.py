"""3 x 3 convolutions of many channels with a quarter of the multiplications (Winograd's F(4 x 4, 3 x 3)).

Lavin and Gray, "Fast algorithms for convolutional neural networks", 2016: a tile of 6 x 6 numbers and a kernel of 3 x 3
are transformed so that 36 products give 4 x 4 results that would take 144. With many channels the products are matrix
products, and the transforms are small beside them. The points of interpolation are 0, 1, -1, 1/2, -2 and infinity: they
lose less to rounding than whole numbers do, about three times what an ordinary convolution loses.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from fedsift.training import native
from fedsift.training.stacked import layout

# Convolutions of many channels on few pixels, as matrix products of their windows
# ------------------------------------------------------------------------------

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
    windows = values.view(sites, rows, lines, columns, high, wide, channels // sites).permute(1, 2, 3, 0, 4, 5, 6)
    padded = values.new_zeros(rows, height + 2 * top, width + 2 * left, sites, channels // sites)
    for i in range(high):
        for j in range(wide):
            reached = padded[:, i : i + down * (lines - 1) + 1 : down, j : j + right * (columns - 1) + 1 : right]
            reached += windows[:, :, :, :, i, j]
    return layout.images_from_pixels(padded[:, top : top + height, left : left + width])


TILE, RESULT = 6, 4
CHANNELS, CHANNELS_IN_TORCH = 32, 128
"""Fewer channels than this do not pay for the transforms, by native kernels and by torch."""
POINTS = (0.0, 1.0, -1.0, 0.5, -2.0)
Matrix: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]


def padding_of(conv: nn.Conv2d) -> int | None:
    """How a 3 x 3 convolution with stride 1 and channels enough is padded; None for any other."""
    plain = (conv.kernel_size, conv.stride, conv.dilation, conv.groups) == ((3, 3), (1, 1), (1, 1), 1)
    if not plain or min(conv.in_channels, conv.out_channels) < CHANNELS:
        return None
    return {(0, 0): 0, (1, 1): 1}.get(conv.padding)  # type: ignore[arg-type]


def suits(images: Tensor, kernels: Tensor, padding: int) -> bool:
    """Whether it is worth it: channels enough, last in memory, and tiles with little waste at the edges."""
    if min(kernels.shape[1:3]) < (CHANNELS if _compiled(images, kernels) else CHANNELS_IN_TORCH):
        return False
    height, width = (side + 2 * padding - 2 for side in images.shape[2:])
    full = _tiles(height) * _tiles(width) * RESULT**2
    return height * width >= 0.75 * full and images.is_contiguous(memory_format=torch.channels_last)


def _compiled(images: Tensor, kernels: Tensor) -> bool:
    """Whether native kernels do it. They run on one thread: others would have to wait for torch's, which wait awake."""
    return native.library() is not None and torch.get_num_threads() == 1 and native.knows(images, kernels)


def convolve_by_tiles(images: Tensor, kernels: Tensor, padding: int) -> Tensor:
    """Images `[B, C*in, H, W]` by kernels `[C, out, in, 3, 3]` to `[B, C*out, H', W']`; channels last in memory."""
    function = _Compiled if _compiled(images, kernels) else _Winograd
    result: Tensor = function.apply(images, kernels, padding)  # type: ignore[no-untyped-call]
    return result


class _Compiled(torch.autograd.Function):
    """What `_Winograd` does, by native kernels."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, kernels: Tensor, padding: int) -> Tensor:
        own = kernels.permute(0, 1, 3, 4, 2).contiguous()
        ctx.save_for_backward(images, own)
        ctx.padding = padding
        return native.tiles_forward(images, own, padding)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        images, own = ctx.saved_tensors
        by_images, by_kernels = native.tiles_backward(
            gradient.contiguous(memory_format=torch.channels_last),
            images,
            own,
            ctx.padding,
            ctx.needs_input_grad[0],
        )
        return by_images, by_kernels.permute(0, 1, 4, 2, 3), None


class _Winograd(torch.autograd.Function):
    """result = A' [(G kernel G') * (B' tile B)] A, summed over input channels inside the brackets.

    Each transform from both sides is one matrix, the Kronecker square of A', G or B'.
    """

    @staticmethod
    def forward(ctx: Any, images: Tensor, kernels: Tensor, padding: int) -> Tensor:
        sites, out, channels = kernels.shape[:3]
        to_results, of_kernels, of_tiles = _transforms(images.dtype)
        height, width = (side + 2 * padding - 2 for side in images.shape[2:])
        tiles = _each(of_tiles, _cut(layout.pixels(images, sites), padding, height, width))
        own = _each(of_kernels, kernels.permute(0, 3, 4, 1, 2).reshape(sites, 9, out * channels))
        tiles, own = tiles.view(sites * TILE**2, -1, channels), own.view(sites * TILE**2, out, channels)
        ctx.save_for_backward(tiles, own)
        ctx.shape, ctx.kernels, ctx.padding = images.shape, kernels.shape, padding
        products = torch.bmm(tiles, own.transpose(1, 2))
        results = _each(to_results, products.view(sites, TILE**2, -1))
        return _join(results, sites, images.shape[0], height, width)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        tiles, own = ctx.saved_tensors
        sites, out, channels = ctx.kernels[:3]
        to_results, of_kernels, of_tiles = _transforms(gradient.dtype)
        by_products = _each(to_results.t(), _split(gradient, sites)).view(sites * TILE**2, -1, out)
        by_own = torch.bmm(by_products.transpose(1, 2), tiles).view(sites, TILE**2, -1)
        by_kernels = _each(of_kernels.t(), by_own).view(sites, 3, 3, out, channels)
        by_images = None
        if ctx.needs_input_grad[0]:
            by_tiles = torch.bmm(by_products, own).view(sites, TILE**2, -1)
            by_images = _add(_each(of_tiles.t(), by_tiles), ctx.shape, sites, ctx.padding)
        # kernels have their input channels last in memory, and so has their gradient
        return by_images, by_kernels.permute(0, 3, 1, 2, 4).contiguous().permute(0, 1, 4, 2, 3), None


def _each(matrix: Tensor, values: Tensor) -> Tensor:
    """The matrix times each of `[C, ...]`; a single product does not use the batched routine, which is slower."""
    return torch.mm(matrix, values[0]).unsqueeze(0) if len(values) == 1 else torch.matmul(matrix, values)


@lru_cache(maxsize=1)
def _matrices() -> tuple[Matrix, Matrix, Matrix]:
    """A' `[4, 6]`, G `[6, 3]` and B' `[6, 6]` by Toom and Cook's construction."""

    def powers(count: int) -> Matrix:
        """Each point's powers, and the highest alone for infinity."""
        return np.vstack([np.vander(POINTS, count, increasing=True), np.eye(count)[-1]])

    of_kernels, of_tiles = powers(3), np.linalg.inv(powers(TILE)).T
    # rows may be scaled in one factor and back in the other: numbers of like size lose least to rounding
    like = np.sqrt(np.linalg.norm(of_tiles, axis=1) / np.linalg.norm(of_kernels, axis=1))[:, None]
    scale = 2.0 ** np.round(np.log2(like))
    return powers(RESULT).T, of_kernels * scale, of_tiles / scale


@lru_cache(maxsize=4)
def _transforms(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """From products to results `[16, 36]`, of kernels `[36, 9]`, of tiles `[36, 36]`."""
    first, second, third = (torch.tensor(np.kron(matrix, matrix), dtype=dtype) for matrix in _matrices())
    return first, second, third


def _tiles(side: int) -> int:
    return -(-side // RESULT)


def _cut(pixels: Tensor, padding: int, height: int, width: int) -> Tensor:
    """Overlapping tiles of `[B, H, W, C, in]` for results of the given size: `[C, 36, tiles * in]`."""
    rows, own_height, own_width, sites, channels = pixels.shape
    high, wide = _tiles(height), _tiles(width)
    below, right = RESULT * high + 2 - own_height - padding, RESULT * wide + 2 - own_width - padding
    padded = F.pad(pixels, (0, 0, 0, 0, padding, right, padding, below))
    by_row, by_line, by_column, by_site, by_channel = padded.stride()
    tiles = padded.as_strided(
        (sites, TILE, TILE, rows, high, wide, channels),
        (by_site, by_line, by_column, by_row, RESULT * by_line, RESULT * by_column, by_channel),
    )
    return tiles.reshape(sites, TILE**2, -1)


def _join(results: Tensor, sites: int, rows: int, height: int, width: int) -> Tensor:
    """Results `[C, 16, tiles * out]` as images `[B, C*out, H', W']`."""
    high, wide = _tiles(height), _tiles(width)
    laid = results.view(sites, RESULT, RESULT, rows, high, wide, -1).permute(3, 4, 1, 5, 2, 0, 6)
    return layout.images_from_pixels(laid.reshape(rows, RESULT * high, RESULT * wide, sites, -1)[:, :height, :width])


def _split(images: Tensor, sites: int) -> Tensor:
    """The reverse: `[B, C*out, H', W']` as `[C, 16, tiles * out]`, with zeros beyond the edges."""
    rows, _, height, width = images.shape
    high, wide = _tiles(height), _tiles(width)
    padded = F.pad(layout.pixels(images, sites), (0, 0, 0, 0, 0, RESULT * wide - width, 0, RESULT * high - height))
    laid = padded.view(rows, high, RESULT, wide, RESULT, sites, -1).permute(5, 2, 4, 0, 1, 3, 6)
    return laid.reshape(sites, RESULT**2, -1)


def _add(tiles: Tensor, shape: torch.Size, sites: int, padding: int) -> Tensor:
    """Every pixel's sum over the tiles `[C, 36, tiles * in]` that it lies in, as images of the given shape."""
    rows, channels, height, width = shape
    high, wide = _tiles(height + 2 * padding - 2), _tiles(width + 2 * padding - 2)
    own = tiles.view(sites, TILE, TILE, rows, high, wide, channels // sites).permute(3, 4, 1, 5, 2, 0, 6)
    # a tile is 4 x 4 numbers of its own, and two lines and columns that its neighbours begin with
    total = tiles.new_zeros(rows, high + 1, RESULT, wide + 1, RESULT, sites, channels // sites)
    total[:, :-1, :, :-1] = own[:, :, :RESULT, :, :RESULT]
    total[:, 1:, :2, :-1] += own[:, :, RESULT:, :, :RESULT]
    total[:, :-1, :, 1:, :2] += own[:, :, :RESULT, :, RESULT:]
    total[:, 1:, :2, 1:, :2] += own[:, :, RESULT:, :, RESULT:]
    pixels = total.view(rows, RESULT * (high + 1), RESULT * (wide + 1), sites, -1)
    return layout.images_from_pixels(pixels[:, padding : padding + height, padding : padding + width])
