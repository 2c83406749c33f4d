"""Indicators of noisy sites: per-class losses and confidences, their normalisation, and local intrinsic dimensionality
(FedCorr eq. 2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedsift.core.errors import ConfigError, DataError

# How sure a model is of a site's labels; noisy sites score lower (the confidence row of FedNoRo Table
# 3)
# ------------------------------------------------------------------------------

Kind = Literal["given", "max"]


def confidence(probabilities: ArrayLike, labels: ArrayLike, kind: Kind = "given") -> NDArray[np.float64]:
    """p of the given label ("given") or the largest p ("max") of every sample: `[n, K], [n] -> [n]`."""
    p: NDArray[np.float64] = np.asarray(probabilities, dtype=np.float64)
    if kind == "max":
        return np.asarray(p.max(axis=1))
    if kind == "given":
        return np.asarray(p[np.arange(len(p)), np.asarray(labels, dtype=np.int64)])
    raise ConfigError(f"confidence = '{kind}': choose 'given' or 'max'")


# The per-class loss indicator of FedNoRo: one row a site, one column a class (section 4.1, eq
# ------------------------------------------------------------------------------

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


def per_class_mean(losses: ArrayLike, labels: ArrayLike, n_classes: int, least: int = 1) -> NDArray[np.float64]:
    """Mean loss of the samples with each given label, NaN for a class of fewer than `least`: `[n], [n] -> [K]`."""
    sums, counts = per_class_sums(losses, labels, n_classes)
    return means_of_sums(sums, np.where(counts < least, 0, counts))


@dataclass(frozen=True)
class NormalisedTable:
    """A table of sites `[S, K]` made comparable, column by column."""

    filled: NDArray[np.float64]
    """Missing entries hold the smallest value of their column; NaN where no site holds the class."""
    values: NDArray[np.float64]
    """Each column scaled to 0..1; columns that say nothing are 0."""
    informative: NDArray[np.int64]
    """Columns that differ between sites, ascending."""


def normalise(table: ArrayLike) -> NormalisedTable:
    """Fill missing entries (NaN) by the column's minimum over sites, then scale each column to 0..1 (eq. 3).

    A column that is constant, or held by no site, becomes 0 and is not `informative`.
    """
    raw = np.asarray(table, dtype=np.float64)
    if np.isinf(raw).any():
        raise DataError("a site's per-class loss is infinite: its network has diverged, lower the learning rate")
    held = ~np.isnan(raw)
    low = np.where(held, raw, np.inf).min(axis=0, initial=np.inf)
    filled = np.where(held, raw, low)
    filled[:, np.isinf(low)] = np.nan
    span = np.where(held, raw, -np.inf).max(axis=0, initial=-np.inf) - low
    differs = span > _CONSTANT
    values = np.zeros_like(filled)
    values[:, differs] = (filled[:, differs] - low[differs]) / span[differs]
    return NormalisedTable(filled, values, np.flatnonzero(differs).astype(np.int64))


Form = Literal["paper", "official", "guarded"]

_HELD = 1 << 22
"""32 MB of distances."""


def nearest_distances(points: NDArray[Any], k: int, held: int = _HELD) -> NDArray[np.float64]:
    """Distances of every row to its min(k, n - 1) nearest other rows, ascending: `[n, d] -> [n, m]`.

    From differences, so that equal rows are at exactly 0; the row itself is left out by its index. At most
    about `held` distances are in memory at a time.
    """
    from scipy.spatial.distance import cdist  # imported when needed: it slows every start otherwise

    n = len(points)
    m = min(k, n - 1)
    wide = np.asarray(points, dtype=np.float64)
    nearest = np.empty((n, m))
    step = max(1, held // max(n, 1))
    for start in range(0, n, step):
        block = cdist(wide[start : start + step], wide)
        rows = np.arange(len(block))
        block[rows, start + rows] = np.inf
        nearest[start : start + step] = np.sort(np.partition(block, m - 1, axis=1)[:, :m], axis=1)
    return nearest


def lid(
    points: ArrayLike, k: int = 20, form: Form = "guarded", eps: float = 1e-6, floor: float = 0.0
) -> NDArray[np.float64]:
    """LID of every row of `points` among the others, `[n, K] -> [n]`; a site's score is the mean.

    points: softmax rows. Give them in float32, as the paper's experiments did: how many rows saturate to
    the same vector, and so score 0, depends on the precision.
    form: "paper" -m / sum_i log(r_i / r_m); "official" -k / (sum_i log(r_i / (r_m + eps)) + eps), k as
    asked for even with fewer neighbours; "guarded" the same with m, the neighbours there are.

    floor: smaller distances count as this one; without it a neighbour at distance 0 gives 0 (the limit). A
    single row gives 0. Equidistant neighbours give inf ("paper").
    """
    rows = np.asarray(points)
    if rows.ndim != 2:
        raise DataError(f"LID needs one row a sample, got an array of shape {rows.shape}")
    if k < 1:
        raise ConfigError(f"lid k = {k}: at least one neighbour is needed")
    if not np.isfinite(rows).all():
        raise DataError("LID needs finite predictions: the network's outputs contain NaN or infinity")
    if len(rows) < 2:
        return np.zeros(len(rows))
    radii = np.maximum(nearest_distances(rows, k), floor)
    m = radii.shape[1]
    scores = np.zeros(len(rows))
    apart = radii[:, 0] > 0
    near = radii[apart]
    if form == "paper":
        total = np.log(near / near[:, -1:]).sum(axis=1)
        with np.errstate(divide="ignore"):
            scores[apart] = m / np.abs(total)
    elif form in ("official", "guarded"):
        total = np.log(near / (near[:, -1:] + eps)).sum(axis=1)
        scores[apart] = -(k if form == "official" else m) / (total + eps)
    else:
        raise ConfigError(f"lid form = '{form}': choose 'paper', 'official' or 'guarded'")
    return scores


def site_lid(
    points: ArrayLike,
    k: int = 20,
    form: Form = "guarded",
    eps: float = 1e-6,
    floor: float = 0.0,
    highest: float | None = None,
) -> float:
    """Mean LID of a site's samples (FedCorr Alg. 1 line 7); 0 without samples.

    highest: LIDs are cut to 0 to this, so that one sample cannot carry the mean away; None: they are not.
    """
    scores = lid(points, k, form, eps, floor)
    if highest is not None:
        scores = np.clip(scores, 0.0, highest)
    return float(scores.mean()) if len(scores) else 0.0
