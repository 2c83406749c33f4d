"""Intervals and tests: Wilson, paired differences over seeds, shares from partly counted groups, agreement of readers,
and what may be looked at after every verdict: confidence sequences and the e-values that settle a review."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.special import betaln, gammaln, logsumexp, ndtri, stdtrit

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


# Looked at after every verdict
# ------------------------------------------------------------------------------

Array = NDArray[np.float64]
Readings = Mapping[tuple[int, int], float]
"""(readers who called the label wrong, readers): of how many labels. Each reader counts once a label."""

ALLOWED = 0.02
"""Share of wrong labels that a site may have without being convicted."""
CLEARED = 0.12
"""Share of wrong labels below which a suspicion is withdrawn. Readers who err in a tenth cannot tell a site without any
from one with 10 % in 40 verdicts, however these are counted: a label of the first is called right in 90 %, of the
second (readers erring in 8 %) in 84 %, which is 0.06 nats a label, and log 20 = 3.0 are needed."""
MOST_READER_ERROR = 0.15
"""Share of a reader's verdicts that may be mistaken."""
EVIDENCE = 20.0
"""The e-value that decides: reached in at most 1 of 20 reviews where the answer is another, whenever one stops."""
MOST_READERS = 3
"""A label that everybody called wrong so far is read again, until so many have."""

_BETTER_CONVICTED = ((0.05, 0.1), (0.1, 0.2), (0.2, 0.45), (0.4, 0.25)), ((0.03, 0.5), (0.1, 0.5))
_BETTER_WITHDRAWN = ((0.0, 0.8), (0.015, 0.2)), ((0.01, 0.3), (0.1, 0.7))
"""Shares of wrong labels and readers' errors, with their weights, for which `conviction` and `withdrawal` are most
powerful. They are valid with any; these were chosen by simulation, on other seeds than those reported."""


def reading_likelihoods(readings: Readings, shares: Array, errors: Array) -> Array:
    """log L of shares of wrong labels and readers' errors, both `[G]`.

    Of every label read by n people of whom k called it wrong, in the order in which they did,

        P  =  t (1 - r)^k r^(n - k)  +  (1 - t) r^k (1 - r)^(n - k)

    with t the share of wrong labels and r the readers' error. It does not matter why somebody read again, as long as
    that followed from what had been said.
    """
    total = np.zeros(np.broadcast_shapes(shares.shape, errors.shape))
    for (k, n), labels in readings.items():
        wrong, right = (1 - errors) ** k * errors ** (n - k), errors**k * (1 - errors) ** (n - k)
        total += labels * np.log(np.maximum(shares * wrong + (1 - shares) * right, 1e-300))
    return total


def conviction(readings: Readings) -> float:
    """log e against "at most `ALLOWED` are wrong": the mean likelihood of a few larger shares over the null's largest.

        e  =  sum_j w_j L(t_j, r_j)  /  max { L(t, r) : t <= 0.02, 0 <= r <= 0.15 }

    Over any single (t, r) of the null the numerator is a martingale of mean 1, and the maximum can only make e smaller.
    So E[e] <= 1 whenever one stops, and P(e >= 20 at any time) <= 1/20 (Ville).
    """
    return _log_ratio(readings, _mixture(*_BETTER_CONVICTED), _null(0.0, ALLOWED))


def withdrawal(readings: Readings) -> float:
    """log e against "`CLEARED` or more are wrong": as in `conviction`, of small shares over the largest of the null.

    e  =  sum_j w_j L(t_j, r_j)  /  max { L(t, r) : t >= 0.12, 0 <= r <= 0.15 }
    """
    return _log_ratio(readings, _mixture(*_BETTER_WITHDRAWN), _null(CLEARED, 1.0))


Points = tuple[Array, Array, Array]
"""Shares, readers' errors and log weights, `[G]` each."""


def _log_ratio(readings: Readings, better: Points, null: Points) -> float:
    likely = logsumexp(reading_likelihoods(readings, *better[:2]) + better[2])
    return float(likely - reading_likelihoods(readings, *null[:2]).max())


def _mixture(shares: Sequence[tuple[float, float]], errors: Sequence[tuple[float, float]]) -> Points:
    t, r, w = np.array([(t, r, p * q) for t, p in shares for r, q in errors]).T
    return t, r, np.log(w)


@cache
def _null(least: float, most: float) -> Points:
    """A grid, finer near its lower ends, where likelihoods are steep."""
    steps = 4 if most < 0.1 else 80
    shares = least + (most - least) * np.linspace(0, 1, steps + 1) ** 2
    t, r = (axis.ravel() for axis in np.meshgrid(shares, _errors(), indexing="ij"))
    return t, r, np.zeros(len(t))


def _errors() -> Array:
    grid: Array = MOST_READER_ERROR * np.linspace(0, 1, 61) ** 2
    return grid


@dataclass(frozen=True)
class WrongShareRead:
    """The share of wrong labels and the readers' error, by what people said."""

    share: float
    low: float
    high: float
    reader_error: float
    """As the readings suggest, in 0 to `MOST_READER_ERROR`."""


