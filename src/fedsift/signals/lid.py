"""Local intrinsic dimensionality of a site's predictions: noisy sites score higher (FedCorr eq. 2)."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedsift.contract.errors import ConfigError, DataError

Form = Literal["paper", "official", "guarded"]

_HELD = 1 << 22
"""32 MB of distances."""


def nearest_distances(points: NDArray[Any], k: int, held: int = _HELD) -> NDArray[np.float64]:
    """Distances of every row to its min(k, n - 1) nearest other rows, ascending: `[n, d] -> [n, m]`.

    From differences, so that equal rows are at exactly 0; the row itself is left out by its index. At most
    about `held` distances are in memory at a time.
    """
    from scipy.spatial.distance import cdist  # imported when needed: it slows every start otherwise

    n = len(points)
    m = min(k, n - 1)
    wide = np.asarray(points, dtype=np.float64)
    nearest = np.empty((n, m))
    step = max(1, held // max(n, 1))
    for start in range(0, n, step):
        block = cdist(wide[start : start + step], wide)
        rows = np.arange(len(block))
        block[rows, start + rows] = np.inf
        nearest[start : start + step] = np.sort(np.partition(block, m - 1, axis=1)[:, :m], axis=1)
    return nearest


def lid(
    points: ArrayLike, k: int = 20, form: Form = "guarded", eps: float = 1e-6, floor: float = 0.0
) -> NDArray[np.float64]:
    """LID of every row of `points` among the others, `[n, K] -> [n]`; a site's score is the mean.

    points: softmax rows. Give them in float32, as the paper's experiments did: how many rows saturate to
    the same vector, and so score 0, depends on the precision.
    form: "paper" -m / sum_i log(r_i / r_m); "official" -k / (sum_i log(r_i / (r_m + eps)) + eps), k as
    asked for even with fewer neighbours; "guarded" the same with m, the neighbours there are.

    floor: smaller distances count as this one; without it a neighbour at distance 0 gives 0 (the limit). A
    single row gives 0. Equidistant neighbours give inf ("paper").
    """
    rows = np.asarray(points)
    if rows.ndim != 2:
        raise DataError(f"LID needs one row a sample, got an array of shape {rows.shape}")
    if k < 1:
        raise ConfigError(f"lid k = {k}: at least one neighbour is needed")
    if not np.isfinite(rows).all():
        raise DataError("LID needs finite predictions: the network's outputs contain NaN or infinity")
    if len(rows) < 2:
        return np.zeros(len(rows))
    radii = np.maximum(nearest_distances(rows, k), floor)
    m = radii.shape[1]
    scores = np.zeros(len(rows))
    apart = radii[:, 0] > 0
    near = radii[apart]
    if form == "paper":
        total = np.log(near / near[:, -1:]).sum(axis=1)
        with np.errstate(divide="ignore"):
            scores[apart] = m / np.abs(total)
    elif form in ("official", "guarded"):
        total = np.log(near / (near[:, -1:] + eps)).sum(axis=1)
        scores[apart] = -(k if form == "official" else m) / (total + eps)
    else:
        raise ConfigError(f"lid form = '{form}': choose 'paper', 'official' or 'guarded'")
    return scores


def site_lid(
    points: ArrayLike,
    k: int = 20,
    form: Form = "guarded",
    eps: float = 1e-6,
    floor: float = 0.0,
    highest: float | None = None,
) -> float:
    """Mean LID of a site's samples (FedCorr Alg. 1 line 7); 0 without samples.

    highest: LIDs are cut to 0 to this, so that one sample cannot carry the mean away; None: they are not.
    """
    scores = lid(points, k, form, eps, floor)
    if highest is not None:
        scores = np.clip(scores, 0.0, highest)
    return float(scores.mean()) if len(scores) else 0.0
