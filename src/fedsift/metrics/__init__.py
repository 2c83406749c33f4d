"""Metrics: accuracy family, multi-label, curves, detection and label correction. NaN stands for undefined."""

from fedsift.contract.plain import plain
from fedsift.metrics.classification import (
    accuracy,
    balanced_accuracy,
    confusion,
    mean_of_defined,
    recall_per_class,
)
from fedsift.metrics.correction import (
    Correction,
    Fates,
    correction,
    correction_per_class,
    fates,
)
from fedsift.metrics.detection import (
    SampleDetection,
    SetDetection,
    detect_samples,
    detect_sets,
    precision_recall,
)
from fedsift.metrics.multilabel import (
    MultilabelScores,
    average_precision,
    balanced_accuracy_from_counts,
    binary_counts,
    multilabel_scores,
    roc_area,
)
from fedsift.runs.curves import CurveSummary, summarise, targeted_cost

__all__ = [
    "Correction",
    "CurveSummary",
    "Fates",
    "MultilabelScores",
    "SampleDetection",
    "SetDetection",
    "accuracy",
    "average_precision",
    "balanced_accuracy",
    "balanced_accuracy_from_counts",
    "binary_counts",
    "confusion",
    "correction",
    "correction_per_class",
    "detect_samples",
    "detect_sets",
    "fates",
    "mean_of_defined",
    "multilabel_scores",
    "plain",
    "precision_recall",
    "recall_per_class",
    "roc_area",
    "summarise",
    "targeted_cost",
]
