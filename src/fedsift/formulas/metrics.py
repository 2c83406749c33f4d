"""Metrics: accuracy family, multi-label, curves, detection and label correction. NaN stands for undefined."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedsift.core.errors import DataError

# Accuracy and its balanced form from counts by class, so that these can first be summed over sites
# ------------------------------------------------------------------------------


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


# Metrics for several yes/no labels a sample, `[n, K]`, with macro means (FedMLP section 3.2)
# ------------------------------------------------------------------------------


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


# Does a probability mean what it says? The debiased calibration error in bins of equal mass
# ------------------------------------------------------------------------------

BINS = 15


def calibration_error(probabilities: ArrayLike, happened: ArrayLike, bins: int = BINS) -> float:
    """sqrt(sum_b n_b / n ((p_b - y_b)^2 - y_b (1 - y_b) / (n_b - 1))), 0 where that is negative.

    probabilities, happened: `[n]`; p_b and y_b are their means in bins of equally many samples in the order of the
    probabilities. The subtracted term is what a calibrated bin of n_b samples would show by chance (the debiased
    estimator of Kumar, Liang and Ma, 2019). NaN for fewer than two samples a bin.
    """
    p, y = np.asarray(probabilities, np.float64).ravel(), np.asarray(happened, np.float64).ravel()
    if p.shape != y.shape:
        raise DataError(f"{len(p)} probabilities for {len(y)} outcomes")
    if len(p) < 2 * bins:
        return float("nan")
    total = 0.0
    for rows in np.array_split(np.argsort(p, kind="stable"), bins):
        share = y[rows].mean()
        total += len(rows) * ((p[rows].mean() - share) ** 2 - share * (1 - share) / (len(rows) - 1))
    return float(np.sqrt(max(total / len(p), 0.0)))


# How well noisy sites, and wrong labels, were found
# ------------------------------------------------------------------------------


def precision_recall(predicted: Iterable[Any], true: Iterable[Any]) -> tuple[float, float]:
    """Precision and recall of one set against the true one; 0/0 counts as 0."""
    found, wanted = set(predicted), set(true)
    right = len(found & wanted)
    return (right / len(found) if found else 0.0), (right / len(wanted) if wanted else 0.0)


@dataclass(frozen=True)
class SetDetection:
    """Noisy-site detection over repeated fits (FedNoRo section 5.4)."""

    precision_each: list[float]
    recall_each: list[float]
    exact: list[bool]
    """Whether a fit found exactly the true set."""

    @property
    def precision(self) -> float:
        return float(np.mean(self.precision_each)) if self.precision_each else float("nan")

    @property
    def recall(self) -> float:
        return float(np.mean(self.recall_each)) if self.recall_each else float("nan")

    @property
    def matching_ratio(self) -> float:
        return float(np.mean(self.exact)) if self.exact else float("nan")


def detect_sets(predicted: Sequence[Iterable[Any]], true: Iterable[Any]) -> SetDetection:
    """Precision, recall and exact match of every predicted set against the true one."""
    wanted = set(true)
    sets = [set(found) for found in predicted]
    pairs = [precision_recall(found, wanted) for found in sets]
    return SetDetection([p for p, _ in pairs], [r for _, r in pairs], [found == wanted for found in sets])


@dataclass(frozen=True)
class SampleDetection:
    """Flagged samples against those whose label is wrong."""

    tp: int
    fp: int
    fn: int
    tn: int
    auroc: float
    """P(a wrong label scores above a right one), ties one half; NaN if it is undefined."""

    @property
    def precision(self) -> float:
        return self.tp / (self.tp + self.fp) if self.tp + self.fp else 0.0

    @property
    def recall(self) -> float:
        return self.tp / (self.tp + self.fn) if self.tp + self.fn else 0.0

    @property
    def f1(self) -> float:
        return 2 * self.tp / (2 * self.tp + self.fp + self.fn) if self.tp else 0.0


def detect_samples(wrong: ArrayLike, flagged: ArrayLike, suspicion: ArrayLike | None = None) -> SampleDetection:
    """Flagged samples against wrong labels, boolean `[n]` each.

    suspicion: a score `[n]` that is high for suspects, for the ROC area.
    """
    bad = np.asarray(wrong, dtype=np.bool_).ravel()
    marked: NDArray[np.bool_] = np.asarray(flagged, dtype=np.bool_).ravel()
    area = float("nan") if suspicion is None else roc_area(bad, suspicion)
    return SampleDetection(
        tp=int((bad & marked).sum()),
        fp=int((~bad & marked).sum()),
        fn=int((bad & ~marked).sum()),
        tn=int((~bad & ~marked).sum()),
        auroc=area,
    )


# What label correction did, against the truth: fixed, harmed, missed, kept (FedCorr Figs 7-8)
# ------------------------------------------------------------------------------


@dataclass(frozen=True)
class CorrectionScores:
    """Counts over samples (or over entries of multi-label data); fixed + harmed + missed + kept = n."""

    n: int
    fixed: int
    """Wrong before, right after."""
    harmed: int
    """Right before, wrong after."""
    missed: int
    """Wrong before and after."""
    kept: int
    """Right before and after."""
    missed_untouched: int
    missed_rewritten: int
    """Wrong before, given another wrong label."""
    touched: int
    """Changed at all."""

    @property
    def noise_before(self) -> float:
        return (self.fixed + self.missed) / self.n if self.n else 0.0

    @property
    def noise_after(self) -> float:
        return (self.harmed + self.missed) / self.n if self.n else 0.0

    def __add__(self, other: CorrectionScores) -> CorrectionScores:
        """The same over two sites."""
        mine, theirs = asdict(self), asdict(other)
        return CorrectionScores(**{name: mine[name] + theirs[name] for name in mine})


@dataclass(frozen=True)
class LabelFates:
    """What became of every sample, as boolean arrays of the labels' shape."""

    fixed: NDArray[np.bool_]
    harmed: NDArray[np.bool_]
    missed: NDArray[np.bool_]
    kept: NDArray[np.bool_]
    touched: NDArray[np.bool_]


