"""Partition `overlapping` (RHFL): every site draws its own random sample, so that sites share samples.

Fang, Ye: RHFL, CVPR 2022, sec. 4.1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedsift.core.errors import ConfigError, DataError
from fedsift.data.partitions.base import Partition, Placement, Pool, need_sites, partitions


@partitions.register("overlapping")
@dataclass(frozen=True)
class Overlapping(Partition):
    """Each site draws `size` samples of the whole pool without replacement; two sites share size²/n on
    average."""

    summary: ClassVar[str] = "each site draws its own sample of the pool; sites overlap (RHFL)"
    overlapping: ClassVar[bool] = True

    sites: int = 4
    """How many sites (K)."""
    size: int = 10_000
    """Samples a site (N_k)."""
    disjoint: bool = False
    """Draw without overlap instead: every sample at most once."""

    def __post_init__(self) -> None:
        need_sites(self.sites)
        if self.size < 1:
            raise ConfigError(f"overlapping: a site needs at least one sample, not {self.size}")

    def assign(self, pool: Pool, rng: np.random.Generator) -> Placement:
        needed = self.size * self.sites if self.disjoint else self.size
        if needed > len(pool):
            raise DataError(f"overlapping: {len(pool)} samples are fewer than {needed}: lower `size` or `sites`")
        if self.disjoint:
            order = rng.permutation(len(pool))[:needed].reshape(self.sites, self.size)
            return Placement([np.sort(part).astype(np.int64) for part in order])
        return Placement([draw_sample(len(pool), self.size, rng) for _ in range(self.sites)])


def draw_sample(pool: int, size: int, rng: np.random.Generator) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """`size` of 0..pool-1 without repetition, ascending."""
    return np.sort(rng.choice(pool, size=size, replace=False, shuffle=False)).astype(np.int64)
