"""What people's verdicts change: probabilities recalibrated as a monotone function of the score, known labels kept.

The arms of a review were drawn by score, so a plain share of confirmed labels would be the arm's, not the list's: each
verdict counts by the number of labels that it stands for (weight = size of the arm's population over its sample),
and the fit is a function of the score. Platt's two numbers are fitted, drawn to the identity by a few verdicts' worth:
100 verdicts leave a free curve too rough.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit, logit

from fedsift.contract.errors import DataError

Array = NDArray[np.float64]

PRIOR_WEIGHT = 20.0
"""Verdicts' worth by which the curve is drawn to the probabilities as they were."""
STEEPEST, FLATTEST = 3.0, 0.2
"""The curve never turns round: a verdict changes how sure a score is, not the order of the list."""
READER_ERRORS = np.arange(0.01, 0.305, 0.02)
"""Shares of mistaken verdicts that are tried."""
READERS = (2.0, 18.0)
"""The Beta distribution of readers' shares of mistaken verdicts before any is known: a tenth, give or take 7 points."""
_EDGE = 1e-6
_IDENTITY, _STIFFNESS = np.array([0.0, 1.0]), np.array([0.1, 0.4])
"""Offset and slope that the curve is drawn to, and how strongly for each verdict's worth."""


@dataclass(frozen=True)
class Recalibration:
    """P(wrong) -> sigmoid(offset + slope logit P(wrong)), slope > 0."""

    offset: float = 0.0
    slope: float = 1.0

    def __call__(self, probability_wrong: ArrayLike) -> Array:
        odds = logit(np.clip(np.asarray(probability_wrong, np.float64), _EDGE, 1 - _EDGE))
        result: Array = expit(self.offset + self.slope * odds)
        return result


def recalibrated(
    probability_wrong: ArrayLike,
    found_wrong: ArrayLike,
    weights: ArrayLike | None = None,
    prior_weight: float = PRIOR_WEIGHT,
    reader_error: float = 0.0,
) -> Recalibration:
    """The curve from verdicts: probabilities `[m]` as they were, verdicts `[m]` (1 wrong, 0 right), weights `[m]`.

    reader_error: share of verdicts that are mistaken either way; P(verdict wrong) = r + (1 - 2 r) P(wrong). Weights are
    scaled to their effective number, (sum w)^2 / sum w^2. Newton's method on the penalised log-likelihood, the penalty
    that of normal priors on offset (0, 1) and slope (1, 0.5) with the given verdicts' worth.
    """
    p, y = np.asarray(probability_wrong, np.float64).ravel(), np.asarray(found_wrong, np.float64).ravel()
    w = np.ones(len(p)) if weights is None else np.asarray(weights, np.float64).ravel()
    if not len(p) == len(y) == len(w) or (w < 0).any():
        raise DataError(
            f"{len(p)} probabilities, {len(y)} verdicts and {len(w)} weights; none may be negative"
        )
    if not 0 <= reader_error < 0.5:
        raise DataError(f"reader_error = {reader_error}: it must be 0 or more and below 0.5")
    if not len(p) or not w.any():
        return Recalibration()
    w = _effective(w)
    odds = logit(np.clip(p, _EDGE, 1 - _EDGE))
    design = np.stack([np.ones_like(odds), odds], axis=1)
    target, precision = _IDENTITY, prior_weight * _STIFFNESS
    curve = target.copy()
    for _ in range(50):
        right = expit(design @ curve)
        seen = np.clip(reader_error + (1 - 2 * reader_error) * right, _EDGE, 1 - _EDGE)
        slope = (1 - 2 * reader_error) * right * (1 - right)
        pull = w * (y - seen) * slope / (seen * (1 - seen))
        bend = w * slope**2 / (seen * (1 - seen))
        gradient = design.T @ pull - precision * (curve - target)
        hessian = (design * bend[:, None]).T @ design + np.diag(precision + _EDGE)
        step = np.linalg.solve(hessian, gradient)
        curve = curve + np.clip(step, -1.0, 1.0)
        if np.abs(step).max() < 1e-8:
            break
    return Recalibration(float(curve[0]), float(np.clip(curve[1], FLATTEST, STEEPEST)))


