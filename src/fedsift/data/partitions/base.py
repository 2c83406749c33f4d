"""The interface of a partition: labels in, row positions of each site out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedsift.core.errors import ConfigError, DataError
from fedsift.core.ranges import RangeChecked
from fedsift.core.registry import Registry
from fedsift.data.dataset import Labels, Rows


@dataclass(frozen=True)
class Pool:
    """The training samples that are to be divided, in the order of `Dataset.train`.

    labels: `[n]` class numbers or `[n, K]` zeros and ones; the *given* ones for a partition `by_given_label`.
    sites, groups: the source's columns for these samples, or None.
    """

    labels: Labels
    classes: tuple[str, ...]
    sites: NDArray[np.str_] | None = None
    groups: NDArray[Any] | None = None

    @property
    def n_classes(self) -> int:
        return len(self.classes)

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class Placement:
    """Positions into the pool, one ascending array a site; names when the sites have names of their own."""

    rows: list[Rows]
    names: tuple[str, ...] | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Partition(RangeChecked):
    """Base of all partitions. Subclasses add their parameters as fields and say how samples are assigned."""

    summary: ClassVar[str] = ""
    by_given_label: ClassVar[bool] = False
    """True: labels are corrupted first and samples divided by the given label (FedDPCont)."""
    overlapping: ClassVar[bool] = False
    """True: a sample may belong to several sites (RHFL)."""

    seed: int | None = field(default=None, kw_only=True)
    """A seed for the partition alone, whatever the study's seed (None: the study's)."""

    def assign(self, pool: Pool, rng: np.random.Generator) -> Placement:
        raise TypeError(f"{type(self).__name__} does not say how it assigns samples")


partitions: Registry[type[Partition]] = Registry("partition", base=Partition, group="fedsift.partitions")


def need_sites(sites: int) -> None:
    if sites < 1:
        raise ConfigError(f"a federation needs at least one site, not {sites}")


def need_samples(pool: Pool, sites: int) -> None:
    if len(pool) < sites:
        raise DataError(f"{len(pool)} samples cannot fill {sites} sites: use at most {len(pool)} sites or allow_empty")


def need_class_numbers(pool: Pool, name: str) -> None:
    if pool.labels.ndim != 1:
        raise ConfigError(
            f"partition '{name}' goes by class and needs one label a sample; use 'iid' for multi-label data"
        )


def gather(owner: NDArray[np.int64], sites: int) -> list[Rows]:
    """Positions of each site, ascending, from the owner of every sample (-1: nobody)."""
    order = np.argsort(owner, kind="stable")
    bounds = np.searchsorted(owner[order], np.arange(sites + 1))
    return [order[bounds[k] : bounds[k + 1]].astype(np.int64) for k in range(sites)]