def fates(true: ArrayLike, before: ArrayLike, after: ArrayLike) -> LabelFates:
    """Compare true, given and corrected labels: `[n]`, or `[n, K]` for multi-label data."""
    truth, given, final = np.asarray(true), np.asarray(before), np.asarray(after)
    if not truth.shape == given.shape == final.shape:
        raise DataError(f"labels differ in shape: true {truth.shape}, before {given.shape}, after {final.shape}")
    was, now = given == truth, final == truth
    return LabelFates(~was & now, was & ~now, ~was & ~now, was & now, final != given)


def _count(found: LabelFates, where: NDArray[np.bool_] | slice = slice(None)) -> CorrectionScores:
    def total(mask: NDArray[Any]) -> int:
        return int(mask[where].sum())

    return CorrectionScores(
        n=total(np.ones_like(found.fixed)),
        fixed=total(found.fixed),
        harmed=total(found.harmed),
        missed=total(found.missed),
        kept=total(found.kept),
        missed_untouched=total(found.missed & ~found.touched),
        missed_rewritten=total(found.missed & found.touched),
        touched=total(found.touched),
    )


def correction(true: ArrayLike, before: ArrayLike, after: ArrayLike) -> CorrectionScores:
    """Count what correction did: `[n]` class numbers, or `[n, K]` 0/1 rows counted by entry."""
    return _count(fates(true, before, after))


def correction_per_class(
    true: ArrayLike, before: ArrayLike, after: ArrayLike, n_classes: int
) -> list[CorrectionScores]:
    """The same for the samples of each true class; for multi-label data, for each column."""
    found, truth = fates(true, before, after), np.asarray(true)
    if truth.ndim == 2:
        columns = np.broadcast_to(np.arange(truth.shape[1]), truth.shape)
        return [_count(found, columns == c) for c in range(n_classes)]
    return [_count(found, truth == c) for c in range(n_classes)]
