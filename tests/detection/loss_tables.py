"""Simulated tables of mean losses by site and class, and the paper's way to part the sites."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedsift.detection.indicators import normalise
from fedsift.detection.mixtures import split_by_vote

CLASSES = 10
Table = NDArray[np.float64]


def federation(
    rng: np.random.Generator, sites: int, noisy: int, low: float = 0.3, high: float = 0.5, effect: float = 0.1
) -> tuple[Table, NDArray[np.bool_]]:
    """Mean losses by class of sites that lack a fifth of the classes and hold the others unevenly.

    A right label costs an exponential loss (each class its own mean, each site `effect` harder or easier), a wrong
    one about 2 more; noisy sites have a share between `low` and `high` of wrong labels.
    """
    bad = np.zeros(sites, dtype=bool)
    bad[rng.choice(sites, noisy, replace=False)] = True
    hardness = rng.uniform(0.1, 1.0, CLASSES)
    table = np.full((sites, CLASSES), np.nan)
    for site in range(sites):
        held = rng.permutation(CLASSES)[: rng.binomial(CLASSES - 1, 0.8) + 1]
        counts = rng.multinomial(600, rng.dirichlet(np.ones(len(held))))
        level = rng.uniform(low, high) if bad[site] else 0.0
        scale = hardness[held] * np.exp(rng.normal(0, effect))
        wrong = rng.binomial(counts, level)
        with np.errstate(invalid="ignore", divide="ignore"):
            means = (rng.gamma(np.maximum(counts, 1), scale) + wrong * rng.uniform(1.8, 2.2)) / counts
        table[site, held] = np.where(counts > 0, means, np.nan)
    return table, bad


def papers_split(table: Table) -> NDArray[np.int64]:
    """FedNoRo's: fill by the column minimum, scale to 0..1, nine mixtures and a vote."""
    filled = normalise(table)
    return split_by_vote(filled.values[:, filled.informative]).noisy
