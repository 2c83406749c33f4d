"""Train-test splits: stratified by class, and a group (patient, lesion) is always on one side."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsift.core.errors import ConfigError
from fedsift.data.dataset import Labels, Rows


def split(
    labels: Labels,
    fraction: float,
    rng: np.random.Generator,
    groups: NDArray[Any] | None = None,
    at_least_one: bool = False,
) -> tuple[Rows, Rows]:
    """Positions of the larger and of the smaller side, both ascending; the smaller holds about `fraction`.

    labels: `[n]` or `[n, K]`. Without groups every class is split in the same proportion. With groups whole
    groups move, stratified by their most frequent class. At least one sample (group) stays on the larger
    side; with `at_least_one` the smaller side is only empty when there is nothing to spare.
    """
    if not 0.0 <= fraction < 1.0:
        raise ConfigError(f"a split takes a fraction in [0, 1), not {fraction}")
    strata = _strata(labels)
    if groups is None:
        member, sizes = np.arange(len(labels)), np.ones(len(labels), np.int64)
    else:
        member = units_of(groups)
        sizes, strata = np.bincount(member), _group_strata(strata, member)
    picked = _choose(strata, sizes, fraction, rng)
    if at_least_one and fraction > 0 and len(sizes) > 1 and not picked.any():
        smallest = np.flatnonzero(sizes == sizes.min())
        picked[rng.choice(smallest)] = True
    chosen = picked[member]
    return np.flatnonzero(~chosen).astype(np.int64), np.flatnonzero(chosen).astype(np.int64)


def units_of(groups: NDArray[Any]) -> NDArray[np.int64]:
    """Equal numbers for samples of one group, `[n]`; a sample whose group is missing ("" or NaN) is a unit for itself:
    samples of which nobody knows the patient are not one patient's."""
    names = np.asarray(groups)
    member = np.unique(names, return_inverse=True)[1]
    missing = np.isin(names.astype(str), ("", "nan"))
    if not missing.any():
        return member
    alone = np.where(missing, len(names) + np.arange(len(names)), member)
    return np.unique(alone, return_inverse=True)[1]


def _strata(labels: Labels) -> NDArray[np.int64]:
    """One stratum number a sample; multi-label rows are grouped by their rarest positive class."""
    if labels.ndim == 1:
        return labels
    frequency = labels.sum(axis=0)
    rank = np.where(labels > 0, frequency[None, :], np.iinfo(np.int64).max)
    strata: NDArray[np.int64] = np.where(labels.any(axis=1), rank.argmin(axis=1), labels.shape[1])
    return strata


def _group_strata(strata: NDArray[np.int64], member: NDArray[np.int64]) -> NDArray[np.int64]:
    """The most frequent stratum of each group (the lower number on a tie)."""
    table = np.zeros((member.max() + 1, strata.max() + 1), np.int64)
    np.add.at(table, (member, strata), 1)
    most_frequent: NDArray[np.int64] = table.argmax(axis=1)
    return most_frequent


def _choose(
    strata: NDArray[np.int64], sizes: NDArray[np.int64], fraction: float, rng: np.random.Generator
) -> NDArray[np.bool_]:
    """Units for the smaller side: in each stratum, in random order, as many as come nearest to its share.

    What rounding leaves over in one stratum is owed to the next, so that the whole meets the fraction.
    """
    chosen = np.zeros(len(strata), np.bool_)
    owed = 0.0
    for stratum in np.unique(strata):
        units = rng.permutation(np.flatnonzero(strata == stratum))
        owed += fraction * float(sizes[units].sum())
        taken = np.cumsum(sizes[units])
        count = int(np.searchsorted(taken, owed + 0.5, side="right"))
        chosen[units[:count]] = True
        owed -= float(taken[count - 1]) if count else 0.0
    if chosen.all() and len(chosen):
        chosen[rng.integers(len(chosen))] = False
    return chosen


def shares_to_counts(shares: NDArray[np.float64], total: int) -> NDArray[np.int64]:
    """Whole numbers that sum to `total` and are nearest to total·shares (largest remainders first)."""
    exact = np.asarray(shares, np.float64) / np.sum(shares) * total
    counts = np.floor(exact + 1e-9).astype(np.int64)
    rest = total - int(counts.sum())
    counts[np.argsort(counts - exact, kind="stable")[:rest]] += 1
    return counts
