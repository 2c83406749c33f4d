"""Labels that a site's own model disputes, settled by the global one: FedClean's two corrections."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedsift.signals.mixture import split_values
from fedsift.signals.relabel import relabel

FEWEST = 10
"""Fewer values are not parted in two."""
GAP = math.log(2)
"""Two groups whose means are nearer than this are one: a mixture parts any values, those of right labels too."""


@dataclass(frozen=True)
class Settled:
    """What became of a site's disputed labels; positions are in the site, ascending."""

    labels: NDArray[np.int64]
    """All labels of the site, `[n]`, the corrected ones replaced."""
    corrected: NDArray[np.int64]
    cleared: NDArray[np.int64]
    """Disputed, but the given label may well be right."""
    score: NDArray[np.float64]
    """By what they were judged, `[n]`; NaN where a label was not looked at."""


def collaborative_loss(log_p: ArrayLike, given: ArrayLike, local: ArrayLike) -> NDArray[np.float64]:
    """L_co = CE(p, y) - CE(p, y_bar) = log p_{y_bar} - log p_y, `[n, K], [n], [n] -> [n]` (FedClean eq. 15).

    From log p, because p_y underflows where it matters most.
    """
    rows, labels, said = np.asarray(log_p, dtype=np.float64), np.asarray(given), np.asarray(local)
    every = np.arange(len(rows))
    return np.asarray(rows[every, said] - rows[every, labels])


def settle_by_agreement(
    log_p: ArrayLike, given: ArrayLike, local: ArrayLike, disputed: ArrayLike, ratio: float
) -> Settled:
    """Sub-stage I: where local and global model agree against the given label, the surest take their label.

    log_p `[n, K]` of the global model, local: y_bar, disputed: bool, all `[n]`. The disputed samples with argmax p =
    y_bar are parted by L_co, and the floor(ratio |G1|) largest of the upper part G1 become y_bar (eq. 16).
    """
    rows, labels = np.asarray(log_p, dtype=np.float64), np.asarray(given, dtype=np.int64)
    agreed = np.asarray(disputed, dtype=np.bool_) & (rows.argmax(axis=1) == np.asarray(local))
    pool = np.flatnonzero(agreed)
    score = np.full(len(labels), np.nan)
    score[pool] = collaborative_loss(rows[pool], labels[pool], np.asarray(local)[pool])
    upper = upper_group(score[pool])
    if upper is None:
        return Settled(labels, _nobody(), _nobody(), score)
    done = relabel(labels, score, pool[upper], np.exp(rows), ratio, 0.0, "paper")
    return Settled(done.labels, done.relabelled, _nobody(), score)


def settle_by_model(
    log_p: ArrayLike, given: ArrayLike, rest: ArrayLike, ratio: float, sure: float
) -> Settled:
    """Sub-stage II: of what is left, the global model clears labels of small loss and answers where it is sure.

    rest: bool `[n]`. Parted by L_an = CE(p, y): the lower part H2 is cleared; of the upper part H1 those among the
    floor(ratio |H1|) largest with max p >= sure become argmax p (eqs. 17-18). Where there is one group alone, it is
    cleared if on average the model holds its labels for likelier than all others together, else it stays as it is.
    """
    rows, labels = np.asarray(log_p, dtype=np.float64), np.asarray(given, dtype=np.int64)
    pool = np.flatnonzero(np.asarray(rest, dtype=np.bool_))
    score = np.full(len(labels), np.nan)
    score[pool] = -rows[pool, labels[pool]]
    upper = upper_group(score[pool])
    if upper is None:
        fine = len(pool) > 0 and float(score[pool].mean()) < math.log(2)
        return Settled(labels, _nobody(), pool if fine else _nobody(), score)
    done = relabel(labels, score, pool[upper], np.exp(rows), ratio, sure, "paper")
    return Settled(done.labels, done.relabelled, np.setdiff1d(pool, pool[upper]), score)


def upper_group(values: NDArray[np.float64]) -> NDArray[np.int64] | None:
    """Members of the group of larger mean, ascending; None where there are not two groups."""
    if len(values) < FEWEST:
        return None
    split = split_values(values)
    if split.means is None or float(split.means[1, 0] - split.means[0, 0]) < GAP:
        return None
    return split.noisy


def _nobody() -> NDArray[np.int64]:
    return np.zeros(0, dtype=np.int64)
