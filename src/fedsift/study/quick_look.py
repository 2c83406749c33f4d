"""The doctor's quick look at labels before any training: is there a site whose labels can be relied on?"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedsift.core.randomness import numpy_generator
from fedsift.data.build import build as build_data
from fedsift.data.dataset import Dataset, Labels, Rows
from fedsift.data.doctor import DataFinding
from fedsift.detection.group_test import FEWEST_CLASSES, MANY, best_share, blind_share, knows_something
from fedsift.study.study import Study

# A first opinion on labels in seconds, before any training: ridge regression on small copies of the
# pictures
# ------------------------------------------------------------------------------

Array = NDArray[np.float64]

SIDE = 12
"""Pictures are averaged down to this many cells a side."""
WIDE = 512
"""Random rectified features beside the cells, so that the opinion is not a linear one."""
FOLDS = 5
RIDGE = 0.3
"""Of the number of samples; features are standardised."""


def small_copies(pictures: NDArray[np.generic], side: int = SIDE) -> Array:
    """Rows of numbers: `[n, channels, height, width]` averaged over a grid of cells, `[n, features]` as they are."""
    if pictures.ndim < 4:
        return np.asarray(pictures, dtype=np.float64).reshape(len(pictures), -1)
    small = np.asarray(pictures, dtype=np.float64)
    for axis in (2, 3):
        length = small.shape[axis]
        starts = np.unique(np.arange(min(side, length)) * length // min(side, length))
        counts = np.diff([*starts, length]).reshape([-1 if i == axis else 1 for i in range(4)])
        small = np.add.reduceat(small, starts, axis=axis) / counts
    return small.reshape(len(small), -1)


def quick_scores(pictures: NDArray[np.generic], labels: ArrayLike, classes: int, rng: np.random.Generator) -> Array:
    """A score of every class for every picture by a model that never saw its label, `[n, ...], [n] -> [n, K]`."""
    given = np.asarray(labels, dtype=np.int64)
    cells = _standardised(small_copies(pictures))
    mixed = cells @ rng.standard_normal((cells.shape[1], WIDE)) / np.sqrt(cells.shape[1])
    features = np.concatenate([cells, _standardised(np.maximum(mixed + rng.normal(0, 0.5, WIDE), 0.0))], axis=1)
    wanted = np.eye(classes)[given]
    wanted -= wanted.mean(axis=0)
    fold = rng.permutation(len(given)) % FOLDS
    gram, moments = features.T @ features, features.T @ wanted
    gram[np.diag_indices_from(gram)] += RIDGE * len(given)
    scores = np.zeros((len(given), classes))
    for k in range(FOLDS):
        out = fold == k
        own = features[out]
        scores[out] = own @ np.linalg.solve(gram - own.T @ own, moments - own.T @ wanted[out])
    return scores


def _standardised(rows: Array) -> Array:
    sd = rows.std(axis=0)
    return np.asarray((rows - rows.mean(axis=0)) / np.where(sd > 1e-9, sd, 1.0))


MOST = 10_000
"""Samples that are looked at, of all sites together."""
FEWEST = 40
"""Samples of a site that is looked at."""
FEWEST_SITES = 4
"""Sites among which noisy ones are sought at all."""


def labels_by_site(dataset: Dataset, study: Study | None = None) -> dict[str, tuple[Rows, Labels]]:
    """Training rows and given labels of each site: as a study partitions and corrupts them, or as the data name
    sites."""
    if study is not None:
        federated = build_data(dataset, study.partition, study.noise, seed=study.seed)
        return {site: (federated.rows[site], federated.given[site]) for site in federated.sites}
    if dataset.sites is None:
        return {}
    labels = dataset.labels if dataset.given is None else dataset.given
    names = dataset.sites[dataset.train]
    rows = {str(site): dataset.train[names == site] for site in np.unique(names)}
    return {site: (own, labels[own]) for site, own in rows.items()}


def look_for_reference(dataset: Dataset, study: Study | None = None) -> list[DataFinding]:
    """A finding where even the best sites have many labels that look drawn at random; a note where pictures this small
    do not show; nothing where there is a reference."""
    if dataset.multilabel or dataset.n_classes < FEWEST_CLASSES:
        return []
    sites = {site: own for site, own in labels_by_site(dataset, study).items() if len(own[0]) >= FEWEST}
    if len(sites) < FEWEST_SITES:
        return []
    shares, pooled = _shares(dataset, sites)
    least = best_share(list(shares.values()))
    if least <= MANY:
        return []
    samples = sum(min(len(rows), _each(sites)) for rows, _ in sites.values())
    if not knows_something(pooled, samples, dataset.n_classes):
        return [
            DataFinding(
                "labels-not-examined",
                "note",
                "a quick look at small copies of the pictures says nothing of the labels: they are subtle, or wrong "
                "at every site",
                "fedsift audit looks with a trained network",
            )
        ]
    return [
        DataFinding(
            "no-clean-reference",
            "warning",
            f"no clean reference: even at the best sites about {least:.0%} of the labels look drawn at random, by a "
            "quick look at small copies of the pictures",
            "methods that separate noisy sites from clean ones (fednoro, fedcorr) have nothing to compare with here; "
            "fedsift audit looks at single labels, co-teaching, dividemix and fedlsr need no clean site",
            tuple(f"{site}: about {share:.0%}" for site, share in sorted(shares.items(), key=lambda item: item[1])),
        )
    ]


def _each(sites: Mapping[str, tuple[Rows, Labels]]) -> int:
    return max(FEWEST, MOST // len(sites))


def _shares(dataset: Dataset, sites: Mapping[str, tuple[Rows, Labels]]) -> tuple[dict[str, float], float]:
    """Blind share of each site, and of all their samples together, all judged by one quick model."""
    rng = numpy_generator(0, "quick look")
    picked = {site: np.sort(rng.permutation(len(rows))[: _each(sites)]) for site, (rows, _) in sites.items()}
    rows = np.concatenate([sites[site][0][some] for site, some in picked.items()])
    given = np.concatenate([sites[site][1][some] for site, some in picked.items()])
    scores = quick_scores(dataset.images[rows], given, dataset.n_classes, rng)
    shares, start = {}, 0
    for site, some in picked.items():
        part = slice(start, start + len(some))
        shares[site] = blind_share(scores[part], given[part])
        start += len(some)
    return shares, blind_share(scores, given)
