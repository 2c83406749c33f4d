"""The default partition of a user's own data: the sites that the data name, or else equal parts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from fedsift.core.errors import DataError
from fedsift.core.ranges import AtLeastOne
from fedsift.data.partitions.base import Partition, Placement, Pool, partitions
from fedsift.data.partitions.iid import Iid

# Sites as they are: from a column of the data
# ------------------------------------------------------------------------------


@partitions.register("natural")
@dataclass(frozen=True)
class Natural(Partition):
    """One site for each value of the source's site column, in alphabetical order."""

    summary: ClassVar[str] = "the sites named in the data's own column"

    minimum: AtLeastOne = 1
    """Leave out sites with fewer samples than this."""

    def assign(self, pool: Pool, rng: np.random.Generator) -> Placement:
        if pool.sites is None:
            raise DataError(
                "partition 'natural' needs a site column, which these data do not have: "
                "give one (site_column), or spread them with partition 'iid'"
            )
        values, member = np.unique(pool.sites, return_inverse=True)
        rows = [np.flatnonzero(member == k).astype(np.int64) for k in range(len(values))]
        kept = [k for k in range(len(values)) if len(rows[k]) >= self.minimum and str(values[k])]
        notes = tuple(
            f"site '{values[k]}' has {len(rows[k])} samples, fewer than {self.minimum}: left out"
            if str(values[k])
            else f"{len(rows[k])} samples name no site: left out"
            for k in range(len(values))
            if k not in kept
        )
        if not kept:
            raise DataError(f"no site has {self.minimum} samples: lower `minimum`")
        return Placement([rows[k] for k in kept], names=tuple(str(values[k]) for k in kept), notes=notes)


@partitions.register("own-sites")
@dataclass(frozen=True)
class OwnSites(Partition):
    """The sites of the data's own column; equal parts at random where there is none. A note says which."""

    summary: ClassVar[str] = "the data's own sites; where they name none, equal parts (the default for own data)"

    parts: AtLeastOne = 10
    """How many equal parts when the data name no site."""
    minimum: AtLeastOne = 1
    """Leave out named sites with fewer samples than this."""

    def assign(self, pool: Pool, rng: np.random.Generator) -> Placement:
        if pool.sites is not None and (pool.sites != "").any():
            return Natural(minimum=self.minimum).assign(pool, rng)
        placed = Iid(sites=self.parts).assign(pool, rng)
        note = (
            f"the data name no sites: spread at random over {self.parts} made-up ones; "
            "give a site column, or [partition] for another spread"
        )
        return replace(placed, notes=(note, *placed.notes))
