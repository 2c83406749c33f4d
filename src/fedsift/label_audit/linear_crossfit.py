"""Cross-fitting a linear model on frozen features: k models at once, each without one fold of every site's samples.

Softmax regression `[F + 1, k, K]` (a sigmoid for each class where a picture has several), trained by federated
averaging of what `crossfit_step` makes of it at every site. The k models share every matrix product, so five folds
cost little more than one. A site's own class shares pi_s enter as P(given | x, s) = softmax(z(x) + log pi_s - log g):
sites that hold different classes then agree on z, and averaging loses less.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedsift.core.errors import DataError
from fedsift.protocol.messages import SPANS

Floats = NDArray[np.float32]
Labels = NDArray[np.int64]

RIDGES = (3e-4, 1e-3, 3e-3, 1e-2)
"""Strengths of the ridge that are compared by the likelihood of held-out given labels."""
SHARES_WEIGHT = 20.0
"""Samples' worth by which a site's class shares are drawn to the federation's."""
CLASS_WEIGHT = 10.0
"""Samples from which on a class counts more than half of what any class can, when a site standardises."""
_LENGTH = 4.0
"""Root mean square length of a standardised row of features: it makes one learning rate fit any number of them."""

_TOGETHER = 8
"""Linear models that count as one network."""


@dataclass(frozen=True)
class CrossfitSettings:
    """How a site trains in one round."""

    epochs: int = 2
    least_steps: int = 20
    """A small site makes more epochs, so that a round moves its models as far as a large one's."""
    batch: int = 64
    lr: float = 0.3
    momentum: float = 0.9

    def epochs_for(self, samples: int) -> int:
        """Epochs for a site of so many samples."""
        steps = -(-max(samples, 1) // self.batch)
        return max(self.epochs, -(-self.least_steps // steps))

    def work(self, samples: int, models: int) -> float:
        """Samples through a network, in one round: models share every matrix product, so several count as one."""
        return self.epochs_for(samples) * samples * max(1.0, models / _TOGETHER)


def own_scale(features: ArrayLike, given: ArrayLike | None = None) -> NDArray[np.float64]:
    """Means and deviations `[2, F]` of a site's features `[n, F]`, by which it standardises them; they never leave it.

    given `[n]`: labels, of which large classes count alike (a class of n samples for n / (n + 10)), so that sites with
    other mixes of classes standardise by nearly the same.
    """
    rows = np.asarray(features, np.float64)
    if not len(rows):
        raise DataError("features cannot be standardised: the site has no sample")
    weights = np.full(len(rows), 1.0 / len(rows))
    if given is not None:
        _, member, sizes = np.unique(np.asarray(given), return_inverse=True, return_counts=True)
        weights = 1.0 / (sizes[member] + CLASS_WEIGHT)
        weights /= weights.sum()
    mean = weights @ rows
    return np.stack([mean, np.sqrt(np.maximum(weights @ (rows - mean) ** 2, 0.0))])


def standardised(features: ArrayLike, scale: ArrayLike) -> Floats:
    """Features `[n, F]` with mean 0 and equal variances by these means and deviations, and a constant: `[n, F + 1]`.

    A feature that does not vary at the site counts for nothing there.
    """
    rows = np.asarray(features, np.float32)
    mean, deviation = np.asarray(scale, np.float64)
    factor = np.where(deviation > 1e-6, _LENGTH / np.sqrt(rows.shape[1]) / np.maximum(deviation, 1e-6), 0.0)
    result = np.empty((len(rows), rows.shape[1] + 1), np.float32)
    result[:, :-1] = (rows - mean.astype(np.float32)) * factor.astype(np.float32)
    result[:, -1] = 1.0
    return result


def fold_numbers(groups: ArrayLike | None, samples: int, folds: int, rng: np.random.Generator) -> Labels:
    """A fold for each of a site's samples `[n]`, of nearly equal size; samples of one group are never parted."""
    if groups is None:
        return rng.permutation(np.arange(samples) % folds)
    _, member = np.unique(np.asarray(groups), return_inverse=True)
    size = np.bincount(member)
    order = rng.permutation(len(size))
    order = order[np.argsort(-size[order], kind="stable")]
    load, chosen = np.zeros(folds, np.int64), np.zeros(len(size), np.int64)
    for group in order:
        chosen[group] = load.argmin()
        load[chosen[group]] += size[group]
    return chosen[member]


def share_shift(counts: ArrayLike, shares: ArrayLike) -> Floats:
    """log pi_s - log g `[K]` from a site's counts of given labels and the federation's shares."""
    n, g = np.asarray(counts, np.float64), np.maximum(np.asarray(shares, np.float64), 1e-9)
    own = (n + SHARES_WEIGHT * g) / (n.sum() + SHARES_WEIGHT)
    return np.asarray(np.log(own) - np.log(g), np.float32)


def crossfit_step(
    weights: ArrayLike,
    features: Floats,
    targets: ArrayLike,
    folds: Labels,
    held: Labels,
    ridge: ArrayLike,
    rng: np.random.Generator,
    *,
    shift: ArrayLike = 0.0,
    annotated: ArrayLike | None = None,
    settings: CrossfitSettings | None = None,
) -> Floats:
    """One site's part of a round: k models `[F + 1, k, K]` after some epochs of stochastic gradient descent.

    features: `[n, F + 1]` standardised. targets: given labels `[n]`, or probabilities `[n, K]`; with `annotated`,
    yes/no labels `[n, K]`. folds `[n]`: the samples' folds; held `[k]`: the fold that each model leaves out (-1: none).
    ridge `[k]`: penalty ridge / 2 |w|^2 beside the mean loss. shift `[K]`: log pi_s - log g. annotated `[K]`, boolean:
    the classes that this site annotates, each with a sigmoid of its own instead of the softmax.
    """
    chosen = settings or CrossfitSettings()
    w = np.array(weights, np.float32)
    size, models, classes = w.shape
    wanted = _wanted(targets, classes)
    offset = np.asarray(shift, np.float32)
    known = None if annotated is None else np.asarray(annotated, np.float32)
    decay = np.asarray(ridge, np.float32).reshape(1, -1, 1)
    velocity = np.zeros_like(w)
    for _ in range(chosen.epochs_for(len(features))):
        order = rng.permutation(len(features))
        for start in range(0, len(order), chosen.batch):
            rows = order[start : start + chosen.batch]
            x = features[rows]
            z = (x @ w.reshape(size, -1)).reshape(len(rows), models, classes) + offset
            error = _probabilities(z, sigmoid=known is not None) - wanted[rows, None]
            used = (folds[rows, None] != held).astype(np.float32)
            error *= (used / np.maximum(used.sum(0), 1.0))[:, :, None]
            slope = (x.T @ error.reshape(len(rows), -1)).reshape(w.shape) + decay * w
            if known is not None:
                slope *= known
            velocity *= chosen.momentum
            velocity += slope
            w -= np.float32(chosen.lr) * velocity
    return w


def averaged(weights: list[Floats], samples: ArrayLike) -> Floats:
    """The sites' models `[F + 1, k, K]` averaged by their numbers of samples."""
    n = np.asarray(samples, np.float64)
    total = np.zeros(weights[0].shape, np.float64)
    for one, share in zip(weights, n / n.sum(), strict=True):
        total += share * one
    return total.astype(np.float32)


def out_of_fold(weights: Floats, features: Floats, folds: Labels, held: Labels) -> NDArray[np.float64]:
    """z `[n, K]`, each row by the model that left its fold out; NaN where no model did."""
    size, _, classes = weights.shape
    z = np.full((len(features), classes), np.nan)
    for model, fold in enumerate(held):
        rows = np.flatnonzero(folds == fold)
        z[rows] = features[rows] @ weights[:, model].reshape(size, classes)
    return z


def as_probabilities(z: ArrayLike, *, sigmoid: bool = False) -> NDArray[np.float64]:
    """softmax(z) over the last axis, or the sigmoid of each."""
    return np.asarray(_probabilities(np.asarray(z, np.float64), sigmoid=sigmoid), np.float64)


def held_out_likelihoods(
    weights: Floats, features: Floats, given: Labels, folds: Labels, held: Labels, shift: ArrayLike = 0.0
) -> NDArray[np.float64]:
    """For each model the sum of log P(given | x, s) over the fold that it left out, `[k]`: whole numbers, each label at
    least -10, so that none shows in a sum by more."""
    sums = np.zeros(len(held))
    for model, fold in enumerate(held):
        rows = np.flatnonzero(folds == fold)
        z = (features[rows] @ weights[:, model] + np.asarray(shift, np.float32)).astype(np.float64)
        p = as_probabilities(z)[np.arange(len(rows)), given[rows]]
        sums[model] = np.maximum(np.log(np.maximum(p, 1e-12)), -SPANS["likelihood"]).sum()
    return np.rint(sums)


def _wanted(targets: ArrayLike, classes: int) -> Floats:
    values = np.asarray(targets)
    if values.ndim == 1:
        return np.eye(classes, dtype=np.float32)[values.astype(np.int64)]
    return values.astype(np.float32)


def _probabilities(z: NDArray[np.floating], *, sigmoid: bool) -> NDArray[np.floating]:
    if sigmoid:
        return np.asarray(1 / (1 + np.exp(-np.clip(z, -60, 60))))
    e: NDArray[np.floating] = np.exp(z - z.max(-1, keepdims=True))
    e /= e.sum(-1, keepdims=True)
    return e
