"""Counting: how a rate times a size becomes a whole number of samples."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray


def floor_count(amount: float, *, forgiving: bool = True) -> int:
    """⌊amount + 1e-9⌋: forgives one rounding error, so that 0.29·100 = 28.99...96 counts as 29.

    Not forgiving, it is the plain truncation of the papers' released code: 28.
    """
    return math.floor(amount + 1e-9 if forgiving else amount)


def shares_to_counts(shares: NDArray[np.float64], total: int) -> NDArray[np.int64]:
    """Whole numbers that sum to `total` and are nearest to total·shares (largest remainders first)."""
    exact = np.asarray(shares, np.float64) / np.sum(shares) * total
    counts = np.floor(exact + 1e-9).astype(np.int64)
    rest = total - int(counts.sum())
    counts[np.argsort(counts - exact, kind="stable")[:rest]] += 1
    return counts
