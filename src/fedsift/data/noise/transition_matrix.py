"""Noise models by a transition matrix T[i][j] = P(given j | true i): symmetric, pair flip, random.

Fang, Ye: RHFL, CVPR 2022, sec. 4.1; Di et al.: FedDPCont, sec. 3.4, 5.1 and 5.2; FedCorr eq. 4.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fedsift.data.dataset import Labels
from fedsift.data.noise.base import Noise, NoiseInput, NoisyLabels, need_rate, noises
from fedsift.data.splits import shares_to_counts

Matrix = NDArray[np.float64]


def symmetric_matrix(n_classes: int, rate: float) -> Matrix:
    """1-μ on the diagonal, μ/(K-1) elsewhere; never the true class. A single class has nowhere to flip to."""
    if n_classes == 1:
        return np.ones((1, 1))
    matrix = np.full((n_classes, n_classes), rate / (n_classes - 1))
    np.fill_diagonal(matrix, 1.0 - rate)
    return matrix


def pair_matrix(n_classes: int, rate: float) -> Matrix:
    """Class i becomes i+1, the last the first, with probability μ."""
    return (1.0 - rate) * np.eye(n_classes) + rate * np.roll(np.eye(n_classes), 1, axis=1)


def random_matrix(rate: float, offsets: NDArray[Any], shares: NDArray[Any]) -> Matrix:
    """T_ii = 1-η+offsets_i, kept inside [0, 1]; T_ij = (1-T_ii)·shares_i over j != i in ascending order.

    offsets: `[K]`; shares: `[K, K-1]`, rows that sum to 1.
    """
    offsets, shares = np.asarray(offsets, np.float64), np.asarray(shares, np.float64)
    count = len(offsets)
    if count == 1:
        return np.ones((1, 1))
    kept = np.clip(1.0 - rate + offsets, 0.0, 1.0)
    matrix = np.zeros((count, count))
    matrix[~np.eye(count, dtype=np.bool_)] = ((1.0 - kept)[:, None] * shares).ravel()
    np.fill_diagonal(matrix, kept)
    return matrix


def draw_random_matrix(n_classes: int, rate: float, rng: np.random.Generator, spread: float = 0.05) -> Matrix:
    """A random matrix with offsets ~ U(-spread, spread) and shares ~ Dir(1) (FedDPCont sec. 5.2,
    corrected)."""
    if n_classes == 1:
        return np.ones((1, 1))
    offsets = rng.uniform(-spread, spread, n_classes)
    return random_matrix(rate, offsets, rng.dirichlet(np.ones(n_classes - 1), n_classes))


def flip(labels: Labels, matrix: Matrix, rng: np.random.Generator) -> Labels:
    """Every label drawn independently from its class's row."""
    edges = np.cumsum(matrix, axis=1)
    edges[:, -1] = np.inf  # the last class takes what rounding leaves
    draws = rng.random(len(labels))
    given = np.empty_like(labels)
    for c in np.unique(labels):
        members = labels == c
        given[members] = np.searchsorted(edges[c], draws[members], side="right")
    return given


def flip_exactly(labels: Labels, matrix: Matrix, rng: np.random.Generator) -> Labels:
    """In each class, samples in random order get new labels in the proportions of the class's row."""
    given = labels.copy()
    for c in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == c))
        given[members] = np.repeat(np.arange(len(matrix)), shares_to_counts(matrix[c], len(members)))
    return given


@dataclass(frozen=True)
class MatrixNoise(Noise):
    """Labels drawn sample by sample from the rows of one matrix for the whole federation."""

    rate: float = 0.2
    """Share of labels that flip (μ, η)."""
    scope: Literal["pool", "site"] = "pool"
    """"pool": all labels at once, before the split (RHFL, FedDPCont); "site": each site on its own."""
    samples: Literal["bernoulli", "exact"] = "bernoulli"
    """"bernoulli": every sample draws for itself; "exact": each class flips by its row's proportions."""

    def __post_init__(self) -> None:
        need_rate(noises.name_of(self), "rate", self.rate)

    @property
    def before_partition(self) -> bool:
        return self.scope == "pool"

    def matrix(self, n_classes: int, rng: np.random.Generator) -> Matrix:
        """T `[K, K]`; only a random one draws."""
        raise TypeError(f"{type(self).__name__} does not say its matrix")

    def corrupt(self, scene: NoiseInput) -> NoisyLabels:
        matrix = self.matrix(scene.n_classes, scene.generator("all sites", "matrix"))
        draw = flip if self.samples == "bernoulli" else flip_exactly
        given = {site: draw(scene.clean[site], matrix, scene.generator(site, "labels")) for site in scene.sites}
        return NoisyLabels(
            given=given,
            level=dict.fromkeys(scene.sites, self.rate),
            noisy=tuple(scene.sites) if self.rate > 0 else (),
        )


@noises.register("symmetric")
@dataclass(frozen=True)
class Symmetric(MatrixNoise):
    """A label flips with probability μ to any other class alike, never to the true one."""

    summary: ClassVar[str] = "flips with probability rate to any other class (RHFL, FedDPCont)"

    def matrix(self, n_classes: int, rng: np.random.Generator) -> Matrix:
        return symmetric_matrix(n_classes, self.rate)


@noises.register("pair")
@dataclass(frozen=True)
class PairFlip(MatrixNoise):
    """A label flips with probability μ to the next class, the last to the first."""

    summary: ClassVar[str] = "flips with probability rate to the next class (RHFL)"

    def matrix(self, n_classes: int, rng: np.random.Generator) -> Matrix:
        return pair_matrix(n_classes, self.rate)


@noises.register("random")
@dataclass(frozen=True)
class RandomMatrix(MatrixNoise):
    """One random matrix for all: T_ii = 1-η±spread, the rest shared out by Dir(1).

    The paper prints η ± 0.05 for the diagonal, which would be the noise rate; this is the evident reading.
    """

    summary: ClassVar[str] = "a random transition matrix, diagonal 1 - rate +- spread, rest Dirichlet (FedDPCont)"

    spread: float = 0.05
    """Half width of the diagonal's uniform draw."""

    def matrix(self, n_classes: int, rng: np.random.Generator) -> Matrix:
        return draw_random_matrix(n_classes, self.rate, rng, self.spread)
