"""Noise by a transition matrix T[i][j] = P(given j | true i), the same for all sites or before any split.

Fang, Ye: RHFL, CVPR 2022, sec. 4.1; Wang et al.: FedDPCont, sec. 3.4 and 5.2; FedCorr eq. 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedsift.contract.errors import ConfigError
from fedsift.data.dataset import Labels
from fedsift.data.noise.base import POOL, Noise, Scene, Spoiled, need_one_of, need_rate, noises

Matrix = NDArray[np.float64]


def symmetric_matrix(n_classes: int, rate: float) -> Matrix:
    """1-μ on the diagonal, μ/(K-1) elsewhere; never the true class. One class has nowhere to flip to."""
    if n_classes == 1:
        return np.ones((1, 1))
    matrix = np.full((n_classes, n_classes), rate / (n_classes - 1))
    np.fill_diagonal(matrix, 1.0 - rate)
    return matrix


def pair_matrix(n_classes: int, rate: float) -> Matrix:
    """Class i becomes i+1 (the last the first) with probability μ."""
    return (1.0 - rate) * np.eye(n_classes) + rate * np.roll(np.eye(n_classes), 1, axis=1)


def flip(labels: Labels, matrix: Matrix, rng: np.random.Generator) -> Labels:
    """Every label drawn independently from its class's row."""
    if len(labels) == 0:
        return labels.copy()
    edges = np.cumsum(matrix, axis=1)
    edges[:, -1] = np.inf  # the last class takes what rounding leaves
    drawn: Labels = (rng.random(len(labels))[:, None] >= edges[labels]).sum(axis=1).astype(np.int64)
    return drawn


def per_class_rate(matrix: Matrix) -> Matrix:
    """1 - T_ii `[K]`."""
    return 1.0 - np.diagonal(matrix)


def effective_rate(matrix: Matrix, counts: Sequence[float] | NDArray[Any]) -> float:
    """Expected share of wrong labels: the mean of 1 - T_ii weighted by class counts."""
    weights = np.asarray(counts, np.float64)
    return float((weights * per_class_rate(matrix)).sum() / weights.sum())


@dataclass(frozen=True)
class MatrixNoise(Noise):
    """Labels drawn sample by sample from the rows of one matrix for the whole federation."""

    rate: float = 0.2
    """Share of labels that flip (μ, η)."""
    scope: str = "pool"
    """"pool": all labels at once, before the split (RHFL, FedDPCont); "site": each site on its own."""
    samples: str = "bernoulli"
    """"bernoulli": every sample draws for itself; "exact": each class flips by its row's proportions."""

    def __post_init__(self) -> None:
        name = noises.name_of(self)
        need_rate(name, "rate", self.rate)
        need_one_of(f"noise '{name}'", "scope", self.scope, ("pool", "site"))
        need_one_of(f"noise '{name}'", "samples", self.samples, ("bernoulli", "exact"))

    @property
    def before_partition(self) -> bool:
        return self.scope == "pool"

    def matrix(self, n_classes: int, rng: np.random.Generator) -> Matrix:
        raise TypeError(f"{type(self).__name__} does not say its matrix")

    def spoil(self, scene: Scene) -> Spoiled:
        if scene.multilabel:
            raise ConfigError(
                f"noise '{noises.name_of(self)}' needs one label a sample, not multi-label data"
            )
        matrix = self.matrix(scene.n_classes, scene.generator("all sites", "matrix"))
        draw = flip if self.samples == "bernoulli" else flip_exactly
        given = {
            site: draw(scene.clean[site], matrix, scene.generator(site, "labels")) for site in scene.sites
        }
        return Spoiled(
            given=given,
            level=dict.fromkeys(scene.sites, self.rate),
            noisy=tuple(scene.sites) if self.rate > 0 else (),
        )


def flip_exactly(labels: Labels, matrix: Matrix, rng: np.random.Generator) -> Labels:
    """In each class, samples in random order get new labels in the proportions of the class's row."""
    given = labels.copy()
    for c in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == c))
        given[members] = np.repeat(np.arange(len(matrix)), shares_to_counts(matrix[c], len(members)))
    return given


def shares_to_counts(shares: NDArray[np.float64], total: int) -> NDArray[np.int64]:
    """Whole numbers that sum to `total` and are nearest to total·shares (largest remainders first)."""
    exact = np.asarray(shares, np.float64) / np.sum(shares) * total
    counts = np.floor(exact + 1e-9).astype(np.int64)
    rest = total - int(counts.sum())
    counts[np.argsort(counts - exact, kind="stable")[:rest]] += 1
    return counts


@noises.register("symmetric")
@dataclass(frozen=True)
class Symmetric(MatrixNoise):
    """A label flips with probability μ to any other class alike, never to the true one (RHFL, FedDPCont)."""

    summary: ClassVar[str] = "flips with probability rate to any other class (RHFL, FedDPCont)"

    def matrix(self, n_classes: int, rng: np.random.Generator) -> Matrix:
        return symmetric_matrix(n_classes, self.rate)


@noises.register("pair")
@dataclass(frozen=True)
class Pair(MatrixNoise):
    """A label flips with probability μ to the next class, the last to the first (RHFL)."""

    summary: ClassVar[str] = "flips with probability rate to the next class (RHFL)"

    def matrix(self, n_classes: int, rng: np.random.Generator) -> Matrix:
        return pair_matrix(n_classes, self.rate)


__all__ = [
    "POOL",
    "Matrix",
    "MatrixNoise",
    "Pair",
    "Symmetric",
    "effective_rate",
    "flip",
    "pair_matrix",
    "symmetric_matrix",
]
