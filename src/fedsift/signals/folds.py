"""Folds of a site's samples for cross-fitting: whole groups, every class in every fold as evenly as it can be."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

Numbers = NDArray[np.int64]


def deal_folds(
    strata: Numbers, folds: int, random: np.random.Generator, units: Numbers | None = None
) -> Numbers:
    """A fold for each sample, int64 `[n]` in 0..folds-1.

    strata `[n]`: what every fold should hold alike, e.g. the given class. units `[n]`: samples that must stay
    together (a patient, a lesion, copies of one picture); each sample for itself when None. Larger units are dealt
    first, each to the fold that holds least of its stratum, then least of all.
    """
    n = len(strata)
    if folds < 1:
        raise ValueError(f"{folds} folds: at least one is needed")
    _, unit_of = np.unique(np.arange(n) if units is None else units, return_inverse=True)
    sizes = np.bincount(unit_of)
    first = np.full(len(sizes), n, np.int64)
    np.minimum.at(first, unit_of, np.arange(n))
    stratum_of = np.unique(strata, return_inverse=True)[1][first] if n else np.zeros(0, np.int64)
    shuffled = random.permutation(len(sizes))
    order = shuffled[np.lexsort((-sizes[shuffled], stratum_of[shuffled]))]
    held = np.zeros((int(stratum_of.max(initial=-1)) + 1, folds), np.int64)
    total = np.zeros(folds, np.int64)
    fold_of_unit = np.zeros(len(sizes), np.int64)
    for unit in order:
        own = held[stratum_of[unit]]
        fold = int(np.lexsort((total, own))[0])
        fold_of_unit[unit] = fold
        own[fold] += sizes[unit]
        total[fold] += sizes[unit]
    return fold_of_unit[unit_of]


def copies(samples: NDArray[np.generic]) -> Numbers:
    """Equal numbers for samples `[n, ...]` that are the same to the byte, int64 `[n]`."""
    digests = [
        hashlib.blake2b(np.ascontiguousarray(row).tobytes(), digest_size=16).digest() for row in samples
    ]
    return np.unique(np.array(digests, dtype="S16"), return_inverse=True)[1].astype(np.int64)


def joined(first: Numbers, second: Numbers) -> Numbers:
    """Units that keep together what either of two groupings keeps together, int64 `[n]`."""
    n = len(first)
    a = np.unique(first, return_inverse=True)[1]
    b = np.unique(second, return_inverse=True)[1]
    width = int(a.max(initial=-1)) + 1
    size = width + int(b.max(initial=-1)) + 1
    links = coo_array((np.ones(n), (a, width + b)), shape=(size, size))
    parts: Numbers = connected_components(links, directed=False)[1].astype(np.int64)
    return parts[a]


def disagreeing_copies(units: Numbers, labels: Numbers) -> NDArray[np.bool_]:
    """Samples `[n]` whose exact copy carries another label (any other row, for labels `[n, K]`)."""
    if len(units) == 0:
        return np.zeros(0, np.bool_)
    kinds = np.unique(labels, axis=0, return_inverse=True)[1].reshape(len(units))
    pairs = np.unique(np.stack([units, kinds], 1), axis=0)
    distinct = np.bincount(pairs[:, 0], minlength=int(units.max()) + 1)
    return np.asarray(distinct[units] > 1)
