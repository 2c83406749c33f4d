"""The benchmark's federations: pictures at sites, with wrong labels whose truth is known."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from benchmarks.audit import pictures
from benchmarks.audit.federation import Scene
from numpy.typing import NDArray

from fedsift.label_audit.linear_crossfit import fold_numbers

Labels = NDArray[np.int64]
FOLDS = 5

cifar = cache(pictures.cifar10n)
ham = cache(pictures.ham10000)
numerals = cache(pictures.digits)


def dealt(true: Labels, sites: int, skew: float | None, rng: np.random.Generator) -> Labels:
    """A site for every sample: equal parts, or each class by its own Dirichlet(skew) over the sites."""
    if skew is None:
        return rng.permutation(np.arange(len(true)) % sites)
    site = np.empty(len(true), np.int64)
    for c in range(int(true.max()) + 1):
        rows = np.flatnonzero(true == c)
        site[rows] = rng.choice(sites, len(rows), p=rng.dirichlet(np.full(sites, skew)))
    return site


def folded(site: Labels, group: Labels | None, rng: np.random.Generator) -> Labels:
    fold = np.zeros(len(site), np.int64)
    for s in range(int(site.max()) + 1):
        rows = np.flatnonzero(site == s)
        fold[rows] = fold_numbers(None if group is None else group[rows], len(rows), FOLDS, rng)
    return fold


def people(kind: str, sites: int, skew: float | None, seed: int) -> tuple[Scene, Labels]:
    """CIFAR-10N: one of people's columns, or `mixed`: the worse labels at half of the sites, aggregated elsewhere."""
    held, rng = cifar(), np.random.default_rng([seed, 10])
    assert held.given is not None
    site = dealt(held.true, sites, skew, rng)
    if kind == "mixed":
        noisy = rng.permutation(sites) < sites // 2
        given = np.where(noisy[site], held.given["worse_label"], held.given["aggre_label"])
    elif kind == "clean":
        given = held.true.copy()
    else:
        given = held.given[kind]
    return Scene(held.features, given, site, folded(site, None, rng), 10), held.true


def skin(seed: int) -> tuple[Scene, Labels]:
    """HAM10000 at its four places; at two of them an annotator's labels, wrong where the picture is hard to tell.

    The annotator is a softmax regression on a tenth of the features that saw 300 pictures; each noisy place draws
    30-50 % wrong labels by its doubt (FedNoRo, eq. 1).
    """
    held, rng = ham(), np.random.default_rng([seed, 20])
    assert held.site is not None
    given = held.true.copy()
    for s in rng.permutation(4)[:2]:
        rows = np.flatnonzero(held.site == s)
        given[rows] = instance_noise(held.features[rows], held.true[rows], rng.uniform(0.3, 0.5), held.classes, rng)
    return Scene(held.features, given, held.site, folded(held.site, held.group, rng), held.classes), held.true


def instance_noise(
    features: NDArray[np.float32], true: Labels, rate: float, classes: int, rng: np.random.Generator
) -> Labels:
    from fedsift.data.noise.instance import corrupt_by

    soft = annotators_doubt(features, true, classes, rng)
    return corrupt_by(soft, true, round(rate * len(true)), rng)


