"""How well noisy sites, and wrong labels, were found."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedsift.metrics.multilabel import roc_area


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
    """P(a wrong label scores above a right one), ties one half; NaN if it cannot be told."""

    @property
    def precision(self) -> float:
        return self.tp / (self.tp + self.fp) if self.tp + self.fp else 0.0

    @property
    def recall(self) -> float:
        return self.tp / (self.tp + self.fn) if self.tp + self.fn else 0.0

    @property
    def f1(self) -> float:
        return 2 * self.tp / (2 * self.tp + self.fp + self.fn) if self.tp else 0.0


def detect_samples(
    wrong: ArrayLike, flagged: ArrayLike, suspicion: ArrayLike | None = None
) -> SampleDetection:
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
