"""Losses that bear wrong labels: logits and targets are `[..., B, K]`, the result is `[..., B]`."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from fedsift.local.losses.multiclass import cross_entropy, expected_value


def generalised_cross_entropy(logits: Tensor, target: Tensor, q: float = 0.7) -> Tensor:
    """sum_c t_c (1 - p_c^q) / q (GCE, Zhang and Sabuncu 2018, eq. 6): `[..., B, K] -> [..., B]`.

    q -> 0 is cross-entropy, q = 1 the mean absolute error 1 - p_y. From log p, so that a tiny probability keeps its
    gradient -p^q (1 - p_y) instead of an infinite factor p^(q-1).
    """
    return -expected_value(target, torch.expm1(q * F.log_softmax(logits, dim=-1))) / q


def running_prediction(memory: Tensor, logits: Tensor, beta: float = 0.7, least: float = 1e-4) -> Tensor:
    """beta t + (1 - beta) p, a constant, with p cut to [least, 1 - least] and rescaled (ELR eq. 9): `[..., B, K]`."""
    p = F.softmax(logits.detach(), dim=-1).clamp(least, 1 - least)
    return beta * memory + (1 - beta) * p / p.sum(-1, keepdim=True)


def early_learning(logits: Tensor, memory: Tensor, least: float = 1e-4) -> Tensor:
    """log(1 - <p, t>) with p cut to [least, 1 - least] (ELR, Liu et al. 2020, eq. 6): `[..., B, K] -> [..., B]`.

    Its gradient pulls p towards what the network said of the sample before, t.
    """
    p = F.softmax(logits, dim=-1).clamp(least, 1 - least)
    return torch.log1p(-(memory.detach() * p).sum(-1).clamp(max=1 - least))


def entropy(logits: Tensor) -> Tensor:
    """-sum_c p_c log p_c, `[..., B, K] -> [..., B]`."""
    log_p = F.log_softmax(logits, dim=-1)
    return -(log_p.exp() * log_p).sum(-1)


def mean_probability(logits: Tensor, present: Tensor) -> Tensor:
    """Mean of softmax(z) over the real rows of a batch, `[..., B, K] -> [..., K]`."""
    total = (F.softmax(logits, dim=-1) * present.unsqueeze(-1)).sum(-2)
    return total / present.sum(-1, keepdim=True).clamp(min=1)


def prior_divergence(logits: Tensor, present: Tensor, prior: Tensor | None = None) -> Tensor:
    """KL(pi || mean of p over the batch), `[..., B, K] -> [...]`: keeps a network from one answer for all.

    prior: pi, `[..., K]` (a class that it gives nothing adds nothing); None: all classes alike (JointOpt eq. 5,
    DivideMix eq. 10).
    """
    mean = mean_probability(logits, present).clamp(min=1e-12)
    pi = torch.full_like(mean, 1 / mean.shape[-1]) if prior is None else prior
    return (torch.xlogy(pi, pi) - pi * torch.log(mean)).sum(-1)


def smallest(values: Tensor, count: Tensor, present: Tensor) -> Tensor:
    """1 for the `count` smallest of the real values, ties to the first: `[..., B], [...] -> [..., B]`.

    The samples of small loss, likely clean (Co-teaching Alg. 1 lines 6-7, RoFL).
    """
    ranks = ranks_of(torch.where(present > 0, values.detach(), math.inf))
    return ((ranks < count.unsqueeze(-1)) & (present > 0)).to(values.dtype)


def ranks_of(values: Tensor) -> Tensor:
    """Rank of each value among the last axis, 0 for the smallest; ties by place: `[..., B] -> [..., B]`."""
    order = torch.argsort(values, dim=-1, stable=True)
    places = torch.arange(values.shape[-1], device=values.device).expand_as(order)
    return torch.empty_like(order).scatter_(-1, order, places)


def kept_count(present: Tensor, rate: Tensor) -> Tensor:
    """floor((1 - rate) B) of a batch of B real rows, `[..., B], [...] -> [...]`.

    A share that falls short of a whole number by rounding alone counts as that number.
    """
    return torch.floor((1 - rate.double()) * present.sum(-1) + 1e-6).to(torch.int64)


def small_loss(losses: Tensor, rate: Tensor, present: Tensor) -> Tensor:
    """1 for the floor((1 - rate) B) samples of smallest loss, `[..., B], [...] -> [..., B]`
    (Co-teaching, RoFL)."""
    return smallest(losses, kept_count(present, rate), present)


def sureness(logits: Tensor, target: Tensor) -> Tensor:
    """The largest probability, and how many classes are likelier than the given one, `[..., B, K] -> [..., B, 2]`."""
    p = F.softmax(logits.detach(), dim=-1)
    rank = (p > expected_value(target, p).unsqueeze(-1)).sum(-1)
    return torch.stack([p.amax(-1), rank.to(p.dtype)], dim=-1)


def reweighted_cross_entropy(
    logits: Tensor, target: Tensor, transition: Tensor, floor: float = 1e-8
) -> Tensor:
    """p_y / (T^T p)_y CE(z, y) (T-revision, Xia et al. 2019, eq. 4): `[..., B, K] -> [..., B]`.

    transition: T[i][j] = P(given j | true i), `[..., K, K]`. The p of the weight is a constant, T is not: a network
    could otherwise lower its loss by disowning hard samples, while a learnt T must see the weight.
    """
    p = F.softmax(logits.detach(), dim=-1)
    weight = expected_value(target, p) / expected_value(target, p @ transition).clamp(min=floor)
    return weight * cross_entropy(logits, target)


def revised_transition(transition: Tensor, change: Tensor, least: float = 1e-6) -> Tensor:
    """T + dT as a stochastic matrix: negative entries are cut, `least` is added so that no label is impossible and
    every entry has a gradient, rows are rescaled to 1; `[..., K, K]`."""
    revised = (transition + change).clamp(min=0) + least
    return revised / revised.sum(-1, keepdim=True)


def sharpened(probabilities: Tensor, temperature: float = 0.5) -> Tensor:
    """p_c^(1/T) / sum_j p_j^(1/T), `[..., K] -> [..., K]` (MixMatch; DivideMix eqs. 5 and 8)."""
    powered = probabilities.clamp(min=0) ** (1 / temperature)
    return powered / powered.sum(-1, keepdim=True).clamp(min=1e-30)
