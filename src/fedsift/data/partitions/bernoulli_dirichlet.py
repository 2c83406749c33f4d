"""Partition `bernoulli-dirichlet` (FedCorr): a site holds a class at random, in a Dirichlet share.

Xu, Chen, Quek, Chong: FedCorr, CVPR 2022, sec. 3.1; also FedNoRo, IJCAI 2023, sec. 5.2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedsift.core.errors import ConfigError
from fedsift.data.partitions.base import (
    Partition,
    Placement,
    Pool,
    gather,
    need_class_numbers,
    need_samples,
    need_sites,
    partitions,
)

TRIES = 20
"""Redraws before a guard steps in: enough for every setting in the papers, and an end in every other."""


@partitions.register("bernoulli-dirichlet")
@dataclass(frozen=True)
class BernoulliDirichlet(Partition):
    """Φ ~ Bernoulli(p) says which site holds which class; shares of a class over its holders ~ Dir(α).

    Every sample goes independently to a holder of its class, so sizes are random.
    """

    summary: ClassVar[str] = "Bernoulli(p) holders, Dirichlet(alpha) shares (FedCorr, FedNoRo)"

    sites: int
    """How many sites (N, K)."""
    p: float = 0.7
    """Probability that a site holds a class; 1: every site may hold every class."""
    alpha: float = 10.0
    """Concentration of the shares; large: nearly equal, small: one holder takes nearly all."""
    allow_empty: bool = False
    """Let sites without samples pass; otherwise the draw is repeated, and in the end a sample is moved."""

    def __post_init__(self) -> None:
        need_sites(self.sites)
        if not 0.0 < self.p <= 1.0:
            raise ConfigError(f"bernoulli-dirichlet: p is a probability in (0, 1], not {self.p}")
        if not self.alpha > 0.0:
            raise ConfigError(f"bernoulli-dirichlet: alpha must be positive, not {self.alpha}")

    def assign(self, pool: Pool, rng: np.random.Generator) -> Placement:
        need_class_numbers(pool, "bernoulli-dirichlet")
        if not self.allow_empty:
            need_samples(pool, self.sites)
        holds, forced = draw_holders(self.sites, pool.n_classes, self.p, rng)
        notes = [
            f"no site had drawn class '{pool.classes[c]}': site {k} holds it now"
            for c, k in forced
            if (pool.labels == c).any()
        ]
        owner = assign_by_shares(pool.labels, holds, self.alpha, rng)
        for _ in range(TRIES):
            if self.allow_empty or len(np.unique(owner)) == self.sites:
                break
            owner = assign_by_shares(pool.labels, holds, self.alpha, rng)
        else:
            moved = fill_empty(owner, pool.labels, holds, rng)
            short = sorted({pool.classes[pool.labels[row]] for row in moved})
            notes.append(f"{len(moved)} sites drew no sample and got one each, of class {', '.join(short)}")
        return Placement(gather(owner, self.sites), notes=tuple(notes))


def draw_holders(
    sites: int, n_classes: int, p: float, rng: np.random.Generator
) -> tuple[NDArray[np.bool_], list[tuple[int, int]]]:
    """Φ `[sites, n_classes]` with no empty row and no empty column, and the (class, site) pairs it forced.

    Empty rows are redrawn; one that stays empty gets a single random class, as for p -> 0.
    """
    holds = rng.random((sites, n_classes)) < p
    for _ in range(TRIES):
        empty = np.flatnonzero(~holds.any(axis=1))
        if len(empty) == 0:
            break
        holds[empty] = rng.random((len(empty), n_classes)) < p
    empty = np.flatnonzero(~holds.any(axis=1))
    holds[empty, rng.integers(n_classes, size=len(empty))] = True
    forced = [(int(c), int(rng.integers(sites))) for c in np.flatnonzero(~holds.any(axis=0))]
    for c, k in forced:
        holds[k, c] = True
    return holds, forced


def assign_by_shares(
    labels: NDArray[np.int64], holds: NDArray[np.bool_], alpha: float, rng: np.random.Generator
) -> NDArray[np.int64]:
    """The owner of every sample `[n]`: drawn among the holders of its class, shares ~ Dir(α)."""
    owner = np.full(len(labels), -1, np.int64)
    for c in range(holds.shape[1]):
        members = np.flatnonzero(labels == c)
        if len(members):
            owner[members] = draw_owners(len(members), np.flatnonzero(holds[:, c]), alpha, rng)
    return owner


def draw_owners(n: int, holders: NDArray[np.int64], alpha: float, rng: np.random.Generator) -> NDArray[np.int64]:
    """n independent draws among the holders, shares ~ Dir(α)."""
    return holders[rng.choice(len(holders), size=n, p=draw_shares(len(holders), alpha, rng))]


def draw_shares(holders: int, alpha: float, rng: np.random.Generator) -> NDArray[np.float64]:
    """Shares ~ Dir(α); for a tiny α, where every gamma draw underflows, one holder takes all."""
    shares = rng.dirichlet(np.full(holders, alpha))
    if not np.isfinite(shares).all() or shares.sum() <= 0:
        shares = np.zeros(holders)
        shares[rng.integers(holders)] = 1.0
    result: NDArray[np.float64] = shares / shares.sum()
    return result


def fill_empty(
    owner: NDArray[np.int64], labels: NDArray[np.int64], holds: NDArray[np.bool_], rng: np.random.Generator
) -> list[int]:
    """Give each empty site one sample of the largest site, of a class it holds if possible."""
    sites = len(holds)
    moved: list[int] = []
    for site in np.setdiff1d(np.arange(sites), owner):
        sizes = np.bincount(owner[owner >= 0], minlength=sites)
        spare = (owner < 0) | (sizes[owner] > 1)
        fitting = np.flatnonzero(spare & holds[site][labels])
        candidates = fitting if len(fitting) else np.flatnonzero(spare)
        donors = np.where(owner[candidates] < 0, 0, sizes[owner[candidates]])
        largest = candidates[donors == donors.max()]
        row = int(rng.choice(largest))
        owner[row] = site
        moved.append(row)
    return moved
