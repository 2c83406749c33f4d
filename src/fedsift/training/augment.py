"""Augmentation as tensor operations on whole batches: an epoch's draws first, then one gather a batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fedsift.training.recipe import Augment


@dataclass(frozen=True)
class AugmentationDraws:
    """One epoch's random choices, one entry for each sample in the order in which the epoch visits them."""

    flip: Tensor | None = None
    """bool `[n]`"""
    shift: Tensor | None = None
    """int64 `[n, 2]`: rows and columns, in 0 .. 2 * crop"""
    angle: Tensor | None = None
    """float `[n]`, radians"""
    move: Tensor | None = None
    """float `[n, 2]`: share of the side, horizontal then vertical"""

    def part(self, start: int, stop: int) -> AugmentationDraws:
        return self._look_up(slice(start, stop))

    def at(self, step: int) -> AugmentationDraws:
        """One step's choices, where these are tables of several steps."""
        return self._look_up(step)

    def as_one_step(self) -> AugmentationDraws:
        """The same as a table of one step."""
        return self._look_up(None)

    def _look_up(self, place: int | slice | None) -> AugmentationDraws:
        columns = (self.flip, self.shift, self.angle, self.move)
        return AugmentationDraws(*(None if value is None else value[place] for value in columns))

    @classmethod
    def together(cls, parts: Sequence[AugmentationDraws]) -> AugmentationDraws:
        """Several sets of choices one after the other; all were drawn for the same augmentation."""
        if len(parts) == 1:
            return parts[0]
        columns = zip(*((part.flip, part.shift, part.angle, part.move) for part in parts))
        return cls(*(None if column[0] is None else torch.cat(column) for column in columns))


def draw(augment: Augment, n: int, generator: torch.Generator) -> AugmentationDraws:
    """All random choices for an epoch of n samples."""
    flip = torch.rand(n, generator=generator) < 0.5 if augment.flip else None
    shift = torch.randint(0, 2 * augment.crop + 1, (n, 2), generator=generator) if augment.crop else None
    angle = move = None
    if augment.affine:
        angle = (torch.rand(n, generator=generator) * 2 - 1) * math.radians(augment.degrees)
        move = (torch.rand(n, 2, generator=generator) * 2 - 1) * augment.translate
    return AugmentationDraws(flip, shift, angle, move)


def still(augment: Augment, n: int) -> AugmentationDraws:
    """Choices for n samples that change nothing."""
    return AugmentationDraws(
        torch.zeros(n, dtype=torch.bool) if augment.flip else None,
        torch.full((n, 2), augment.crop) if augment.crop else None,
        torch.zeros(n) if augment.affine else None,
        torch.zeros(n, 2) if augment.affine else None,
    )


def apply(images: Tensor, augment: Augment, draws: AugmentationDraws) -> Tensor:
    """Augmented copies of normalised images `[B, channels, height, width]`; other shapes pass unchanged."""
    if not augment.active or images.dim() != 4:
        return images
    if draws.flip is not None or draws.shift is not None:
        images = _flip_and_crop(images, draws, augment.crop)
    if draws.angle is not None and draws.move is not None:
        images = _affine(images, draws.angle, draws.move)
    return images


def _flip_and_crop(images: Tensor, draws: AugmentationDraws, padding: int) -> Tensor:
    """One gather for both: pixel (r, c) of the result is pixel (r + dr, c' + dc) of the padded image."""
    batch, _, height, width = images.shape
    device = images.device
    rows = torch.arange(height, device=device).expand(batch, height)
    columns = torch.arange(width, device=device).expand(batch, width)
    if draws.flip is not None:
        columns = torch.where(draws.flip.to(device)[:, None], width - 1 - columns, columns)
    if draws.shift is not None:
        images = F.pad(images, (padding,) * 4)
        shift = draws.shift.to(device)
        rows = rows + shift[:, :1]
        columns = columns + shift[:, 1:]
    which = torch.arange(batch, device=device)[:, None, None]
    # indexing with the channel axis between index axes puts it last; move it back
    return images.permute(0, 2, 3, 1)[which, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2).contiguous()


def _affine(images: Tensor, angle: Tensor, move: Tensor) -> Tensor:
    """Rotation about the centre and a shift, bilinear, zeros outside (the channel mean after normalisation)."""
    cos, sin = torch.cos(angle), torch.sin(angle)
    height, width = images.shape[-2:]
    theta = torch.zeros(len(angle), 2, 3)
    theta[:, 0, 0] = cos
    theta[:, 0, 1] = -sin * height / width
    theta[:, 1, 0] = sin * width / height
    theta[:, 1, 1] = cos
    theta[:, :, 2] = 2 * move
    grid = F.affine_grid(theta.to(images.device), list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
