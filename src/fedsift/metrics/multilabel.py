"""Metrics for several yes/no labels a sample, `[n, K]`, with macro means (FedMLP section 3.2)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedsift.contract.errors import DataError
from fedsift.metrics.classification import mean_of_defined


def binary_counts(labels: ArrayLike, scores: ArrayLike, threshold: float = 0.5) -> NDArray[np.int64]:
    """Rows tp, fn, tn, fp of every class at score > threshold: `[n, K], [n, K] -> [4, K]`.

    Counts may be summed over sites before `balanced_accuracy_from_counts`.
    """
    positive = np.asarray(labels) > 0.5
    flagged = np.asarray(scores, dtype=np.float64) > threshold
    if positive.shape != flagged.shape:
        raise DataError(f"labels are {positive.shape} but scores are {flagged.shape}")
    cells = [positive & flagged, positive & ~flagged, ~positive & ~flagged, ~positive & flagged]
    return np.stack([cell.sum(axis=0) for cell in cells]).astype(np.int64)


def balanced_accuracy_from_counts(counts: ArrayLike) -> NDArray[np.float64]:
    """(TPR + TNR) / 2 of every class, `[4, K] -> [K]`; NaN where a class lacks positives or negatives."""
    tp, fn, tn, fp = np.asarray(counts, dtype=np.float64)
    with np.errstate(invalid="ignore"):
        return np.asarray((tp / (tp + fn) + tn / (tn + fp)) / 2)


def roc_area(positive: ArrayLike, scores: ArrayLike) -> float:
    """P(s+ > s-) + P(s+ = s-) / 2 for one class, `[n], [n]`; NaN without positives or without negatives."""
    hit, values = np.asarray(positive) > 0.5, np.asarray(scores, dtype=np.float64)
    n_pos = int(hit.sum())
    n_neg = len(hit) - n_pos
    if n_pos == 0 or n_neg == 0 or np.isnan(values).any():
        return float("nan")
    _, place, repeats = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(repeats)
    ranks = (last - (repeats - 1) / 2)[place]  # ties share the mean of their ranks
    return float((ranks[hit].sum() - n_pos * (n_pos + 1) / 2) / (n_pos * n_neg))


def average_precision(positive: ArrayLike, scores: ArrayLike) -> float:
    """sum_n (R_n - R_{n-1}) P_n over distinct scores, descending, for one class; NaN without positives."""
    hit, values = np.asarray(positive) > 0.5, np.asarray(scores, dtype=np.float64)
    n_pos = int(hit.sum())
    if n_pos == 0 or np.isnan(values).any():
        return float("nan")
    order = np.argsort(-values, kind="stable")
    ends = np.flatnonzero(np.append(np.diff(values[order]) != 0, True))
    found = np.cumsum(hit[order])[ends]
    precision = found / (ends + 1)
    return float((np.diff(found, prepend=0) / n_pos * precision).sum())


@dataclass(frozen=True)
class MultilabelScores:
    """Per-class values (NaN where undefined) and their means over the defined classes."""

    bacc_per_class: NDArray[np.float64]
    auc_per_class: NDArray[np.float64]
    ap_per_class: NDArray[np.float64]

    @property
    def bacc(self) -> float:
        return mean_of_defined(self.bacc_per_class)

    @property
    def auc(self) -> float:
        return mean_of_defined(self.auc_per_class)

    @property
    def map(self) -> float:
        return mean_of_defined(self.ap_per_class)


def multilabel_scores(labels: ArrayLike, scores: ArrayLike, threshold: float = 0.5) -> MultilabelScores:
    """BACC at score > threshold, AUC and average precision of every class: `[n, K], [n, K]`."""
    truth, values = np.asarray(labels), np.asarray(scores, dtype=np.float64)
    bacc = balanced_accuracy_from_counts(binary_counts(truth, values, threshold))
    columns = range(truth.shape[1])
    auc = np.array([roc_area(truth[:, c], values[:, c]) for c in columns])
    ap = np.array([average_precision(truth[:, c], values[:, c]) for c in columns])
    return MultilabelScores(bacc, auc, ap)
