"""The rules by which any averaging method can aggregate, by name."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from fedsift.aggregate.average import average
from fedsift.aggregate.clipping import clipped_average
from fedsift.aggregate.geometric import geometric_median
from fedsift.aggregate.krum import krum_choice
from fedsift.aggregate.robust import coordinate_median, trimmed_mean
from fedsift.aggregate.weights import shares_of
from fedsift.contract.messages import Weights

Rule = Literal["mean", "median", "trimmed", "krum", "multi-krum", "geometric-median", "clipped"]


def aggregate_by(
    rule: Rule, models: Sequence[Weights], sizes: Sequence[float], start: Weights, hostile: float = 0.2
) -> Weights:
    """The models as one, by a rule.

    start: the weights that the sites trained from. hostile: the share of the sites that may send anything at all,
    f / m; the trimmed mean cuts so many values at both ends, Krum keeps so many models out. Sizes count in the mean,
    the clipped mean and the geometric median; for the others a declared size is one more thing to lie about.
    """
    f = math.floor(hostile * len(models) + 1e-9)
    if rule == "mean":
        return average(models, sizes)
    if rule == "median":
        return coordinate_median(models)
    if rule == "trimmed":
        return trimmed_mean(models, hostile)
    if rule == "geometric-median":
        return geometric_median(models, sizes)
    if rule == "clipped":
        return clipped_average(models, shares_of(sizes), start)
    keep = 1 if rule == "krum" else max(1, len(models) - f)
    return average([models[i] for i in krum_choice(models, f, keep)])
