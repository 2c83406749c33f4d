"""Is a figure above what guessing gives? The lower end of its interval over the test samples, from their numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fedsift.formulas.intervals import wilson

Z = 1.959963984540054
"""Two-sided 95 %."""


def lower_end(metric: str, value: float, samples: int, members: Sequence[int]) -> float:
    """Lower end of the 95 % interval of a figure on `samples` test samples, `members[c]` of them of class c.

    Only the figure and these numbers are used, so the interval is that of the worst case: it may be too wide, never too
    narrow.
    """
    if metric == "accuracy":
        return wilson(round(value * samples), samples)[0]
    if metric == "bacc":
        return value - Z * balanced_deviation(members)
    if metric == "auc":
        return value - Z * auc_deviation(value, samples, members)
    raise ValueError(f"no interval is known for '{metric}'")


def balanced_deviation(members: Sequence[int]) -> float:
    """Largest standard deviation of a mean of recalls: each is a share of its class's samples, and a share of n varies
    most at one half, by 1 / (2 sqrt(n))."""
    held = [n for n in members if n]
    return math.sqrt(sum(1 / (4 * n) for n in held)) / len(held)


def auc_deviation(value: float, samples: int, members: Sequence[int]) -> float:
    """Standard deviation of a mean of AUCs, each by Hanley and McNeil (1982), all going up and down together."""
    held = [n for n in members if 0 < n < samples]
    return sum(hanley_mcneil(value, n, samples - n) for n in held) / len(held)


def hanley_mcneil(auc: float, positives: int, negatives: int) -> float:
    """sqrt((A (1 - A) + (p - 1)(Q1 - A^2) + (q - 1)(Q2 - A^2)) / p q), Q1 = A / (2 - A), Q2 = 2 A^2 / (1 + A)."""
    first, second = auc / (2 - auc), 2 * auc**2 / (1 + auc)
    spread = auc * (1 - auc) + (positives - 1) * (first - auc**2) + (negatives - 1) * (second - auc**2)
    return math.sqrt(spread / (positives * negatives))
