"""A step's images from bytes: looked up, cropped, flipped and normalised in one pass."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from fedsift.local.native.build import library


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
