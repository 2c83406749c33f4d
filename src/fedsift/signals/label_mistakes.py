"""How people mistake labels: who is taken for whom, and more often where the picture is hard to tell.

At a site, T_s[c, j] = P(given j | true c, s) of a picture that is as hard as not, and of a picture x

    T_s(x)[c, j]  ~  T_s[c, j] h_c(x)   for j other than c,     T_s(x)[c, c]  ~  T_s[c, c],
    h_c(x)  =  ((1 - q(c | x)) / q(c | x))^d,

scaled to rows of sum 1: the odds of a mistake rise with the model's own odds against the class. The given labels cannot
tell d from 0, since a picture that the model finds ambiguous explains a mistake there as well as the mistake itself;
what d is was measured where the truth is known (`FOLLOWS`). With d = 0 rates come out too low.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
Labels = NDArray[np.int64]

FOLLOWS = 0.12
"""d. Measured on CIFAR-10N's people, seed 100: 0.07 to 0.12 at sites of careless labels, 0.18 at sites of careful ones;
on HAM10000's simulated annotators 0.09 to 0.20; 0 where mistakes are drawn at random."""
FURTHEST = 4.0
"""Largest log-odds against a class that count: beyond, a model's odds say more of its form than of the picture."""
_MOST = 0.98
"""Share of a class's labels at a site that can be wrong."""
ONE_CODE = 0.75
"""Share of a class's wrong labels that one other class has, where a code stands for another one."""
_TINY = 1e-12


def error_shape(rate: float, confusion: Array, relative_rates: Array) -> Array:
    """T `[K, K]` of the shape that all sites share: 1 - e r_c on the diagonal, e r_c B[c, j] beside it."""
    by_class = np.clip(rate * relative_rates, 1e-4, 1 - 1e-4)[:, None]
    result: Array = (1 - by_class) * np.eye(len(confusion)) + by_class * confusion
    return result


def look_alikes(probabilities: ArrayLike, shares: ArrayLike) -> Array:
    """Who looks like whom at a site, `[K, K]`: zero on the diagonal, rows of sum 1.

    C[c, j] ~ sum_x l(c | x) l(j | x), l ~ p / g: what one picture is both of likely. Probabilities `[n, K]`, g `[K]`. A
    picture's worth of equal shares is added to every row. It never leaves the site.
    """
    p, g = np.asarray(probabilities, np.float64), np.maximum(np.asarray(shares, np.float64), _TINY)
    classes = len(g)
    likely = np.maximum(p, _TINY) / g
    likely /= likely.sum(1, keepdims=True)
    alike = likely.T @ likely + 1 / max(classes - 1, 1)
    return _of_mistakes(alike)


def mistaken_for(confusion: Array, alike: Array) -> Array:
    """B at a site `[K, K]`: the federation's B times who looks like whom, rows of sum 1.

    Below the floor the sites' tables tell little of who is taken for whom, and B is nearly even there; people mistake
    what looks alike, which the site's own pictures tell without a word to anybody.
    """
    return _of_mistakes(confusion * alike)


def _of_mistakes(table: Array) -> Array:
    apart = np.where(np.eye(len(table), dtype=bool), 0.0, table)
    result: Array = apart / np.maximum(apart.sum(1, keepdims=True), _TINY)
    return result


def dominant(errors: Array) -> Array:
    """T `[K, K]` in which no class is given as another one more often than as itself.

    Cells above their row's diagonal are cut to it (to 1 / K if it is less), and what they lose goes to the diagonal.
    Without this a weak model lets a class stand for another one altogether.
    """
    classes = len(errors)
    own = np.maximum(np.diag(errors), 1 / classes)
    apart = np.where(np.eye(classes, dtype=bool), 0.0, np.minimum(errors, own[:, None]))
    result = apart + np.diag(np.maximum(1 - apart.sum(1), own))
    return np.asarray(result / result.sum(1, keepdims=True))


def hardness(q: Array, errors: Array, follows: float = FOLLOWS) -> tuple[Array, Array]:
    """T_s(x)[c, c] and T_s(x)[c, j] / T_s[c, j] for j other than c, `[n, K]` each, from q(c | x) `[n, K]` and T_s."""
    right = np.diag(errors)
    known = np.clip(q, _TINY, 1 - 1e-9)
    against = np.clip(np.log1p(-known) - np.log(known), -FURTHEST, FURTHEST)
    harder = np.exp(follows * against)
    scale = right + (1 - right) * harder
    return right / scale, harder / scale


def as_if_equally_hard(counts: Array, posterior: Array, factor: Array) -> Array:
    """Expected counts `[K, K]`, true by given, of a site whose pictures are all as hard as not.

    posterior `[n, K]`; factor `[n, K]`: `hardness`'s second. A class's wrong labels are divided by its mean factor.
    """
    size = posterior.sum(0)
    mean = np.where(size > 1e-6, (posterior * factor).sum(0) / np.maximum(size, 1e-6), 1.0)
    apart = np.where(np.eye(len(counts), dtype=bool), 0.0, counts)
    wrong, total = apart.sum(1), counts.sum(1)
    even = np.minimum(wrong / np.maximum(mean, 1e-3), _MOST * total)
    result: Array = apart * (even / np.maximum(wrong, _TINY))[:, None] + np.diag(total - even)
    return result


def codes_moved(errors: ArrayLike, shares: ArrayLike) -> bool:
    """Whether a site's labels follow another code: of the classes (weighed by pi_s) whose labels are mostly wrong, the
    wrong ones lie almost all with one other class each. Careless labels, however many, lie with several."""
    table, weights = np.asarray(errors, np.float64), np.asarray(shares, np.float64)
    wrong = table * (1 - np.eye(len(table)))
    total = wrong.sum(1)
    mostly = weights * (total > 0.5)
    if mostly.sum() <= 0:
        return False
    alone = wrong.max(1) / np.maximum(total, _TINY)
    return bool((mostly * alone).sum() / mostly.sum() > ONE_CODE)
