"""Runs with the same seeds, compared pair by pair."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

LEVEL = 0.95


@dataclass(frozen=True)
class Paired:
    """How far one list of values is above another, value by value."""

    n: int
    mean: float
    """Mean of the differences."""
    low: float
    high: float
    """The t interval of the mean; infinite for a single pair."""
    p: float | None
    """Of the two-sided paired t test; None where it cannot be made."""
    above: int
    """Pairs in which the first is larger."""


def paired(first: Sequence[float], second: Sequence[float], level: float = LEVEL) -> Paired:
    """d_i = first_i - second_i: mean(d) ± t_{n-1} sd(d) / sqrt(n), and p = 2 P(T_{n-1} > |mean(d)| sqrt(n) / sd(d))."""
    if len(first) != len(second) or not first:
        raise ValueError(f"{len(first)} and {len(second)} values are no pairs")
    d = np.asarray(first, np.float64) - np.asarray(second, np.float64)
    n, mean = len(d), float(d.mean())
    above = int((d > 0).sum())
    if n == 1:
        return Paired(1, mean, -math.inf, math.inf, None, above)
    error = float(d.std(ddof=1)) / math.sqrt(n)
    half = float(stats.t.ppf(0.5 + level / 2, n - 1)) * error
    p = None if error == 0 else float(2 * stats.t.sf(abs(mean) / error, n - 1))
    return Paired(n, mean, mean - half, mean + half, p, above)


def spread(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean, and standard deviation with n - 1; None for a single value."""
    found = np.asarray(values, np.float64)
    return float(found.mean()), float(found.std(ddof=1)) if len(found) > 1 else None
