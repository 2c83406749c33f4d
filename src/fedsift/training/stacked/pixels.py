"""From bytes to training inputs of a cohort: crop, flip, mix, interleave and normalise.

A native kernel does it in one pass. Without one, no loop over images is needed either: a pixel is four bytes, moved as
one whole number: its channels, and a 1 that says "this is image". Padding is 0 in all four. Interleaving the sites is
then one transposition of whole numbers, and normalising is one small matrix product whose rows are
(scale, ..., -shift): the padding becomes exactly 0, as it must after normalisation.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from fedsift.formulas import losses
from fedsift.protocol.site import Samples
from fedsift.training import native
from fedsift.training.augment import AugmentationDraws
from fedsift.training.recipe import Augment
from fedsift.training.stacked.layout import empty_samples

MAX_CHANNELS = 3
LARGEST_PACKED_POOL = 512 * 2**20
"""Bytes; a larger pool is packed cohort by cohort."""


class Pixels(Protocol):
    """The samples of a cohort; row numbers count through its sites one after the other."""

    def windows(self, rows: Tensor, draws: AugmentationDraws) -> Sequence[Any]:
        """What S steps look at: row numbers `[S, n]` and their draws, `[S, n]` each."""

    def take(self, window: Any, sites: int, mix: tuple[Tensor, Tensor] | None = None) -> Tensor:
        """Augmented, normalised images `[sites, B, ch, H, W]` in the cohort's order, of n = sites * B rows.

        mix: partner of each row within `[sites * B]`, and each site's own share `[sites]`.
        """


def pixels_of(samples: Sequence[Samples], augment: Augment, by_site: bool) -> Pixels | None:
    """The cohort's images; None when they are no images of bytes, or when augmentation does more than move pixels.

    by_site: the memory order, site by site or all sites side by side.
    """
    if augment.affine or any(own.pool.dtype != torch.uint8 or own.pool.dim() != 4 for own in samples):
        return None
    if native.library() is not None:
        return CompiledPixels(samples, augment, by_site)
    return PackedPixels(samples, augment) if all(can_pack(own.pool) for own in samples) else None


class CompiledPixels:
    """Images taken from bytes by a native kernel."""

    def __init__(self, samples: Sequence[Samples], augment: Augment, by_site: bool) -> None:
        self._by_site, self._padding = by_site, augment.crop
        self._shape = tuple(samples[0].shape)
        channels = self._shape[0]
        self._scale = torch.tensor([[1 / (255 * std) for std in _each(own.std, channels)] for own in samples])
        self._offset = torch.tensor(
            [[m / s for m, s in zip(_each(own.mean, channels), _each(own.std, channels))] for own in samples]
        )
        pool = samples[0].pool
        if all(own.pool is pool for own in samples) and pool.is_contiguous():
            self._pool, self._rows = pool, torch.cat([own.rows for own in samples])
        else:
            self._pool = torch.cat([own.pool.index_select(0, own.rows) for own in samples]).contiguous()
            self._rows = torch.arange(len(self._pool))

    def windows(self, rows: Tensor, draws: AugmentationDraws) -> Sequence[tuple[Tensor, Tensor | None, Tensor | None]]:
        nothing = [None] * len(rows)
        shifts = nothing if draws.shift is None else draws.shift.contiguous().unbind()
        flips = nothing if draws.flip is None else draws.flip.contiguous().unbind()
        return list(zip(self._rows[rows].unbind(), shifts, flips))

    def take(
        self,
        window: tuple[Tensor, Tensor | None, Tensor | None],
        sites: int,
        mix: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        rows, shift, flip = window
        images = empty_samples(sites, len(rows) // sites, self._shape, self._by_site)
        native.take_images(self._pool, rows, shift, flip, self._padding, self._scale, self._offset, images)
        if mix is None:
            return images
        partner, share = mix[0], mix[1].view(-1, 1, 1, 1, 1)
        others = images[partner // images.shape[1], partner % images.shape[1]].view_as(images)
        return losses.blend_in_place(images, others, share)


class Window(NamedTuple):
    """What one step looks at."""

    rows: Tensor
    """int64 `[n]`: images of the pool."""
    starts: Tensor | None
    """int64 `[n * H]`: where the lines of the crops start."""
    turned: Tensor | None
    """int64: which of the n are flipped."""


class PackedPixels:
    """Images taken from packed pixels by torch: what `CompiledPixels` does, where there is no compiler."""

    def __init__(self, samples: Sequence[Samples], augment: Augment) -> None:
        self._channels = samples[0].shape[0]
        self._padding = augment.crop
        self._matrix = _normalisation(samples)
        pool = samples[0].pool
        shared = all(own.pool is pool for own in samples)
        packed = packed_pool(pool) if shared else None
        if packed is not None:
            self._pixels, self._rows = packed, torch.cat([own.rows for own in samples])
        else:
            self._pixels = torch.cat([pack(own.pool.index_select(0, own.rows)) for own in samples])
            self._rows = torch.arange(len(self._pixels))

    def windows(self, rows: Tensor, draws: AugmentationDraws) -> list[Window]:
        nothing = [None] * len(rows)
        counts = [] if draws.flip is None else draws.flip.sum(1).tolist()
        turned = nothing if draws.flip is None else torch.split(draws.flip.nonzero()[:, 1], counts)
        starts = nothing if draws.shift is None else self._starts(draws.shift).unbind()
        return [Window(*window) for window in zip(self._rows[rows].unbind(), starts, turned)]

    def _starts(self, shift: Tensor) -> Tensor:
        """Where each line of each cropped image starts among the pixels of the padded images, `[S, n * H]`."""
        height, width = self._pixels.shape[1:]
        high, wide = height + 2 * self._padding, width + 2 * self._padding
        corners = torch.arange(shift.shape[1]) * (high * wide) + shift[..., 0] * wide + shift[..., 1]
        return (corners[..., None] + torch.arange(height) * wide).flatten(1)

    def take(self, window: Window, sites: int, mix: tuple[Tensor, Tensor] | None = None) -> Tensor:
        images = self._pixels.index_select(0, window.rows)
        if window.starts is not None:
            images = _crop(images, window.starts, self._padding)
        if window.turned is not None:
            images.index_copy_(0, window.turned, images.index_select(0, window.turned).flip(-1))
        values = _interleaved(images, sites)
        if mix is not None:
            partner, share = mix
            shares = share.repeat_interleave(4)
            others = _interleaved(images.index_select(0, partner), sites)
            values = losses.blend(values, others, shares)
        height, width = images.shape[1:]
        matrix = self._matrix[: 4 * sites, : self._channels * sites]
        pixels = (values @ matrix).view(-1, height, width, sites, self._channels)
        return pixels.permute(3, 0, 4, 1, 2)


def pack(images: Tensor) -> Tensor:
    """Bytes `[n, ch, H, W]` to one int32 a pixel, `[n, H, W]`: channels, then a 1, then zeros."""
    n, channels, height, width = images.shape
    packed = torch.zeros(n, height, width, 4, dtype=torch.uint8)
    for channel in range(channels):
        packed[..., channel] = images[:, channel]
    packed[..., channels] = 1
    return packed.view(torch.int32).squeeze(-1)


_PACKED: list[tuple[weakref.ref[Tensor], Tensor]] = []
"""The pool that was packed last, with its packed form; gone with the pool."""


def packed_pool(pool: Tensor) -> Tensor | None:
    """All images of a pool, packed once and kept as long as the pool; None when that takes too much memory."""
    if _PACKED and _PACKED[0][0]() is pool:
        return _PACKED[0][1]
    if pool[:, 0].numel() * 4 > LARGEST_PACKED_POOL:
        return None
    packed = torch.cat([pack(part) for part in torch.split(pool, 4096)])
    keep_packed(pool, packed)
    return packed


def keep_packed(pool: Tensor, packed: Tensor) -> None:
    """Remember the packed form of a pool, in place of any other."""
    _PACKED[:] = [(weakref.ref(pool, _gone), packed)]


def forget_packed(pool: Tensor) -> None:
    """Free the packed form of a pool, if it is kept."""
    if _PACKED and _PACKED[0][0]() is pool:
        _PACKED.clear()


def _gone(pool: weakref.ref[Tensor]) -> None:
    if _PACKED and _PACKED[0][0] is pool:
        _PACKED.clear()


def can_pack(pool: Tensor) -> bool:
    """Whether these are images of bytes with few enough channels."""
    return pool.dtype == torch.uint8 and pool.dim() == 4 and pool.shape[1] <= MAX_CHANNELS


def _crop(images: Tensor, starts: Tensor, padding: int) -> Tensor:
    """Windows of the padded images `[n, H, W]`, given where each of their lines starts, `[n * H]`."""
    n, height, width = images.shape
    padded = torch.nn.functional.pad(images, (padding,) * 4)
    # overlapping windows of one line each: row `start` of this view is `padded.flatten()[start : start + width]`
    lines = padded.as_strided((padded.numel() - width + 1, width), (1, 1))
    return lines.index_select(0, starts).view(n, height, width)


def _interleaved(images: Tensor, sites: int) -> Tensor:
    """int32 `[sites * B, H, W]` to the bytes of all sites side by side, float `[B * H * W, 4 * sites]`."""
    own = images.view(sites, -1, *images.shape[1:])
    beside = own.permute(1, 2, 3, 0).reshape(-1)
    return beside.view(torch.uint8).view(-1, 4 * sites).to(torch.float32)


def _normalisation(samples: Sequence[Samples]) -> Tensor:
    """Block matrix `[4 * C, ch * C]`: x * scale - shift for the pixels of each site, as `Samples.normalise` does."""
    channels = samples[0].shape[0]
    matrix = torch.zeros(len(samples), 4, len(samples), channels)
    for site, own in enumerate(samples):
        for channel, (mean, std) in enumerate(zip(_each(own.mean, channels), _each(own.std, channels))):
            matrix[site, channel, site, channel] = 1 / (255 * std)
            matrix[site, channels, site, channel] = -mean / std
    return matrix.view(4 * len(samples), channels * len(samples))


def _each(values: tuple[float, ...], channels: int) -> tuple[float, ...]:
    """One value a channel; a single one stands for all."""
    return values * channels if len(values) == 1 else values
