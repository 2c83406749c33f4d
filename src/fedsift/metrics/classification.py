"""Accuracy and its balanced form from counts by class, so that these can first be summed over sites."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedsift.contract.errors import DataError


def confusion(true: ArrayLike, predicted: ArrayLike, n_classes: int) -> NDArray[np.int64]:
    """counts[t][p]: samples of true class t predicted as p, `[n], [n] -> [K, K]`."""
    rows, columns = np.asarray(true, dtype=np.int64).ravel(), np.asarray(predicted, dtype=np.int64).ravel()
    if len(rows) != len(columns):
        raise DataError(f"{len(rows)} labels but {len(columns)} predictions")
    for name, values in (("label", rows), ("prediction", columns)):
        if len(values) and not 0 <= values.min() <= values.max() < n_classes:
            raise DataError(f"a {name} lies outside 0..{n_classes - 1}: {values.min()} to {values.max()}")
    flat = np.bincount(rows * n_classes + columns, minlength=n_classes * n_classes)
    return flat.reshape(n_classes, n_classes).astype(np.int64)


def accuracy(right: ArrayLike, total: ArrayLike) -> float:
    """Share of samples that are predicted right, from counts of any shape; NaN without samples."""
    samples = np.asarray(total).sum()
    return float(np.asarray(right).sum() / samples) if samples else float("nan")


def recall_per_class(right: ArrayLike, total: ArrayLike) -> NDArray[np.float64]:
    """Share of each true class that is predicted right, `[K], [K] -> [K]`; NaN for a class without samples."""
    hits, sizes = np.asarray(right, dtype=np.float64), np.asarray(total, dtype=np.float64)
    recall = np.full(sizes.shape, np.nan)
    np.divide(hits, sizes, out=recall, where=sizes > 0)
    return recall


def balanced_accuracy(right: ArrayLike, total: ArrayLike) -> float:
    """Mean recall over the classes that have samples (BACC, FedNoRo section 5.1); NaN without samples."""
    return mean_of_defined(recall_per_class(right, total))


def mean_of_defined(values: ArrayLike) -> float:
    """Mean over the entries that are not NaN; NaN if there is none."""
    numbers = np.asarray(values, dtype=np.float64)
    defined = numbers[~np.isnan(numbers)]
    return float(defined.mean()) if defined.size else float("nan")