def annotators_doubt(
    features: NDArray[np.float32], true: Labels, classes: int, rng: np.random.Generator
) -> NDArray[np.float64]:
    """What an annotator takes each picture for `[n, K]`: softmax regression on a tenth of the features."""
    from sklearn.linear_model import LogisticRegression

    columns = rng.permutation(features.shape[1])[: max(features.shape[1] // 10, 8)]
    seen = rng.permutation(len(true))[:300]
    present = np.unique(true[seen])
    annotator = LogisticRegression(C=0.01, max_iter=200).fit(features[seen][:, columns], true[seen])
    soft = np.full((len(true), classes), 1e-3)
    soft[:, present] += annotator.predict_proba(features[:, columns])
    soft /= soft.sum(1, keepdims=True)
    return soft


def flipped(true: Labels, site: Labels, rates: NDArray[np.float64], classes: int, rng: np.random.Generator) -> Labels:
    """Every label wrong with its site's rate, as any other class alike."""
    wrong = rng.random(len(true)) < rates[site]
    return np.where(wrong, (true + rng.integers(1, classes, len(true))) % classes, true)


def numbers(skew: float | None, seed: int) -> tuple[Scene, Labels]:
    """Digits at 10 sites, five of them with 20-50 % symmetric noise."""
    held, rng = numerals(), np.random.default_rng([seed, 30])
    site = dealt(held.true, 10, skew, rng)
    rates = np.where(rng.permutation(10) < 5, rng.uniform(0.2, 0.5, 10), 0.0)
    given = flipped(held.true, site, rates, 10, rng)
    return Scene(held.features, given, site, folded(site, None, rng), 10), held.true


def made_xrays(seed: int) -> tuple[Scene, Labels]:
    """Two-class X-rays of our own making: two lungs, an opacity in one of them; two of five sites flip 30 %."""
    rng = np.random.default_rng([seed, 40])
    count, side = 3000, 24
    true = (rng.random(count) < 0.4).astype(np.int64)
    rows, columns = np.mgrid[0:side, 0:side] / (side - 1)
    left = np.exp(-(((rows - 0.5) / 0.3) ** 2) - ((columns - 0.28) / 0.14) ** 2)
    right = np.exp(-(((rows - 0.5) / 0.3) ** 2) - ((columns - 0.72) / 0.14) ** 2)
    pictures_made = 0.7 - 0.5 * (left + right) + rng.normal(0, 0.12, (count, side, side))
    y, x = rng.uniform(0.3, 0.7, count), np.where(rng.random(count) < 0.5, 0.28, 0.72)
    strength = rng.uniform(0.15, 0.5, count) * true
    blob = np.exp(-((rows - y[:, None, None]) ** 2 + (columns - x[:, None, None]) ** 2) / 0.01)
    pictures_made += strength[:, None, None] * blob
    smooth = pictures_made.reshape(count, side // 2, 2, side // 2, 2).mean((2, 4)).reshape(count, -1)
    weights = np.random.default_rng(1).normal(size=(smooth.shape[1], 256)) / 6
    centred = (smooth - smooth.mean(0)) / smooth.std(0)
    features = np.hstack([centred, np.maximum(centred @ weights, 0)]).astype(np.float32)
    site = dealt(true, 5, None, rng)
    given = flipped(true, site, np.where(rng.permutation(5) < 2, 0.3, 0.0), 2, rng)
    return Scene(features, given, site, folded(site, None, rng), 2), true


SCENARIOS: dict[str, Callable[[int], tuple[Scene, Any]]] = {
    "cifar10n-mixed-skewed-20": lambda seed: people("mixed", 20, 1.0, seed),
    "cifar10n-mixed-equal-20": lambda seed: people("mixed", 20, None, seed),
    "cifar10n-worse-equal-20": lambda seed: people("worse_label", 20, None, seed),
    "cifar10n-random1-equal-20": lambda seed: people("random_label1", 20, None, seed),
    "cifar10n-aggre-equal-20": lambda seed: people("aggre_label", 20, None, seed),
    "ham10000-instance-natural-4": skin,
    "digits-skewed-10": lambda seed: numbers(1.0, seed),
    "digits-equal-10": lambda seed: numbers(None, seed),
    "made-xrays-equal-5": made_xrays,
    "cifar10n-mixed-skewed-5": lambda seed: people("mixed", 5, 1.0, seed),
    "cifar10n-mixed-skewed-100": lambda seed: people("mixed", 100, 1.0, seed),
    "cifar10n-worse-skewed-20": lambda seed: people("worse_label", 20, 1.0, seed),
    "cifar10n-random1-skewed-20": lambda seed: people("random_label1", 20, 1.0, seed),
    "cifar10n-aggre-skewed-20": lambda seed: people("aggre_label", 20, 1.0, seed),
    "cifar10-clean-skewed-20": lambda seed: people("clean", 20, 1.0, seed),
}