_STEPS = 200


def share_read(readings: Readings, level: float = LEVEL) -> WrongShareRead:
    """The share of wrong labels with a confidence sequence: it holds the truth at every look at once, with `level`.

        { t :  L_mix / max_r L(t, r)  <  1 / (1 - level) },      L_mix  =  the mean of L over t = u^2, r = 0.15 v^2

    u and v uniform (Robbins' mixture). Estimates are means under the same weights.
    """
    shares = np.linspace(0, 1, _STEPS + 1) ** 2
    errors = _errors()
    logs = reading_likelihoods(readings, shares[:, None], errors[None, :])
    mixed = float(logsumexp(logs) - math.log(logs.size))
    inside = np.flatnonzero(mixed - logs.max(1) < -math.log(1 - level))
    weights = np.exp(logs - logs.max())
    weights /= weights.sum()
    low, high = shares[max(int(inside[0]) - 1, 0)], shares[min(int(inside[-1]) + 1, _STEPS)]  # the ends are outside
    return WrongShareRead(float(weights.sum(1) @ shares), float(low), float(high), float(weights.sum(0) @ errors))


def wrong_of_all(k: int, n: int, size: int, level: float = LEVEL) -> tuple[float, float]:
    """The share of `size` entries that are wrong, after k of n drawn without replacement: a confidence sequence.

        { M / size :  P(k of n)  /  P(k of n | M)  <  1 / (1 - level) }

    P(k of n | M) is hypergeometric, and P(k of n) its mean over a Beta-binomial M (Jeffreys' prior): the ratio is a
    martingale of mean 1 if M are wrong. (0, 1) for n = 0, one point for n = size.
    """
    if not 0 <= k <= n <= size:
        raise ValueError(f"{k} of {n} of {size} is no share")
    if n == 0:
        return 0.0, 1.0
    possible = np.arange(k, size - n + k + 1, dtype=np.float64)
    given = _log_choose(possible, k) + _log_choose(size - possible, n - k) - _log_choose(size, n)
    mixed = _log_choose(n, k) + betaln(k + 0.5, n - k + 0.5) - betaln(0.5, 0.5)
    inside = possible[mixed - given < -math.log(1 - level)]
    return float(inside[0] / size), float(inside[-1] / size)


def _log_choose(n: Array | float, k: float) -> Array:
    found: Array = gammaln(np.asarray(n) + 1.0) - gammaln(k + 1.0) - gammaln(np.asarray(n) - k + 1.0)
    return found


@dataclass(frozen=True)
class ExpectedEnd:
    """What is still to read until a review is decided, if it goes on as it has."""

    convicted: bool
    """False: withdrawn."""
    labels: int
    """More labels of the random order."""
    verdicts: int
    """Readings of them, and of those that wait for another reader."""


def expected_end(readings: Readings, left: int) -> ExpectedEnd | None:
    """When the readings that are expected would decide; None where the `left` labels would not do.

    Labels come at the rates that make the readings likeliest, and each is read again while everybody called it wrong,
    up to `MOST_READERS`.
    """
    shares, errors = np.linspace(0, 1, _STEPS + 1) ** 2, _errors()
    at = reading_likelihoods(readings, shares[:, None], errors[None, :]).argmax()
    share, error = float(shares[at // len(errors)]), float(errors[at % len(errors)])
    settled, first = _read_again(readings, share, error)
    each, cost = _read_again({(0, 0): 1.0}, share, error)

    def decided(labels: int) -> bool | None:
        total = dict(settled)
        for kind, count in each.items():
            total[kind] = total.get(kind, 0.0) + labels * count
        for answer, log_e in ((True, conviction), (False, withdrawal)):
            if log_e(total) >= math.log(EVIDENCE):
                return answer
        return None

    high = 1
    while high < left and decided(high) is None:
        high *= 2
    low, high = 0, min(high, left)
    if decided(high) is None:
        return None
    while high > low:
        middle = (low + high) // 2
        low, high = (low, middle) if decided(middle) is not None else (middle + 1, high)
    answer = decided(high)
    return None if answer is None else ExpectedEnd(answer, high, max(1, math.ceil(first + high * cost)))


def _read_again(readings: Readings, share: float, error: float) -> tuple[dict[tuple[int, int], float], float]:
    """The readings that are expected once all that wait for another reader have had them, and how many those are."""
    done: dict[tuple[int, int], float] = {kind: count for kind, count in readings.items() if not _waits(kind)}
    cost = 0.0
    for k in range(MOST_READERS):
        waiting = readings.get((k, k), 0.0) + done.pop((k, k), 0.0)
        wrong, right = share * (1 - error) ** k, (1 - share) * error**k
        chance = (wrong * (1 - error) + right * error) / max(wrong + right, 1e-300)
        cost += waiting
        done[k, k + 1] = done.get((k, k + 1), 0.0) + waiting * (1 - chance)
        done[k + 1, k + 1] = done.get((k + 1, k + 1), 0.0) + waiting * chance
    return done, cost


def _waits(kind: tuple[int, int]) -> bool:
    return kind[0] == kind[1] < MOST_READERS
