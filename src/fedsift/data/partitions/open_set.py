"""Partition `open-set` (FedDPCont): each site sees some of the given labels only, never none and never all.

Di et al.: FedDPCont, sec. 3.3. Labels are corrupted first; samples are then divided by the label they were
given.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fedsift.core.errors import ConfigError, DataError
from fedsift.data.input_files import read_array
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
from fedsift.data.partitions.bernoulli_dirichlet import TRIES, draw_shares, fill_empty
from fedsift.data.splits import shares_to_counts


@partitions.register("open-set")
@dataclass(frozen=True)
class OpenSet(Partition):
    """1_{c,k} ~ Bernoulli(Q) says which site sees which given label; its samples are shared among the
    holders."""

    summary: ClassVar[str] = "each site sees some given labels only, never none or all (FedDPCont)"
    by_given_label: ClassVar[bool] = True

    sites: int
    """How many sites (C)."""
    q: float = 0.5
    """Q: probability that a site sees a class. The paper does not state its value."""
    q_table: Path | None = None
    """Instead: a file (.npy or CSV without header) with Q for every site and class, `[sites, classes]`."""
    allocation: Literal["uniform", "dirichlet"] = "uniform"
    """"uniform": equal parts for the holders (symmetric noise); "dirichlet": shares ~ Dir(alpha) (random
    noise)."""
    alpha: float = 1.0
    """Concentration of the Dirichlet shares."""
    every_class: bool = False
    """Force a holder for a class that no site sees; otherwise its samples stay unused, as in the paper."""
    allow_empty: bool = False
    """Let sites without samples pass; otherwise the draw is repeated, and in the end a sample is moved."""

    def __post_init__(self) -> None:
        need_sites(self.sites)
        if not 0.0 < self.q < 1.0:
            raise ConfigError(f"open-set: q is a probability between 0 and 1, not {self.q}")
        if not self.alpha > 0.0:
            raise ConfigError(f"open-set: alpha must be positive, not {self.alpha}")

    def assign(self, pool: Pool, rng: np.random.Generator) -> Placement:
        need_class_numbers(pool, "open-set")
        if pool.n_classes < 2:
            raise ConfigError("open-set: one class cannot be seen by some and not by others; use 'iid'")
        if not self.allow_empty:
            need_samples(pool, self.sites)
        probabilities = self._probabilities(pool.n_classes)
        notes: list[str] = []
        for _ in range(TRIES):
            sees = draw_open_rows(probabilities, rng)
            if self.every_class:
                force_holders(sees, rng)
            owner = self._share_out(pool.labels, sees, rng)
            if self.allow_empty or len(np.unique(owner[owner >= 0])) == self.sites:
                break
        else:
            moved = fill_empty(owner, pool.labels, sees, rng)
            notes.append(f"{len(moved)} sites drew no sample and got one each")
        for c in np.flatnonzero(~sees.any(axis=0)):
            count = int((pool.labels == c).sum())
            notes.append(f"no site sees class '{pool.classes[c]}': its {count} samples are not used")
        return Placement(gather(owner, self.sites), notes=tuple(notes))

    def _probabilities(self, n_classes: int) -> NDArray[np.float64]:
        if self.q_table is None:
            return np.full((self.sites, n_classes), self.q)
        if self.q_table.suffix == ".npy":
            table: NDArray[np.float64] = read_array(self.q_table).astype(np.float64)
        else:
            table = np.loadtxt(self.q_table, delimiter=",", ndmin=2)
        if table.shape != (self.sites, n_classes) or not ((table >= 0) & (table <= 1)).all():
            raise DataError(f"{self.q_table}: Q must be {self.sites} x {n_classes} probabilities, not {table.shape}")
        return table

    def _share_out(
        self, labels: NDArray[np.int64], sees: NDArray[np.bool_], rng: np.random.Generator
    ) -> NDArray[np.int64]:
        owner = np.full(len(labels), -1, np.int64)
        for c in range(sees.shape[1]):
            holders, members = np.flatnonzero(sees[:, c]), np.flatnonzero(labels == c)
            if len(holders) and len(members):
                if self.allocation == "uniform":
                    counts = uniform_counts(len(members), len(holders), rng)
                else:
                    counts = shares_to_counts(draw_shares(len(holders), self.alpha, rng), len(members))
                owner[rng.permutation(members)] = np.repeat(holders, counts)
        return owner


def draw_open_rows(probabilities: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.bool_]:
    """Rows ~ Bernoulli(Q), redrawn while all 0 or all 1; one that stays so has one random entry turned."""
    sees = rng.random(probabilities.shape) < probabilities
    for _ in range(TRIES):
        bad = np.flatnonzero(sees.all(axis=1) | ~sees.any(axis=1))
        if len(bad) == 0:
            return sees
        sees[bad] = rng.random((len(bad), sees.shape[1])) < probabilities[bad]
    for row in np.flatnonzero(sees.all(axis=1) | ~sees.any(axis=1)):
        turned = int(rng.integers(sees.shape[1]))
        sees[row, turned] = not sees[row, turned]
    return sees


def force_holders(sees: NDArray[np.bool_], rng: np.random.Generator) -> None:
    """Give each unseen class to a site that still lacks another class, so that no row becomes full."""
    for c in np.flatnonzero(~sees.any(axis=0)):
        spare = np.flatnonzero((~sees).sum(axis=1) >= 2)
        if len(spare):
            sees[rng.choice(spare), c] = True


def uniform_counts(samples: int, holders: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """⌊n/v⌋ or ⌈n/v⌉ for each holder; who gets one more is random."""
    counts = np.full(holders, samples // holders, np.int64)
    counts[rng.permutation(holders)[: samples % holders]] += 1
    return counts
