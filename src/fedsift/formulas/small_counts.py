"""Suppression of small counts: tables of whole numbers in which no cell is below a minimum count.

A table's cells of 1 to min_count - 1 are not sent. Within a row they are lumped, with the row's zeros, into the row's
remainder; while the remainder itself is below the minimum count the row's smallest sent cell joins it (secondary
suppression), so that no lumped cell follows from the row's sum. A row whose sum is below the minimum count is lumped
into the site's remainder, in the same way. Sums of columns are never sent.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedsift.core.errors import ConfigError, DataError
from fedsift.formulas.metrics import accuracy, balanced_accuracy, mean_of_defined, recall_per_class

Counts = NDArray[np.int64]

MIN_COUNT = 10
"""The smallest count that leaves a site, unless the site sets another."""
WITHHELD = -1
"""Stands in a censored table where nothing is sent."""


@dataclass(frozen=True)
class CensoredTable:
    """A table `[R, C]` as it leaves a site."""

    cells: Counts
    """`[R, C]`; -1 where a cell is part of a remainder."""
    remainders: Counts
    """`[R]`: the sum of a row's lumped cells, 0 if none is; -1 for a row that is lumped whole."""
    rest: int
    """The sum of the rows that are lumped whole, 0 if none is or if the whole table is below the minimum count."""

    @property
    def total(self) -> int:
        """How many are counted, those in remainders included."""
        return int(self.cells.clip(0).sum() + self.remainders.clip(0).sum()) + self.rest


def censored(table: ArrayLike, min_count: int = MIN_COUNT) -> CensoredTable:
    """A table `[R, C]` of counts without a cell, a remainder or a sum of lumped rows in 1 ... min_count - 1.

    Real numbers (expected counts) are rounded to whole ones of the same sum first, those with the largest rest up. A
    minimum count of 0 or 1 withholds nothing.
    """
    whole = _whole(table)
    if min_count < 0:
        raise ConfigError(f"min_count = {min_count}: it must be 0 or more")
    cells, remainders = whole.copy(), np.zeros(len(whole), np.int64)
    if whole.sum() < min_count:
        if whole.any():
            cells[:], remainders[:] = WITHHELD, WITHHELD
        return CensoredTable(cells, remainders, 0)
    lumped_rows = _lumped(whole.sum(1), min_count)
    for row in range(len(whole)):
        if lumped_rows[row]:
            cells[row], remainders[row] = WITHHELD, WITHHELD
            continue
        lumped = _lumped(whole[row], min_count)
        cells[row, lumped] = WITHHELD
        remainders[row] = whole[row, lumped].sum()
    return CensoredTable(cells, remainders, int(whole[lumped_rows].sum()))


def _whole(table: ArrayLike) -> Counts:
    values = np.asarray(table, dtype=np.float64)
    if values.ndim != 2 or not np.isfinite(values).all() or (values < -0.5).any():
        raise DataError(f"a table of counts is needed, got shape {values.shape} or a value below 0 or not finite")
    values = values.clip(0)
    whole = np.floor(values).astype(np.int64)
    missing = int(np.rint(values.sum())) - int(whole.sum())
    if missing > 0:  # rounded one by one, the cells of a small site can be more than its samples
        largest = np.argsort(-(values - whole), axis=None, kind="stable")[:missing]
        whole.reshape(-1)[largest] += 1
    return whole


def _lumped(counts: Counts, min_count: int) -> NDArray[np.bool_]:
    """Which of the counts `[C]` share a remainder: all below the minimum count if any is in 1 ... min_count - 1, and
    then the smallest others until the remainder is at the minimum count. Their sum is at least the minimum count, or
    they are none."""
    small = counts < min_count
    if not counts[small].any():
        return np.zeros(len(counts), np.bool_)
    for cell in np.argsort(counts, kind="stable"):
        if counts[small].sum() >= min_count:
            break
        small[cell] = True
    return small


def lumped_counts(
    right: ArrayLike, total: ArrayLike, min_count: int = MIN_COUNT
) -> tuple[Counts, Counts, NDArray[np.int64]]:
    """Right and all samples of each class without a number in 1 ... min_count - 1, and the sums of the lumped classes.

    `[K]` each, or `[K, 2]` without and with the class, where a class is lumped with both its sides: they add up to all
    samples. Which classes are lumped follows from the totals alone, so it is the same for every model: sent for one
    class for one model and without it for the next, the rest would follow. The lump takes the smallest other classes
    until neither side of it is small; where all of them do not suffice, nothing at all is sent. The third part is
    (right, all) `[2]`. Few right ones are sent as none or as the minimum count, those of the lump to its nearest
    multiple.
    """
    hits, sizes = np.asarray(right, dtype=np.int64), np.asarray(total, dtype=np.int64)
    all_of = sizes.reshape(len(sizes), -1)
    small = _lumped_classes(all_of, min_count)
    if _few(all_of[small].sum(0), min_count).any():
        return np.zeros_like(hits), np.zeros_like(sizes), np.zeros(2, np.int64)
    rest = np.array([hits[small].sum(), sizes[small].sum()])
    rest[0] = _nearest(rest[0], min_count).clip(max=rest[1])
    hits, sizes = np.where(_few(hits, min_count), _nearest(hits, min_count), hits), sizes.copy()
    hits[small], sizes[small] = 0, 0
    return hits, sizes, rest


