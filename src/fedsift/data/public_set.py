"""The public set: unlabelled samples that every site has, on which sites compare their predictions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsift.core.errors import ConfigError, DataError
from fedsift.core.randomness import numpy_generator
from fedsift.data.dataset import Dataset, PublicSet, Rows
from fedsift.data.sources.base import Source, channel_statistics
from fedsift.data.sources.npz import as_samples, read_arrays
from fedsift.data.splits import split

SMALLEST = 2
"""Batch norm cannot train on a single sample."""


@dataclass(frozen=True)
class PublicSettings:
    """The study's `[public]` table: where the public samples come from. Their labels, if any, are not read.

    One of three: a share of the training pool, an .npz file, or a dataset by its name with its own keys.
    """

    from_train: float = 0.0
    """Share of the training pool to set aside, before it is spread over the sites."""
    path: Path | None = None
    """An .npz file with an array of images; it needs no labels."""
    images: str = "images"
    """Name of that array."""
    samples: int = 0
    """Use only so many of them, drawn at random; 0 uses all."""
    source: Source | None = None
    """A dataset by its name (`name` in the table): its training rows are used."""

    def __post_init__(self) -> None:
        given = [self.from_train != 0, self.path is not None, self.source is not None]
        if sum(given) != 1:
            raise ConfigError("[public] needs exactly one of 'from_train' (e.g. 0.1), 'path' (an .npz file) and 'name'")
        if not 0 <= self.from_train < 1:
            raise ConfigError(f"'public.from_train' = {self.from_train}: it must be a share between 0 and 1")
        if self.samples < 0:
            raise ConfigError(f"'public.samples' = {self.samples}: it must be positive, or 0 for all")

    def take(self, dataset: Dataset, seed: int) -> tuple[Dataset, PublicSet]:
        """The dataset that is left to the sites, and the public set."""
        if self.from_train:
            dataset, public = self._set_aside(dataset, seed)
        else:
            public = self._load()
        if self.samples and self.samples < len(public.rows):
            generator = numpy_generator(seed, "data", "public samples")
            chosen = generator.choice(len(public.rows), self.samples, replace=False)
            public = replace(public, rows=public.rows[np.sort(chosen)])
        _check(public, dataset)
        return dataset, public

    def _set_aside(self, dataset: Dataset, seed: int) -> tuple[Dataset, PublicSet]:
        """Whole groups (patients) go to one side: nobody is public here and private there."""
        groups = None if dataset.groups is None else dataset.groups[dataset.train]
        generator = numpy_generator(seed, "data", "public")
        kept, public = split(dataset.labels[dataset.train], self.from_train, generator, groups)
        note = f"{len(public)} samples of the training pool are set aside as public and unlabelled"
        left = replace(dataset, train=dataset.train[kept], notes=(*dataset.notes, note))
        return left, PublicSet(dataset.name, dataset.images, dataset.train[public], dataset.mean, dataset.std)

    def _load(self) -> PublicSet:
        """Samples from elsewhere, normalised by their own statistics."""
        if self.source is not None:
            found = self.source.load()
            return PublicSet(found.name, found.images, found.train, found.mean, found.std)
        assert self.path is not None
        arrays = read_arrays(self.path)
        if self.images not in arrays:
            raise DataError(f"{self.path} has no array '{self.images}': it holds {', '.join(sorted(arrays))}")
        images: NDArray[Any] = as_samples(arrays[self.images], f"{self.path.name}: {self.images}")
        rows: Rows = np.arange(len(images), dtype=np.int64)
        mean, std = channel_statistics(images, rows)
        return PublicSet(self.path.stem, images, rows, mean, std)


def _check(public: PublicSet, dataset: Dataset) -> None:
    if len(public.rows) < SMALLEST:
        raise DataError(f"the public set '{public.name}' has {len(public.rows)} samples: it needs at least {SMALLEST}")
    if public.shape != dataset.shape:
        raise DataError(
            f"public samples of '{public.name}' have shape {public.shape}, "
            f"those of '{dataset.name}' {dataset.shape}: "
            "the sites' networks take one shape: bring the public images to that size and number of channels"
        )
