"""A dataset, the same divided among sites, and the simulation's truth, which is kept apart.

Images stay one uint8 array for the whole process; a site holds row numbers into it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsift.core.errors import DataError

Rows = NDArray[np.int64]
Labels = NDArray[np.int64]
"""Class numbers `[n]`, or 0/1 rows `[n, K]` for multi-label data."""


@dataclass(frozen=True)
class Dataset:
    """Samples with their (assumed clean) labels, before any split over sites.

    images: uint8 `[n, channels, height, width]`, or float32 `[n, features]`.
    labels: int64 `[n]` class numbers, or `[n, K]` zeros and ones when `multilabel`.
    train, test: row numbers; `test` may be empty, then sites keep a held-out part.
    """

    name: str
    images: NDArray[Any]
    labels: Labels
    classes: tuple[str, ...]
    train: Rows
    test: Rows
    multilabel: bool = False
    mean: tuple[float, ...] = (0.5,)
    std: tuple[float, ...] = (0.5,)
    ids: NDArray[np.str_] | None = None
    """A name for each sample, shown in audits (row numbers when None)."""
    pictures: NDArray[Any] | None = None
    """The pictures, where `images` holds features that a frozen network gave of them."""
    paths: NDArray[np.str_] | None = None
    """The file of each sample, for people to open."""
    groups: NDArray[Any] | None = None
    """Patient, lesion: no group on both sides of a split."""
    sites: NDArray[np.str_] | None = None
    """Natural site of each sample."""
    site_classes: dict[str, tuple[str, ...]] | None = None
    """Classes that each natural site declares, by name and in its own order (None: all of them
    everywhere)."""
    given: Labels | None = None
    """Labels as annotators gave them, when the source brings them beside the true ones."""
    trusted: bool = True
    """False when nobody knows how good `labels` are: then there is no truth to measure against."""
    scale: Mapping[str, Sequence[Any]] | None = None
    """How the features of a table were brought to one scale, by name and in order: mean and deviation, or the words
    that have a feature each."""
    notes: tuple[str, ...] = ()
    """What loading left out or changed, in words for the user."""

    @property
    def n_classes(self) -> int:
        return len(self.classes)

    def id_of(self, row: int) -> str:
        """The name of a sample; its row number where the data name none."""
        return str(row) if self.ids is None else str(self.ids[row])

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample, e.g. (3, 32, 32)."""
        return tuple(int(side) for side in self.images.shape[1:])

    @property
    def holds_pictures(self) -> bool:
        """Whether the samples are pictures; otherwise they are rows: of a table, or features that a network gave."""
        return len(self.shape) == 3


@dataclass(frozen=True)
class SimulationTruth:
    """What only a simulation knows. Metrics read it; a method or a site never does.

    clean: true labels of each site's training rows, in the order of `FederatedDataset.rows`.
    level: nominal noise rate of each site (0 for a clean one).
    noisy: sites that the noise model chose (for metrics of detection).
    clean_held_out: true labels of the rows that a site holds out.
    """

    clean: dict[str, Labels]
    level: dict[str, float]
    noisy: tuple[str, ...]
    clean_held_out: dict[str, Labels] = field(default_factory=dict)

    def effective_rate(self, site: str, given: Labels) -> float:
        """Share of the site's labels that differ from the truth (entries, for multi-label data)."""
        clean = self.clean[site]
        return float(np.mean(clean != given)) if clean.size else 0.0


@dataclass(frozen=True)
class PublicSet:
    """Unlabelled samples that every site has; `rows` of `images` (uint8 or float32, as in `Dataset`), in
    this order."""

    name: str
    images: NDArray[Any]
    rows: Rows
    mean: tuple[float, ...] = (0.5,)
    std: tuple[float, ...] = (0.5,)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(int(side) for side in self.images.shape[1:])

    @property
    def holds_pictures(self) -> bool:
        """Whether the samples are pictures; otherwise they are rows: of a table, or features that a network gave."""
        return len(self.shape) == 3


@dataclass(frozen=True)
class FederatedDataset:
    """A dataset divided among sites, with the labels that the sites were given.

    rows[site]: training rows into `dataset.images`; given[site]: the labels the site believes, same order.
    held_out[site]: rows kept for evaluation at the site, with their given labels in held_out_given.
    annotated[site]: boolean `[K]`, classes that the site annotates (None: all).
    """

    dataset: Dataset
    sites: tuple[str, ...]
    rows: dict[str, Rows]
    given: dict[str, Labels]
    truth: SimulationTruth | None
    held_out: dict[str, Rows] = field(default_factory=dict)
    held_out_given: dict[str, Labels] = field(default_factory=dict)
    annotated: dict[str, NDArray[np.bool_]] | None = None
    public: PublicSet | None = None
    """The same unlabelled samples in the same order at every site."""
    notes: tuple[str, ...] = ()

    def check(self) -> None:
        """Refuse what no method can use; name the site and the way out."""
        for site in self.sites:
            if len(self.rows[site]) == 0:
                raise DataError(f"site '{site}' has no training sample: use fewer sites or another partition")
            if len(self.rows[site]) != len(self.given[site]):
                raise DataError(f"site '{site}' has {len(self.rows[site])} samples but {len(self.given[site])} labels")
