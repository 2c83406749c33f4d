"""Memory layouts of the samples of C sites, and conversions between them.

Images of a cohort are one batch `[B, C*ch, H, W]` in channels-last memory: a site is a group of channels, and
a convolution over all sites is one grouped convolution. Vectors are `[C, B, F]`: a linear layer over all sites
is one batched product. Native blocks take images site by site, `[C, B, ch, H, W]` as they stand. Functions here
only rearrange; they copy where the memory order demands it.
"""

from __future__ import annotations

import torch
from torch import Tensor


def images_from_samples(samples: Tensor) -> Tensor:
    """`[C, B, ch, H, W] -> [B, C*ch, H, W]` channels-last; no copy from memory order `B, H, W, C, ch`."""
    sites, rows, channels, height, width = samples.shape
    pixels = samples.permute(1, 3, 4, 0, 2).reshape(rows, height, width, sites * channels)
    return pixels.permute(0, 3, 1, 2)


def empty_samples(sites: int, rows: int, shape: tuple[int, ...], by_site: bool = False) -> Tensor:
    """An uninitialised `[C, B, *shape]` in the order of a cohort: images lie `B, H, W, C, ch` or site by site."""
    if len(shape) != 3 or by_site:
        return torch.empty(sites, rows, *shape)
    channels, height, width = shape
    return torch.empty(rows, height, width, sites, channels).permute(3, 0, 4, 1, 2)


def samples_from_images(images: Tensor, sites: int) -> Tensor:
    """`[B, C*ch, H, W] -> [C, B, ch, H, W]`, a view."""
    rows, channels, height, width = images.shape
    return images.view(rows, sites, channels // sites, height, width).transpose(0, 1)


def pixels(images: Tensor, sites: int) -> Tensor:
    """`[B, C*ch, H, W] -> [B, H, W, C, ch]`, a view of channels-last images."""
    rows, channels, height, width = images.shape
    return images.permute(0, 2, 3, 1).reshape(rows, height, width, sites, channels // sites)


def images_from_pixels(values: Tensor) -> Tensor:
    """`[B, H, W, C, ch] -> [B, C*ch, H, W]` channels-last."""
    rows, height, width, sites, channels = values.shape
    return values.reshape(rows, height, width, sites * channels).permute(0, 3, 1, 2)


def vectors_from_images(images: Tensor, sites: int) -> Tensor:
    """`[B, C*ch, H, W] -> [C, B, ch*H*W]`, features in the order in which one site's flatten gives them."""
    rows, channels, height, width = images.shape
    grouped = images.reshape(rows, sites, channels // sites, height, width)
    return grouped.transpose(0, 1).reshape(sites, rows, (channels // sites) * height * width)


def columns_from_vectors(vectors: Tensor) -> Tensor:
    """`[C, B, F] -> [B, C*F]`: what a norm over rows needs."""
    sites, rows, width = vectors.shape
    return vectors.transpose(0, 1).reshape(rows, sites * width)


def vectors_from_columns(columns: Tensor, sites: int) -> Tensor:
    """`[B, C*F] -> [C, B, F]`."""
    rows, width = columns.shape
    return columns.reshape(rows, sites, width // sites).transpose(0, 1)
