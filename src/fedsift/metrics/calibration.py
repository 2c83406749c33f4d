"""Does a probability mean what it says? The debiased calibration error in bins of equal mass."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from fedsift.contract.errors import DataError

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