def _effective(weights: Array) -> Array:
    """Weights `[m]` scaled to their effective number, (sum w)^2 / sum w^2."""
    result: Array = weights * (weights.sum() / (weights**2).sum())
    return result


def reader_error_of(
    probability_wrong: ArrayLike, found_wrong: ArrayLike, weights: ArrayLike | None = None
) -> float:
    """The mean share of mistaken verdicts, given them, over all shares and (by Laplace) all curves, drawn to a tenth.

    Verdicts against a score near 0 or 1 are the sign of it. Summed over a grid, with the prior `READERS`. The mean, not
    the likeliest share: a few hundred verdicts hardly tell, the likeliest one lies below most that are likely, and a
    reader who is trusted too much costs more than one who is trusted too little.
    """
    p, y = np.asarray(probability_wrong, np.float64).ravel(), np.asarray(found_wrong, np.float64).ravel()
    w = np.ones(len(p)) if weights is None else np.asarray(weights, np.float64).ravel()
    w = _effective(w) if w.any() else w
    design = np.stack([np.ones(len(p)), logit(np.clip(p, _EDGE, 1 - _EDGE))], axis=1)
    scores = []
    for rate in READER_ERRORS:
        curve = recalibrated(p, y, weights, reader_error=float(rate))
        bent = np.array([curve.offset, curve.slope]) - _IDENTITY
        right = curve(p)
        seen = np.clip(rate + (1 - 2 * rate) * right, _EDGE, 1 - _EDGE)
        known = w * ((1 - 2 * rate) * right * (1 - right)) ** 2 / (seen * (1 - seen))
        stiffness = (design * known[:, None]).T @ design + np.diag(PRIOR_WEIGHT * _STIFFNESS)
        fit = float((w * (y * np.log(seen) + (1 - y) * np.log(1 - seen))).sum())
        fit -= 0.5 * PRIOR_WEIGHT * float((_STIFFNESS * bent**2).sum())
        fit -= 0.5 * float(np.linalg.slogdet(stiffness)[1])
        scores.append(fit + (READERS[0] - 1) * np.log(rate) + (READERS[1] - 1) * np.log(1 - rate))
    likely = np.exp(np.array(scores) - max(scores))
    return float((likely * READER_ERRORS).sum() / likely.sum())


def after_verdict(posterior: ArrayLike, said: ArrayLike, readers: ArrayLike, reader_error: float) -> Array:
    """P(true) `[m, K]` after k readers `[m]` said class `said` `[m]`.

    Times (1 - r)^k for that class and (r / (K - 1))^k for the others.
    """
    result, label = np.array(posterior, np.float64), np.asarray(said, np.int64)
    ratio = (1 - reader_error) * max(result.shape[1] - 1, 1) / max(reader_error, _EDGE)
    result = np.maximum(result, _EDGE**2)
    result[np.arange(len(label)), label] *= ratio ** np.asarray(readers, np.float64)
    after: Array = result / result.sum(1, keepdims=True)
    return after


def with_known(
    posterior: ArrayLike, known: ArrayLike, readers: ArrayLike = 1, reader_error: float | None = None
) -> Array:
    """The posterior `[n, K]` where people settled on labels (`known` `[n]`, -1: unknown).

    readers: how many stand behind each, one number or `[n]`. reader_error: how often one is mistaken; None makes the
    rows certain.
    """
    result = np.array(posterior, np.float64)
    labels = np.asarray(known, np.int64)
    if labels.shape != result.shape[:1] or (labels >= result.shape[1]).any():
        raise DataError(f"known labels {labels.shape} do not fit a posterior {result.shape}")
    rows = np.flatnonzero(labels >= 0)
    if reader_error is None:
        result[rows] = np.eye(result.shape[1])[labels[rows]]
    else:
        each = np.broadcast_to(np.asarray(readers, np.float64), labels.shape)
        result[rows] = after_verdict(result[rows], labels[rows], each[rows], reader_error)
    return result
