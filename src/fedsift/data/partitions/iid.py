"""Partition `iid`: equal parts at random."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedsift.core.errors import DataError
from fedsift.data.dataset import Rows
from fedsift.data.partitions.base import Partition, Placement, Pool, need_samples, need_sites, partitions
from fedsift.data.splits import units_of


@partitions.register("iid")
@dataclass(frozen=True)
class Iid(Partition):
    """Every sample once, at random; sizes differ by at most one (FedCorr sec. 3.1, FedMLP sec. 2.1)."""

    summary: ClassVar[str] = "equal parts at random"

    sites: int
    """How many sites (N, K)."""
    drop_remainder: bool = False
    """Give every site ⌊n/N⌋ samples and leave the rest unused, as FedCorr's released code does."""
    whole_groups: bool = False
    """Keep all samples of a group (patient, lesion) at one site; sizes then differ by more than one."""
    allow_empty: bool = False
    """Let sites without samples pass; otherwise fewer samples than sites are refused."""

    def __post_init__(self) -> None:
        need_sites(self.sites)

    def assign(self, pool: Pool, rng: np.random.Generator) -> Placement:
        if not self.allow_empty:
            need_samples(pool, self.sites)
        if self.whole_groups:
            return Placement(assign_groups(pool, self.sites, rng, allow_empty=self.allow_empty))
        rows = equal_parts(len(pool), self.sites, rng, drop_remainder=self.drop_remainder)
        left = len(pool) - sum(len(part) for part in rows)
        return Placement(rows, notes=(f"{left} samples are left over and unused",) if left else ())


def equal_parts(n: int, sites: int, rng: np.random.Generator, *, drop_remainder: bool = False) -> list[Rows]:
    """A random order of 0..n-1 cut into `sites` parts, larger ones first."""
    order = rng.permutation(n)
    if drop_remainder:
        order = order[: n // sites * sites]
    return [np.sort(part).astype(np.int64) for part in np.array_split(order, sites)]


def assign_groups(pool: Pool, sites: int, rng: np.random.Generator, *, allow_empty: bool = False) -> list[Rows]:
    """Whole groups, in random order, each to the site that has the fewest samples so far."""
    if pool.groups is None:
        raise DataError("whole_groups needs a group column (patient, lesion), which these data do not have")
    member = units_of(pool.groups)
    sizes = np.bincount(member)
    if len(sizes) < sites and not allow_empty:
        raise DataError(f"{len(sizes)} groups cannot fill {sites} sites: use at most {len(sizes)} sites")
    owner = np.empty(len(sizes), np.int64)
    load = np.zeros(sites, np.int64)
    # Large groups last would leave one site overfull: the random order is sorted by size, largest first.
    order = rng.permutation(len(sizes))
    for group in order[np.argsort(-sizes[order], kind="stable")]:
        owner[group] = int(load.argmin())
        load[owner[group]] += sizes[group]
    return [np.flatnonzero(owner[member] == site).astype(np.int64) for site in range(sites)]
