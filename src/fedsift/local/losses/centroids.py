"""RoFL's class centroids: features are `[..., B, F]`, centroids `[..., K, F]`, over the last axes."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def class_means(features: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """Mean feature of each class, `[..., B, F], [..., B, K], [..., B] -> [..., K, F]`; zeros for one without.

    labels: one-hot rows; weights: 1 for samples that count, 0 for others.
    """
    members = labels * weights.unsqueeze(-1)
    return members.transpose(-1, -2) @ features / members.sum(-2).clamp(min=1).unsqueeze(-1)


def cosines(features: Tensor, centroids: Tensor) -> Tensor:
    """Cosine of every sample with every centroid, `[..., B, F], [..., K, F] -> [..., B, K]`; 0 with a zero vector."""
    return F.normalize(features, dim=-1) @ F.normalize(centroids, dim=-1).transpose(-1, -2)


def followed(centroids: Tensor, seen: Tensor) -> Tensor:
    """(1 - s^2) f + s^2 g of each class's centroid f and the batch's mean g, s their cosine (RoFL eq. 4).

    A class that the batch lacks has g = 0, hence s = 0, and stays: `[..., K, F] -> [..., K, F]`.
    """
    s = F.cosine_similarity(centroids, seen, dim=-1).square().unsqueeze(-1)
    return (1 - s) * centroids + s * seen


def distances(features: Tensor, centroids: Tensor, labels: Tensor) -> Tensor:
    """||phi(x) - f_y||^2 of each sample and its centroid, `[..., B, F], [..., K, F], [..., B, K] -> [..., B]`."""
    return (features - labels.to(centroids.dtype) @ centroids).square().sum(-1)


def common_centroids(previous: Tensor | None, own: Tensor) -> Tensor:
    """f_G = sum_k s_k f_k / sum_k s_k with s_k = max(0, cos(f_G, f_k)), for each class (RoFL eq. 5).

    own: the sites' centroids, `[S, K, F]`, zeros for a class that a site never saw. previous: f_G of the round before,
    `[K, F]`; before the first round, and where no site points the same way, the mean over those that have the class.
    """
    held = (own.abs().sum(-1) > 0).to(own.dtype)
    plain = held / held.sum(0).clamp(min=1)
    if previous is None:
        shares = plain
    else:
        similar = F.cosine_similarity(own, previous.unsqueeze(0), dim=-1).clamp(min=0) * held
        total = similar.sum(0)
        shares = torch.where(total > 1e-6, similar / total.clamp(min=1e-6), plain)
    merged = (shares.unsqueeze(-1) * own).sum(0)
    if previous is None:
        return merged
    return torch.where(held.sum(0).unsqueeze(-1) > 0, merged, previous)
