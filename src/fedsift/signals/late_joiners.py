"""A site's score from its LIDs of several iterations, also when it missed some (FedCorr section 3.2 and 5).

The paper sums a site's LIDs over all iterations. A site that joined late, or could not be reached, then has a
smaller sum and passes as clean: the open problem of the paper's conclusion.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedsift.contract.errors import ConfigError

Score = Literal["completed", "cumulative", "mean", "latest"]


def standing(lids: NDArray[np.float64]) -> NDArray[np.float64]:
    """Where a site stood among the others, on average over the iterations that it was visited in: `[T, S]
    -> [S]`.

    Each iteration's LIDs are centred and scaled over the sites visited in it, so that iterations of small and
    of large LIDs count alike. NaN for a site that was never visited; 0 where an iteration tells nobody apart.
    """
    visited = ~np.isnan(lids)
    count = visited.sum(axis=1, keepdims=True)
    values = np.where(visited, lids, 0.0)
    centre = values.sum(axis=1, keepdims=True) / np.maximum(count, 1)
    away = np.where(visited, lids - centre, 0.0)
    spread = np.sqrt((away**2).sum(axis=1, keepdims=True) / np.maximum(count, 1))
    scaled = np.divide(away, spread, out=np.zeros_like(away), where=spread > 0)
    visits = visited.sum(axis=0)
    return np.where(visits > 0, scaled.sum(axis=0) / np.maximum(visits, 1), np.nan)


def complete(lids: ArrayLike) -> NDArray[np.float64]:
    """Fill the iterations that a site missed by the LID that its standing would have had there, `[T, S]`.

    A missed iteration t counts as mean_t + standing * sd_t over the sites visited in t. Nothing is filled
    when every site took part; an iteration without any visit stays NaN, and so does a site never visited.
    """
    table = np.asarray(lids, dtype=np.float64)
    visited = ~np.isnan(table)
    where = standing(table)
    count = np.maximum(visited.sum(axis=1, keepdims=True), 1)
    values = np.where(visited, table, 0.0)
    centre = values.sum(axis=1, keepdims=True) / count
    spread = np.sqrt(np.where(visited, (table - centre) ** 2, 0.0).sum(axis=1, keepdims=True) / count)
    filled = np.where(visited, table, centre + spread * where)
    filled[~visited.any(axis=1)] = np.nan
    return filled


def score_sites(lids: ArrayLike, kind: Score = "completed") -> NDArray[np.float64]:
    """One score a site from its LIDs `[T, S]`, NaN where it was not visited: `[S]`, NaN for a site never
    visited.

    "cumulative": the sum over the iterations it was visited in, as published. "completed": the same sum with
    missed iterations filled in (`complete`); equal to "cumulative" when nobody missed any. "mean": the mean
    over its visits, which still compares a newcomer's late LIDs with the others' early ones. "latest": this
    iteration's LID alone (Fig. 3, left).
    """
    table = np.asarray(lids, dtype=np.float64)
    visited = ~np.isnan(table)
    if kind == "latest":
        return np.asarray(table[-1])
    if kind == "cumulative":
        total = np.where(visited, table, 0.0).sum(axis=0)
    elif kind == "mean":
        total = np.where(visited, table, 0.0).sum(axis=0) / np.maximum(visited.sum(axis=0), 1)
    elif kind == "completed":
        total = np.nansum(complete(table), axis=0)
    else:
        raise ConfigError(f"score = '{kind}': choose 'completed', 'cumulative', 'mean' or 'latest'")
    return np.where(visited.any(axis=0), total, np.nan)
