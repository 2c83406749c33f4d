"""A person's own data without a word about sites: those that the data name, or equal parts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from fedsift.contract.ranges import AtLeastOne
from fedsift.data.partitions.base import Partition, Placement, Pool, partitions
from fedsift.data.partitions.iid import Iid
from fedsift.data.partitions.natural import Natural


@partitions.register("own-sites")
@dataclass(frozen=True)
class OwnSites(Partition):
    """The sites of the data's own column; equal parts at random where there is none. A note says which."""

    summary: ClassVar[str] = (
        "the data's own sites; where they name none, equal parts (the default for own data)"
    )

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
