"""Others' probabilities and scores: each site alone, all data pooled, cleanlab's scores, losses and margins."""

from __future__ import annotations

import numpy as np
from benchmarks.audit.federation import Scene
from cleanlab.rank import get_label_quality_scores
from numpy.typing import NDArray
from scipy.optimize import minimize

from fedsift.label_audit.linear_crossfit import as_probabilities, out_of_fold

Array = NDArray[np.float64]
Labels = NDArray[np.int64]
POOLED_RIDGES = (3e-4, 1e-3, 3e-3, 1e-2)
LOCAL_RIDGES = (1e-3, 3e-3, 1e-2, 3e-2)


def fitted(
    features: NDArray[np.float32],
    given: Labels,
    fold: Labels,
    held: Labels,
    ridge: Array,
    classes: int,
    iterations: int = 50,
) -> NDArray[np.float32]:
    """Softmax regressions `[F + 1, k, K]` without their fold, all in one problem, by L-BFGS."""
    n, size = features.shape
    used = (fold[:, None] != held).astype(np.float32)
    used /= np.maximum(used.sum(0), 1)
    target = np.eye(classes, dtype=np.float32)[given][:, None]
    decay = ridge.astype(np.float32)[None, :, None]

    def loss(flat: Array) -> tuple[float, Array]:
        w = flat.astype(np.float32).reshape(size, len(held), classes)
        z = (features @ w.reshape(size, -1)).reshape(n, len(held), classes)
        z -= z.max(-1, keepdims=True)
        e = np.exp(z)
        total = e.sum(-1, keepdims=True)
        value = float((((np.log(total) - z) * target).sum(-1) * used).sum()) + 0.5 * float((decay * w**2).sum())
        error = (e / total - target) * used[:, :, None]
        slope = (features.T @ error.reshape(n, -1)).reshape(w.shape) + decay * w
        return value, slope.astype(np.float64).ravel()

    start = np.zeros(size * len(held) * classes)
    found = minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": iterations})
    return found.x.reshape(size, len(held), classes).astype(np.float32)


def pooled_probabilities(scene: Scene, features: NDArray[np.float32], folds: int = 5) -> Array:
    """Out-of-fold p of all data in one place; the ridge by the held-out likelihood of the first fold."""
    rows = np.arange(len(scene.given))
    tried = np.array(POOLED_RIDGES)
    first = np.zeros(len(tried), np.int64)
    w = fitted(features, scene.given, scene.fold, first, tried, scene.classes)
    out = scene.fold == 0
    score = [
        np.log(as_probabilities(features[out] @ w[:, j])[np.arange(out.sum()), scene.given[out]] + 1e-12).sum()
        for j in range(len(tried))
    ]
    held = np.arange(folds)
    ridge = np.full(folds, tried[int(np.argmax(score))])
    w = fitted(features, scene.given, scene.fold, held, ridge, scene.classes)
    return as_probabilities(out_of_fold(w, features[rows], scene.fold, held))


def local_probabilities(scene: Scene, features: NDArray[np.float32], folds: int = 5) -> Array:
    """Out-of-fold p of every site alone; the ridge by the held-out likelihood at the site."""
    p = np.full((len(scene.given), scene.classes), 1 / scene.classes)
    held = np.tile(np.arange(folds), len(LOCAL_RIDGES))
    ridge = np.repeat(LOCAL_RIDGES, folds)
    for rows in scene.rows:
        if len(rows) < 2 * folds:
            continue
        x = features[rows]
        if len(x) < x.shape[1]:  # the same inner products in fewer columns
            x = np.linalg.qr(x.T)[1].T.astype(np.float32)
        w = fitted(x, scene.given[rows], scene.fold[rows], held, ridge, scene.classes)
        best = (-np.inf, p[rows])
        for j in range(len(LOCAL_RIDGES)):
            part = slice(j * folds, (j + 1) * folds)
            mine = as_probabilities(out_of_fold(w[:, part], x, scene.fold[rows], held[part]))
            score = float(np.log(mine[np.arange(len(rows)), scene.given[rows]] + 1e-12).sum())
            if score > best[0]:
                best = (score, mine)
        p[rows] = best[1]
    return p


def self_confidence(p: Array, given: Labels) -> Array:
    """cleanlab's label quality turned round: high for suspects."""
    return 1 - get_label_quality_scores(given, p, method="self_confidence")


def normalised_margin(p: Array, given: Labels) -> Array:
    return 1 - get_label_quality_scores(given, p, method="normalized_margin")


def adjusted_by_site(p: Array, scene: Scene) -> Array:
    """cleanlab at every site on the given p, its scores adjusted by the site's own class thresholds."""
    score = np.zeros(len(p))
    for rows in scene.rows:
        given = scene.given[rows]
        if len(np.unique(given)) < 2:
            score[rows] = self_confidence(p[rows], given)
            continue
        present = np.unique(given)
        narrowed = p[rows][:, present] + 1e-9
        narrowed /= narrowed.sum(1, keepdims=True)
        score[rows] = 1 - get_label_quality_scores(
            np.searchsorted(present, given), narrowed, method="self_confidence", adjust_pred_probs=True
        )
    return score


def in_sample(history: list[NDArray[np.float32]], features: NDArray[np.float32], given: Labels) -> tuple[Array, Array]:
    """Loss of the final model that saw every sample, and minus the margin averaged over the rounds: `[n]` each."""
    each = np.arange(len(given))
    margins = np.zeros(len(given))
    loss = margins
    for models in history:
        z = (features @ models[:, -1]).astype(np.float64)
        own = z[each, given].copy()
        loss = np.log(np.exp(z - z.max(1, keepdims=True)).sum(1)) + z.max(1) - own
        z[each, given] = -np.inf
        margins += own - z.max(1)
    return loss, -margins / len(history)
