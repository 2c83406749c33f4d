"""Adapters for metrics."""

from __future__ import annotations

from typing import Any

import numpy as np
from adapters_losses import ALL
from golden_harness import Adapters

from fedsift.core import numbers
from fedsift.formulas import metrics
from fedsift.runs import reading

ADAPTERS = Adapters()
Inputs = dict[str, Any]


@ADAPTERS.add("metrics", "bacc", *ALL)
def bacc(i: Inputs, variant: str) -> dict[str, Any]:
    counts = metrics.confusion(i["true"], i["predicted"], i["n_classes"])
    right, total = counts.diagonal(), counts.sum(1)
    return {
        "bacc": numbers.plain(metrics.balanced_accuracy(right, total)),
        "recall_per_class": numbers.plain(metrics.recall_per_class(right, total)),
        "accuracy": numbers.plain(metrics.accuracy(right, total)),
        "confusion": counts,
    }


@ADAPTERS.add("metrics", "multilabel", *ALL)
def multilabel(i: Inputs, variant: str) -> dict[str, Any]:
    found = metrics.multilabel_scores(i["labels"], i["probs"], i["threshold"])
    return numbers.plain(
        {
            "bacc_per_class": found.bacc_per_class,
            "auc_per_class": found.auc_per_class,
            "ap_per_class": found.ap_per_class,
            "bacc": found.bacc,
            "auc": found.auc,
            "map": found.map,
        }
    )


@ADAPTERS.add("metrics", "best_last", *ALL)
def best_last(i: Inputs, variant: str) -> dict[str, Any]:
    return numbers.plain(reading.summarise_curve(i["curve"], i["last"], i["from_round"] or 0))


@ADAPTERS.add("metrics", "detection", *ALL)
def detection(i: Inputs, variant: str) -> dict[str, Any]:
    found = metrics.detect_sets(i["predicted"], i["true"])
    return {
        "precision": numbers.plain(found.precision),
        "recall": numbers.plain(found.recall),
        "matching_ratio": numbers.plain(found.matching_ratio),
        "precision_each": found.precision_each,
        "recall_each": found.recall_each,
    }


@ADAPTERS.add("metrics", "targeted_cost", *ALL)
def targeted_cost(i: Inputs, variant: str) -> dict[str, Any]:
    return {"cost": reading.targeted_cost(i["accuracy"], i["participants"], i["target"])}


@ADAPTERS.add("label_correction_metrics", "report", *ALL)
def report(i: Inputs, variant: str) -> dict[str, Any]:
    done = metrics.correction(i["true"], i["before"], i["after"])
    fates = metrics.fates(i["true"], i["before"], i["after"])
    marked = np.isin(np.arange(len(i["true"])), i["flagged"])
    flags = metrics.detect_samples(np.array(i["true"]) != np.array(i["before"]), marked)
    return {
        **numbers.plain(done),
        "noise_before": done.noise_before,
        "noise_after": done.noise_after,
        "fixed_idx": np.flatnonzero(fates.fixed),
        "harmed_idx": np.flatnonzero(fates.harmed),
        "missed_idx": np.flatnonzero(fates.missed),
        **{name: getattr(flags, name) for name in ("tp", "fp", "fn", "tn")},
        "estimated_noise": (flags.tp + flags.fp) / done.n if done.n else 0.0,
    }
