"""Losses by class to one score a site: what wrong labels add, apart from what difficult samples multiply.

Losses by class tell a site with wrong labels from one with difficult samples: difficulty multiplies every class's loss,
a wrong label adds about the same to each, so it shows most where the model knows a class best.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_DIFFICULTY = 0.1
"""Least variance of the share by which clean sites' losses are thought to differ: a third up or down."""
_CAUTION = 3.0
"""Times the variance seen, where that is more: a difficulty taken for too small would pass for wrong labels."""
_COARSENESS = 0.5
"""Losses below this part of a typical class's are not told apart any better: one easy class must not decide."""
_TAIL = 4.0
"""Degrees of freedom of a single entry's error: a class of two samples at a site strays far."""
_CLEAN_QUANTILE = 0.4
"""A class's level without wrong labels: most sites are thought clean, so it lies below the median."""


def excess_losses(table: Array) -> Array:
    """What a site's losses have beyond their classes' levels and its own difficulty, over its uncertainty: `[S]`.

    Fitted is loss = level_k (1 + difficulty_s + error) + excess_s, for losses `[S, K]` of no negative value. Over the
    level, an excess has slope 1 / level_k and a difficulty is a constant, which is how they are told apart; the
    difficulty is random, its variance taken large, so that a site of one class has a score too, an uncertain one.
    Errors have long tails (t with 4 degrees of freedom). Scores are in units of sqrt(between + uncertainty^2), NaN for
    a site that holds no usable class: one that three sites hold and most of them at a loss.
    """
    level, held = _levels(table)
    known: NDArray[np.bool_] = np.asarray(held.any(1))
    if not known.any():
        return np.full(len(table), np.nan)
    loss = np.where(held, table, 0.0)
    unit = float(np.median(level[held.any(0)]))
    lowest = level / 4
    trust, variance = held.astype(np.float64), 0.05
    spare = max(float(held.sum() - 2 * known.sum() - held.any(0).sum()), held.sum() / 4)
    excess, precision, variety = np.zeros(len(table)), np.zeros(len(table)), _DIFFICULTY
    for _ in range(6):
        slope = unit / level
        coarse = 1 + (_COARSENESS * slope) ** 2
        ratio = np.where(held, loss / level - 1, 0.0)
        weight = trust / (variance * coarse)
        excess, precision = _slopes(ratio, slope, weight, variety)
        excess -= np.quantile(excess[known], _CLEAN_QUANTILE)
        rest = np.where(held, ratio - excess[:, None] * slope, 0.0)
        mass, total = weight.sum(1), (weight * rest).sum(1)
        difficulty = variety * total / (1 + variety * mass)
        variety = max(_DIFFICULTY, _CAUTION * _spread(total[known] / mass[known]) ** 2)
        error = np.where(held, rest - difficulty[:, None], 0.0) / np.sqrt(coarse)
        trust = held * (_TAIL + 1) / (_TAIL + error**2 / variance)
        variance = max(float((trust * error**2).sum()) / spare, 1e-5)
        without = (loss - unit * excess[:, None]) / np.maximum(1 + difficulty, 0.2)[:, None]
        for k in np.flatnonzero(held.any(0)):
            level[k] = max(float(np.median(without[held[:, k], k])), lowest[k])
    return _over_uncertainty(excess, precision, known)


def _levels(table: Array) -> tuple[Array, NDArray[np.bool_]]:
    """A first level for each class `[K]`, 1 for one that says nothing, and the entries of the others `[S, K]`."""
    held = ~np.isnan(table)
    level = np.ones(table.shape[1])
    for k in range(table.shape[1]):
        column = table[held[:, k], k]
        found = float(np.quantile(column, _CLEAN_QUANTILE)) if len(column) >= 3 else 0.0
        if found > 1e-12:
            level[k] = found
        else:
            held[:, k] = False
    return level, held


def _spread(values: Array) -> float:
    """Standard deviation of a normal sample by the median deviation from the median."""
    return 1.4826 * float(np.median(np.abs(values - np.median(values))))


def _slopes(ratio: Array, slope: Array, weight: Array, variety: float) -> tuple[Array, Array]:
    """Generalised least squares of each row on `slope` with a random intercept of variance `variety`: `[S]`, and
    its precision `[S]`."""
    mass, first, second = weight.sum(1), (weight * slope).sum(1), (weight * slope**2).sum(1)
    shrink = variety / (1 + variety * mass)
    precision = second - shrink * first**2
    top = (weight * slope * ratio).sum(1) - shrink * first * (weight * ratio).sum(1)
    return top / np.maximum(precision, 1e-12), precision


def _over_uncertainty(effect: Array, precision: Array, known: NDArray[np.bool_]) -> Array:
    """Effects over sqrt(between + 1 / precision); the variance between sites by DerSimonian and Laird's moments."""
    weight = precision[known]
    mean = float((weight * effect[known]).sum() / weight.sum())
    beyond = float((weight * (effect[known] - mean) ** 2).sum()) - (len(weight) - 1)
    scale = float(weight.sum() - (weight**2).sum() / weight.sum())
    between = max(0.0, beyond / scale) if scale > 1e-12 else 0.0
    score = np.full(len(effect), np.nan)
    score[known] = (effect[known] - mean) / np.sqrt(between + 1 / weight)
    return score
