"""Predictions freed of what a network says of everything: FedDiv's predictive consistency."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

LEAST = 1e-4
"""A class's share counts as at least this. It decays like m^t where a site lacks the class; without a floor the bonus
-xi log p grows without end, and the class wins every time."""


def debiased(
    logits: ArrayLike, prior: ArrayLike, strength: float, held: ArrayLike | None = None
) -> NDArray[np.float64]:
    """F = f(x) - xi log p_hat, `[n, K]` (FedDiv eq. 9): what is predicted beyond the site's usual prediction.

    prior: p_hat, the site's running mean prediction, `[K]`. held: classes that the site has samples of, `[K]`; the
    others get the smallest bonus of all instead of the largest. None: all classes alike.
    """
    bonus = -strength * np.log(np.maximum(np.asarray(prior, dtype=np.float64), LEAST))
    if held is not None:
        bonus = np.where(np.asarray(held, dtype=np.bool_), bonus, bonus.min())
    return np.asarray(logits, dtype=np.float64) + bonus


def running_prior(
    prior: ArrayLike, probabilities: ArrayLike, momentum: float, counted: ArrayLike | None = None
) -> NDArray[np.float64]:
    """p_hat <- m p_hat + (1 - m) mean of p over the site's samples, `[K]` (FedDiv eq. 10).

    counted: samples that count, bool `[n]`; None: all. Where none does, p_hat stays.
    """
    before, p = np.asarray(prior, dtype=np.float64), np.asarray(probabilities, dtype=np.float64)
    if counted is not None:
        p = p[np.asarray(counted, dtype=np.bool_)]
    return momentum * before + (1 - momentum) * p.mean(axis=0) if len(p) else before