@dataclass(frozen=True)
class RightBounds:
    """Between which numbers of right samples the true ones lie, summed over sites."""

    low: Counts
    high: Counts
    total: Counts
    """`[K]`, or `[K, 2]` without and with the class: right ones of at least `low`, at most `high`, and all."""
    lumped_low: Counts
    lumped_high: Counts
    lumped: Counts
    """`[K]`: the same for the lumps that a class may be part of."""
    rest: tuple[int, int, int]
    """The same for all lumps together."""

    def __add__(self, other: RightBounds) -> RightBounds:
        low, high, all_of = (a + b for a, b in zip(self.rest, other.rest))
        return RightBounds(
            self.low + other.low,
            self.high + other.high,
            self.total + other.total,
            self.lumped_low + other.lumped_low,
            self.lumped_high + other.lumped_high,
            self.lumped + other.lumped,
            (low, high, all_of),
        )

    @property
    def accuracy(self) -> tuple[float, float]:
        """The share of right ones among all lies between these; NaN without samples."""
        low, high, all_of = self.rest
        total = self.total.sum() + all_of
        return accuracy(self.low.sum() + low, total), accuracy(self.high.sum() + high, total)

    @property
    def recall(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Between which the share of right ones of each class lies; NaN for a class without samples.

        Any part of a lump may be of the class: at worst its wrong ones, at best its right ones.
        """
        extra = (self.lumped_high, self.lumped - self.lumped_low)
        best, wrong = (e if self.total.ndim == 1 else e[:, None] for e in extra)
        some = (self.total > 0) | ((self.lumped if self.total.ndim == 1 else self.lumped[:, None]) > 0)
        low, high = (
            recall_per_class(self.low, self.total + wrong),
            recall_per_class(self.high + best, self.total + best),
        )
        # a class of which nothing but a lump of right ones is known has only right ones, if any; or only wrong ones
        return np.where(some & np.isnan(low), 1.0, low), np.where(some & np.isnan(high), 0.0, high)

    @property
    def balanced(self) -> tuple[float, float]:
        """Between which the mean recall over the classes with samples lies; NaN without samples.

        With two sides a class counts by the mean of its sides' recalls, if it has both. A class that was only ever
        lumped may have no sample: it counts where that widens the interval.
        """
        low, high = self.recall
        sure = np.asarray(self.total > 0)
        if self.total.ndim == 2:
            low, high, sure = low.mean(1), high.mean(1), np.asarray(sure.all(1))
        perhaps = ~sure & (self.lumped > 0)
        if self.total.ndim == 1 and not self.lumped.any():
            return balanced_accuracy(self.low, self.total), balanced_accuracy(self.high, self.total)
        if not perhaps.any():
            return mean_of_defined(low), mean_of_defined(high)
        lowest = _mean_with(low[sure], np.sort(low[perhaps]), np.less)
        return lowest, _mean_with(high[sure], np.sort(high[perhaps])[::-1], np.greater)


def _mean_with(sure: NDArray[np.float64], perhaps: NDArray[np.float64], better: np.ufunc) -> float:
    """The extreme mean of `sure` and as many of `perhaps`, in order, as move it on."""
    values = list(sure) or [perhaps[0]]
    for value in perhaps[0 if len(sure) else 1 :]:
        if not better(value, np.mean(values)):
            break
        values.append(value)
    return float(np.mean(values))


def right_bounds(right: ArrayLike, total: ArrayLike, rest: ArrayLike, min_count: int) -> RightBounds:
    """What `lumped_counts` may have been given where it gave these, by the same minimum count."""
    hits, sizes = np.asarray(right, np.int64), np.asarray(total, np.int64)
    (hit, all_of) = (int(number) for number in np.asarray(rest))
    down, up = (0, 0) if min_count < 2 else (min_count // 2, min_count - min_count // 2 - 1)
    rounded = (hits == 0) | (hits == min_count) if min_count > 1 else np.zeros(hits.shape, np.bool_)
    low = np.where(rounded, hits - down, hits).clip(0)
    # what was rounded to the minimum count was below it, or it
    high = np.where(rounded & (hits == 0), up, hits).clip(max=sizes)
    lump = (max(0, hit - down), min(all_of, hit + up), all_of)
    within = (sizes.reshape(len(sizes), -1).sum(1) == 0) & (all_of > 0)
    lumped_low, lumped_high, lumped = (np.where(within, number, 0) for number in lump)
    return RightBounds(low, high, sizes, lumped_low, lumped_high, lumped, lump)


def _lumped_classes(totals: Counts, min_count: int) -> NDArray[np.bool_]:
    """Which classes of `[K, sides]` are lumped."""
    small: NDArray[np.bool_] = np.any(_few(totals, min_count), axis=1)
    if small.any():
        small |= totals.sum(1) < min_count  # classes without samples hide among those with few
    for number in np.argsort(totals.min(1), kind="stable") if small.any() else ():
        if not _few(totals[small].sum(0), min_count).any():
            break
        small[number] = True
    return small


def _nearest(counts: Counts, min_count: int) -> Counts:
    """The nearest multiples of the minimum count, halves upwards; a minimum count of 0 or 1 changes nothing."""
    return counts if min_count < 2 else (counts + min_count // 2) // min_count * min_count


def _few(counts: Counts, min_count: int) -> NDArray[np.bool_]:
    return (counts > 0) & (counts < min_count)


def whole_nats(log_likelihoods: ArrayLike, samples: int, min_count: int = MIN_COUNT) -> Counts:
    """Sums of log-likelihoods over a site's samples as whole numbers; zeros from a site of fewer than `min_count`."""
    values = np.asarray(log_likelihoods, dtype=np.float64)
    return np.rint(values if samples >= min_count else np.zeros_like(values)).astype(np.int64)
