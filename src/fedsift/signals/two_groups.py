"""One group of scores against two: the best split, how rare it is in a single group, and who is in which.

The statistic is that of SigClust (Liu, Hayes, Nobel and Marron, 2008) in one dimension with mixing proportions, its
null distribution a parametric bootstrap over single groups of several shapes, of which the least favourable counts.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_POWERS = (0.5, 0.75, 1.0, 1.25, 1.5)
"""Exponents of the Yeo-Johnson transformation that may straighten a skewed group."""
_PRIOR = 2.0
"""Sites' worth of pooled variance that each group's own is shrunk by: two sites alone have no variance."""


def two_groups(p_value: float) -> float:
    """Largest probability of the alternative that a p-value supports at even prior odds: 1 / (1 - e p log p).

    The bound of Sellke, Bayarri and Berger (2001); 1/2 from p = 1/e on.
    """
    if p_value >= 1 / math.e:
        return 0.5
    return 1.0 / (1.0 - math.e * p_value * math.log(p_value))


def straighten(values: Array) -> Array:
    """Standardise `[..., S]` and undo a moderate skew by the likeliest Yeo-Johnson power; the order is
    kept."""
    z = values - values.mean(axis=-1, keepdims=True)
    spread = z.std(axis=-1, keepdims=True)
    z = z / np.where(spread > 0, spread, 1.0)
    jacobian = (np.sign(z) * np.log1p(np.abs(z))).sum(axis=-1)
    best = np.full(values.shape[:-1], -np.inf)
    straight = z
    for power in _POWERS:
        up = np.expm1(power * np.log1p(np.maximum(z, 0.0))) / power
        down = np.expm1((2 - power) * np.log1p(np.maximum(-z, 0.0))) / (2 - power)
        moved = up - down
        likelihood = (
            -z.shape[-1] / 2 * np.log(np.maximum(moved.var(axis=-1), 1e-300)) + (power - 1) * jacobian
        )
        better = likelihood > best
        straight = np.where(better[..., None], moved, straight)
        best = np.maximum(best, likelihood)
    return np.asarray(straight)


def best_split(values: Array) -> tuple[Array, NDArray[np.int64]]:
    """Log likelihood ratio of the best split of `[..., S]` in a lower and an upper group against one group,
    and the size of the lower group.

    Both are normal with one variance; a split of n values in n_1 + n_2 has n/2 log(SS / SS_within) +
    n_1 log(n_1/n) + n_2 log(n_2/n).
    """
    ordered = np.sort(values, axis=-1)
    n = ordered.shape[-1]
    lower = np.arange(1, n)
    below = np.cumsum(ordered, axis=-1)[..., :-1]
    total = ordered.sum(axis=-1, keepdims=True)
    squares = (ordered**2).sum(axis=-1, keepdims=True)
    around = squares - total**2 / n
    within = squares - below**2 / lower - (total - below) ** 2 / (n - lower)
    # two tight groups can be parted perfectly; a floor keeps the ratio finite
    ratio = around / np.maximum(within, 1e-9 * around + 1e-300)
    gain = n / 2 * np.log(ratio) + lower * np.log(lower / n) + (n - lower) * np.log(1 - lower / n)
    return gain.max(axis=-1), gain.argmax(axis=-1) + 1


def null_gains(n: int, rng: np.random.Generator, draws: int, skew: float) -> list[Array]:
    """Gains of the best split of `draws` single groups of n values, for each of three shapes: normal, with long tails,
    and skewed as a gamma distribution of shape `skew`."""
    shapes = (
        rng.standard_normal((draws, n)),
        rng.standard_t(5, size=(draws, n)),
        rng.gamma(skew, size=(draws, n)),
    )
    return [best_split(straighten(shape))[0] for shape in shapes]


def chance_of_split(gain: float, null: list[Array]) -> float:
    """Share of single groups with a split as good, for the shape that gives the most (at least 1/draws)."""
    larger = [int((gains >= gain).sum()) for gains in null]
    return (1 + max(larger)) / (1 + len(null[0]))


def upper_posterior(score: Array) -> Array:
    """Probability of the upper of two normal groups with variances of their own, from the best split: `[S]`.

    Expectation-maximisation with each variance shrunk to the pooled one. Scores beyond the groups' means
    count as the means, so that a wide group never claims the far side of the other.
    """
    _, size = best_split(straighten(score))
    member = np.zeros(len(score))
    member[np.argsort(score, kind="stable")[int(size) :]] = 1.0
    mean, share = _moments(score, member)
    pooled = float(((score - np.where(member > 0, mean[1], mean[0])) ** 2).mean())
    pooled = max(pooled, 1e-6 * float(score.var()))
    for _ in range(200):
        mean, share = _moments(score, member)
        weight = np.stack([1 - member, member])
        variance = ((weight * (score - mean[:, None]) ** 2).sum(1) + _PRIOR * pooled) / (
            weight.sum(1) + _PRIOR
        )
        between = np.clip(score, min(mean), max(mean))
        odds = (
            np.log(share[1] / share[0])
            + 0.5 * np.log(variance[0] / variance[1])
            + (between - mean[0]) ** 2 / (2 * variance[0])
            - (between - mean[1]) ** 2 / (2 * variance[1])
        )
        updated = 1 / (1 + np.exp(-np.clip(odds, -500, 500)))
        if np.abs(updated - member).max() < 1e-9:
            break
        member = updated
    return np.asarray(updated)


def _moments(score: Array, member: Array) -> tuple[Array, Array]:
    weight = np.stack([1 - member, member])
    total = np.maximum(weight.sum(1), 1e-12)
    return (weight * score).sum(1) / total, total / len(score)
