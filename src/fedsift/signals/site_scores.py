"""Any table of indicators to one score a site, without filling in classes that a site lacks."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

FEWEST = 4
"""Sites below which no split can be told from chance."""
_TO_SIGMA = 0.8862
"""Mean difference of two values to standard deviation, for a normal sample: sqrt(pi) / 2."""
_WIDEST = 3.0
"""A single class counts with at most so many deviations: a class of two samples must not decide."""


def site_scores(table: Array) -> Array:
    """A site's effect in the table, over the classes that it holds, in units of what one group would show: `[S]`.

    Each class is scaled over the sites that hold it, then fitted as class + site: a site's effect is the weighted
    mean of what its classes show beyond their own level. A class counts by how well it agrees with a site's other
    classes. An effect measured on fewer classes varies more, so it is divided by sqrt(between + within / classes):
    a site that holds one class does not stand out for that alone. NaN for a site that holds no usable class.
    """
    z = np.column_stack([_scaled(column) for column in table.T]) if table.shape[1] else table
    held = ~np.isnan(z)
    if table.shape[1] > 1:
        z = np.clip(z, -_WIDEST, _WIDEST)
    z = np.where(held, z, 0.0)
    weight = held.astype(np.float64)
    residual, effect = _fit_two_way(z, held, weight)
    for _ in range(2 if table.shape[1] > 1 else 0):
        weight = held * _agreement(residual + effect[:, None], held, weight)
        residual, effect = _fit_two_way(z, held, weight)
    return _in_units_of_one_group(residual, effect, weight)


def _scaled(column: Array) -> Array:
    """One class centred and scaled by the mean difference of two sites, which a minority far off moves little.

    All NaN where it tells no sites apart or fewer than three hold it.
    """
    held = ~np.isnan(column)
    n = int(held.sum())
    if n < 3:
        return np.full(len(column), np.nan)
    ordered = np.sort(column[held])
    difference = float((2 * np.arange(1, n + 1) - n - 1) @ ordered) * 2 / (n * (n - 1))
    if difference <= 1e-12:
        return np.full(len(column), np.nan)
    return (column - np.median(ordered)) / (difference * _TO_SIGMA)


def _fit_two_way(z: Array, held: NDArray[np.bool_], weight: Array) -> tuple[Array, Array]:
    """z = class + site + residual by weighted least squares in turns: residuals `[S, K]` and site effects `[S]`."""
    effect = np.zeros(len(z))
    residual = z
    for _ in range(50):
        level = np.where(held, z - effect[:, None], 0.0).sum(0) / np.maximum(held.sum(0), 1)
        beyond = np.where(held, z - level, 0.0)
        updated = (weight * beyond).sum(1) / np.maximum(weight.sum(1), 1e-12)
        residual = np.where(held, beyond - updated[:, None], 0.0)
        moved = float(np.abs(updated - effect).max(initial=0.0))
        effect = updated
        if moved < 1e-9:
            break
    return residual, effect


def _agreement(beyond: Array, held: NDArray[np.bool_], weight: Array) -> Array:
    """Weight of each class `[K]`: by its correlation r with the same sites' other classes, (0.05 + r^2)/(1.1 - r^2).

    A class that shows the site's effect clearly counts up to ten times more than one that shows none of it.
    """
    total, mass = (weight * beyond).sum(1), weight.sum(1)
    result = np.full(held.shape[1], 0.05 / 1.1)
    for k in range(held.shape[1]):
        others = mass - weight[:, k]
        both = held[:, k] & (others > 1e-12)
        if both.sum() < FEWEST:
            continue
        rest = (total - weight[:, k] * beyond[:, k])[both] / others[both]
        own = beyond[both, k]
        if np.ptp(rest) > 1e-12 and np.ptp(own) > 1e-12:
            r = max(0.0, float(np.corrcoef(own, rest)[0, 1]))
            result[k] = (0.05 + r * r) / (1.1 - r * r)
    return result


def _in_units_of_one_group(residual: Array, effect: Array, weight: Array) -> Array:
    """Effects over sqrt(between + within / classes), the variances by moments; NaN where nothing is held."""
    mass = weight.sum(1)
    known = mass > 0
    classes = np.divide(mass**2, (weight**2).sum(1), out=np.ones(len(mass)), where=known)
    spare = float((classes[known] - 1).sum())
    shares = np.divide(weight, mass[:, None], out=np.zeros_like(weight), where=known[:, None])
    within = float((shares * residual**2 * classes[:, None]).sum() / spare) if spare > 1e-9 else 0.0
    between = 0.0
    if known.sum() > 1:
        between = max(0.0, float(effect[known].var(ddof=1)) - within * float((1 / classes[known]).mean()))
    variance = between + within / classes
    scaled: Array = effect / np.sqrt(np.where(variance > 0, variance, 1.0))
    return np.where(known, scaled, np.nan)
