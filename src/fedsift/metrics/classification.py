"""Accuracy and its balanced form from a confusion matrix, so that counts can first be summed over sites."""

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


def accuracy(counts: ArrayLike) -> float:
    """Share of samples on the diagonal of a confusion matrix; NaN without samples."""
    matrix = np.asarray(counts)
    total = matrix.sum()
    return float(np.trace(matrix) / total) if total else float("nan")


def recall_per_class(counts: ArrayLike) -> NDArray[np.float64]:
    """Share of each true class that is predicted right, `[K, K] -> [K]`; NaN for a class without samples."""
    matrix = np.asarray(counts, dtype=np.float64)
    totals = matrix.sum(axis=1)
    recall = np.full(len(matrix), np.nan)
    np.divide(np.diagonal(matrix), totals, out=recall, where=totals > 0)
    return recall


def balanced_accuracy(counts: ArrayLike) -> float:
    """Mean recall over the classes that have samples (BACC, FedNoRo section 5.1); NaN without samples."""
    return mean_of_defined(recall_per_class(counts))


def mean_of_defined(values: ArrayLike) -> float:
    """Mean over the entries that are not NaN; NaN if there is none."""
    numbers = np.asarray(values, dtype=np.float64)
    defined = numbers[~np.isnan(numbers)]
    return float(defined.mean()) if defined.size else float("nan")
