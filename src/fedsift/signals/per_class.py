"""The per-class loss indicator of FedNoRo: one row a site, one column a class (section 4.1, eq. 3)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedsift.contract.errors import DataError

_CONSTANT = 1e-12
"""A column that varies by no more says nothing about the sites."""


def per_class_sums(
    losses: ArrayLike, labels: ArrayLike, n_classes: int
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Sum of losses and number of samples of each given label, `[n], [n] -> [K], [K]`; always finite."""
    values, given = np.asarray(losses, dtype=np.float64), np.asarray(labels, dtype=np.int64)
    if len(given) and not 0 <= given.min() <= given.max() < n_classes:
        raise DataError(f"labels from {given.min()} to {given.max()} do not fit {n_classes} classes")
    counts = np.bincount(given, minlength=n_classes).astype(np.int64)
    return np.bincount(given, weights=values, minlength=n_classes).astype(np.float64), counts


def means_of_sums(sums: ArrayLike, counts: ArrayLike) -> NDArray[np.float64]:
    """sums / counts, NaN where the count is 0; any equal shapes."""
    totals, numbers = np.asarray(sums, dtype=np.float64), np.asarray(counts)
    means = np.full(totals.shape, np.nan)
    np.divide(totals, numbers, out=means, where=numbers > 0)
    return means


def per_class_mean(
    losses: ArrayLike, labels: ArrayLike, n_classes: int, least: int = 1
) -> NDArray[np.float64]:
    """Mean loss of the samples with each given label, NaN for a class of fewer than `least`: `[n], [n] -> [K]`."""
    sums, counts = per_class_sums(losses, labels, n_classes)
    return means_of_sums(sums, np.where(counts < least, 0, counts))


@dataclass(frozen=True)
class Normalised:
    """A table of sites `[S, K]` made comparable, column by column."""

    filled: NDArray[np.float64]
    """Missing entries hold the smallest value of their column; NaN where no site holds the class."""
    values: NDArray[np.float64]
    """Each column scaled to 0..1; columns that say nothing are 0."""
    informative: NDArray[np.int64]
    """Columns that differ between sites, ascending."""


def normalise(table: ArrayLike) -> Normalised:
    """Fill missing entries (NaN) by the column's minimum over sites, then scale each column to 0..1 (eq. 3).

    A column that is constant, or held by no site, becomes 0 and is not `informative`.
    """
    raw = np.asarray(table, dtype=np.float64)
    if np.isinf(raw).any():
        raise DataError(
            "a site's per-class loss is infinite: its network has diverged, lower the learning rate"
        )
    held = ~np.isnan(raw)
    low = np.where(held, raw, np.inf).min(axis=0, initial=np.inf)
    filled = np.where(held, raw, low)
    filled[:, np.isinf(low)] = np.nan
    span = np.where(held, raw, -np.inf).max(axis=0, initial=-np.inf) - low
    differs = span > _CONSTANT
    values = np.zeros_like(filled)
    values[:, differs] = (filled[:, differs] - low[differs]) / span[differs]
    return Normalised(filled, values, np.flatnonzero(differs).astype(np.int64))
