"""Intervals and tests: Wilson, paired differences over seeds, shares from partly counted groups, agreement of
readers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.special import ndtri, stdtrit

# Shares and means in a sample: how far off they may be, how many more to count, how far two readers
# agree
# ------------------------------------------------------------------------------

LEVEL = 0.95
DRAWS = 40_000


def wilson(k: int, n: int, level: float = LEVEL) -> tuple[float, float]:
    """Wilson's interval of p = k / n: (p + z²/2n ± z sqrt(p (1 - p) / n + z²/4n²)) / (1 + z²/n); (0, 1) for n = 0."""
    if not 0 <= k <= n:
        raise ValueError(f"{k} of {n} is no share")
    if n == 0:
        return 0.0, 1.0
    z = float(ndtri(0.5 + level / 2))
    share = k / n
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    low = 0.0 if k == 0 else max(0.0, middle - half)  # exactly, whatever the rounding
    return low, 1.0 if k == n else min(1.0, middle + half)


def t_interval(values: Sequence[float], level: float = LEVEL) -> tuple[float, float]:
    """Student's interval of the mean of n >= 2 values: mean ± t_{n-1} s / sqrt(n), s with n - 1."""
    n = len(values)
    if n < 2:
        raise ValueError(f"an interval of the mean needs two values, not {n}")
    mean = math.fsum(values) / n
    sd = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1))
    half = float(stdtrit(n - 1, 0.5 + level / 2)) * sd / math.sqrt(n)
    return mean - half, mean + half


def needed(share: float, within: float, level: float = LEVEL) -> int:
    """The smallest n whose Wilson interval at this share is at most `within` to either side of its middle."""
    if not 0 < within < 0.5:
        raise ValueError(f"the wanted precision must lie between 0 and 0.5, not {within}")
    z = float(ndtri(0.5 + level / 2))

    def half(n: int) -> float:
        return z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n)) / (1 + z * z / n)

    low, high = 0, 1
    while half(high) > within + 1e-12:
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if half(middle) <= within + 1e-12 else (middle, high)
    return high


@dataclass(frozen=True)
class CountedPart:
    """A part of a list: `size` entries, of which `n` were looked at and `k` were wrong."""

    size: int
    n: int
    k: int

    @property
    def share(self) -> float:
        return self.k / self.n if self.n else math.nan


def draw_totals(part: CountedPart, rng: np.random.Generator, draws: int = DRAWS) -> NDArray[np.float64]:
    """Draws of how many of all entries are wrong: k, and of the others a share from Beta(k + 1/2, n - k + 1/2).

    Jeffreys' prior. The others are size - n entries that nobody looked at, so a part that was read to its end has
    no uncertainty left.
    """
    share = rng.beta(part.k + 0.5, part.n - part.k + 0.5, draws)
    return part.k + rng.binomial(max(0, part.size - part.n), share).astype(np.float64)


@dataclass(frozen=True)
class ShareEstimate:
    """A share, or NaN where nothing was counted, with the interval of its draws."""

    share: float
    low: float
    high: float


def combined_share(parts: Sequence[CountedPart], rng: np.random.Generator, level: float = LEVEL) -> ShareEstimate:
    """The share of wrong entries in several parts together: sum_a N_a p_a / sum_a N_a."""
    used = [part for part in parts if part.size]
    if not used or any(part.n == 0 for part in used):
        return ShareEstimate(math.nan, 0.0, 1.0)
    size = sum(part.size for part in used)
    totals = np.sum([draw_totals(part, rng) for part in used], axis=0) / size
    return ShareEstimate(sum(part.size * part.share for part in used) / size, *_between(totals, level))


def share_missed(
    flagged: Sequence[CountedPart], unflagged: CountedPart, rng: np.random.Generator, level: float = LEVEL
) -> ShareEstimate:
    """Of all wrong labels, the share that is not on the list: U q / (F p + U q), F p summed over the list's parts."""
    used = [part for part in flagged if part.size]
    if any(part.n == 0 for part in used) or (unflagged.size and unflagged.n == 0):
        return ShareEstimate(math.nan, 0.0, 1.0)
    found = sum(part.size * part.share for part in used)
    missed = unflagged.size * unflagged.share if unflagged.size else 0.0
    listed = np.sum([draw_totals(part, rng) for part in used], axis=0) if used else np.zeros(DRAWS)
    outside = draw_totals(unflagged, rng)
    total = listed + outside
    draws = np.divide(outside, total, out=np.zeros_like(total), where=total > 0)
    estimate = missed / (found + missed) if found + missed > 0 else math.nan
    return ShareEstimate(estimate, *_between(draws, level))


def _between(draws: NDArray[np.float64], level: float) -> tuple[float, float]:
    low, high = np.quantile(draws, [0.5 - level / 2, 0.5 + level / 2])
    return float(low), float(high)


def cohen_kappa(first: Sequence[Hashable], second: Sequence[Hashable]) -> float:
    """(p_o - p_e) / (1 - p_e): agreement beyond chance; NaN where chance alone would agree always."""
    if len(first) != len(second):
        raise ValueError(f"{len(first)} readings beside {len(second)}")
    n = len(first)
    if n == 0:
        return math.nan
    observed = sum(a == b for a, b in zip(first, second)) / n
    one, other = Counter(first), Counter(second)
    chance = sum(one[word] * other[word] for word in one) / (n * n)
    return math.nan if chance >= 1 else (observed - chance) / (1 - chance)


@dataclass(frozen=True)
class PairedDifference:
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


def paired(first: Sequence[float], second: Sequence[float], level: float = LEVEL) -> PairedDifference:
    """d_i = first_i - second_i: mean(d) ± t_{n-1} sd(d) / sqrt(n), and p = 2 P(T_{n-1} > |mean(d)| sqrt(n) / sd(d))."""
    if len(first) != len(second) or not first:
        raise ValueError(f"{len(first)} and {len(second)} values are no pairs")
    d = np.asarray(first, np.float64) - np.asarray(second, np.float64)
    n, mean = len(d), float(d.mean())
    above = int((d > 0).sum())
    if n == 1:
        return PairedDifference(1, mean, -math.inf, math.inf, None, above)
    error = float(d.std(ddof=1)) / math.sqrt(n)
    half = float(stats.t.ppf(0.5 + level / 2, n - 1)) * error
    p = None if error == 0 else float(2 * stats.t.sf(abs(mean) / error, n - 1))
    return PairedDifference(n, mean, mean - half, mean + half, p, above)


def mean_and_sd(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean, and standard deviation with n - 1; None for a single value."""
    found = np.asarray(values, np.float64)
    return float(found.mean()), float(found.std(ddof=1)) if len(found) > 1 else None
