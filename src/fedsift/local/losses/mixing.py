"""Mixup: each sample is blended with a partner of its own batch."""

from __future__ import annotations

from torch import Tensor


def blend(values: Tensor, partners: Tensor, share: float | Tensor) -> Tensor:
    """lambda values + (1 - lambda) partners (FedCorr section 3.2); `share` is lambda: one number, or it broadcasts
    against the values.

    For dense targets, cross-entropy with the blended target equals lambda CE(z, y) + (1 - lambda) CE(z, y').
    """
    return share * values + (1 - share) * partners


def blend_in_place(values: Tensor, partners: Tensor, share: Tensor) -> Tensor:
    """`blend` without new memory, for images: both tensors are used up, the result is in the first."""
    return values.mul_(share).add_(partners.mul_(1 - share))


def mixup(inputs: Tensor, target: Tensor, partner: Tensor, share: float | Tensor) -> tuple[Tensor, Tensor]:
    """Inputs `[B, ...]` and targets `[B, K]` of one batch, each row blended with that of its partner, int64 `[B]`."""
    return blend(inputs, inputs[partner], share), blend(target, target[partner], share)
