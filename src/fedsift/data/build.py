"""Builds a federated dataset from source, partition, noise and seed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsift.core.errors import ConfigError, DataError
from fedsift.core.randomness import numpy_generator
from fedsift.core.text import visible
from fedsift.data.dataset import Dataset, FederatedDataset, Labels, PublicSet, Rows, SimulationTruth
from fedsift.data.input_files import read_arrays
from fedsift.data.noise.base import POOL, Noise, NoiseInput, NoisyLabels, noises
from fedsift.data.partitions.base import Partition, Placement, Pool, partitions
from fedsift.data.sources.base import Source, channel_statistics
from fedsift.data.sources.npz import as_samples
from fedsift.data.splits import split

HELD_OUT = 0.2
"""What sites hold out when the dataset has no test rows and the study does not say."""


def build(
    source: Source | Dataset, partition: Partition, noise: Noise, *, seed: int, held_out: float | None = 0.0
) -> FederatedDataset:
    """Load, partition and corrupt.

    held_out: share of each site's samples kept for evaluation there; None means none, 0 none or 20 % when the dataset
    has no test rows at all. Held-out samples carry given labels too: a site cannot know better.
    """
    dataset = source if isinstance(source, Dataset) else source.load()
    check_dataset(dataset)
    _check_fit(dataset, partition, noise)
    share = 0.0 if held_out is None else held_out if held_out > 0 or len(dataset.test) else HELD_OUT

    clean = dataset.labels[dataset.train]
    corrupted_pool = (
        _corrupt(noise, {POOL: clean}, {POOL: dataset.train}, dataset, seed) if noise.before_partition else None
    )
    by = corrupted_pool.given[POOL] if corrupted_pool and partition.by_given_label else clean
    placement = partition.assign(_pool(dataset, by), _partition_generator(partition, seed))
    names = placement.names or site_names(len(placement.rows))

    positions = dict(zip(names, placement.rows))
    rows = {site: dataset.train[positions[site]] for site in names}
    truth = {site: clean[positions[site]] for site in names}
    corrupted = (
        _to_sites(corrupted_pool, positions, truth) if corrupted_pool else _corrupt(noise, truth, rows, dataset, seed)
    )
    if corrupted.annotated is None:
        corrupted = replace(corrupted, annotated=_declared(dataset, names))
    federated = _hold_out(dataset, names, rows, truth, corrupted, share, seed)
    notes = (*dataset.notes, *placement.notes, *corrupted.notes, *federated.notes, *_absent(federated, placement))
    federated = replace(federated, notes=notes)
    federated.check()
    return federated


def site_names(count: int) -> tuple[str, ...]:
    """site-00, site-01, ...: zero-padded, so that alphabetical order is numerical order."""
    width = max(2, len(str(count - 1)))
    return tuple(f"site-{k:0{width}d}" for k in range(count))


def check_dataset(dataset: Dataset) -> None:
    """Labels inside the vocabulary, rows inside the data; the message names sample, site and fix."""
    if len(dataset.images) != len(dataset.labels):
        raise DataError(f"{dataset.name}: {len(dataset.images)} images but {len(dataset.labels)} labels")
    if len(dataset.train) == 0:
        raise DataError(f"{dataset.name} has no training sample")
    if dataset.images.dtype.kind == "f":
        for row in range(0, len(dataset.images), 4096):
            bad = ~np.isfinite(dataset.images[row : row + 4096]).all(axis=tuple(range(1, dataset.images.ndim)))
            if bad.any():
                first = row + int(np.flatnonzero(bad)[0])
                raise DataError(f"{dataset.name}: sample {first} holds NaN or infinite values: mend or remove it")
    used = np.concatenate([dataset.train, dataset.test])
    highest = 1 if dataset.multilabel else dataset.n_classes - 1
    for labels in (dataset.labels, dataset.given):
        if labels is None:
            continue
        bad = (labels[used] < 0) | (labels[used] > highest)
        rows = used[bad.any(axis=1) if bad.ndim == 2 else bad]
        if len(rows):
            raise DataError(_out_of_range(dataset, int(rows[0]), labels[rows[0]], len(rows)))


def _out_of_range(dataset: Dataset, row: int, label: NDArray[np.int64], count: int) -> str:
    name = str(row) if dataset.ids is None else str(dataset.ids[row])
    where = "" if dataset.sites is None else f" at site '{visible(dataset.sites[row])}'"
    more = f" ({count - 1} more)" if count > 1 else ""
    return (
        f"{dataset.name}: sample '{visible(name)}'{where} has label {label.tolist()}, "
        f"outside the {dataset.n_classes} classes "
        f"{', '.join(dataset.classes[:8])}{', ...' if dataset.n_classes > 8 else ''}{more}: "
        "correct the label or extend `classes`"
    )


def _check_fit(dataset: Dataset, partition: Partition, noise: Noise) -> None:
    kind = "multilabel" if dataset.multilabel else "multiclass"
    if kind not in noise.tasks:
        raise ConfigError(f"noise '{noises.name_of(noise)}' is for {noise.tasks[0]} data; {dataset.name} is {kind}")
    if partition.by_given_label and not noise.before_partition:
        raise ConfigError(
            f"partition '{partitions.name_of(partition)}' spreads by the given label, "
            f"so the noise must come first: use scope = \"pool\" or another than '{noises.name_of(noise)}'"
        )


def _pool(dataset: Dataset, labels: Labels) -> Pool:
    return Pool(
        labels=labels,
        classes=dataset.classes,
        sites=None if dataset.sites is None else dataset.sites[dataset.train],
        groups=None if dataset.groups is None else dataset.groups[dataset.train],
    )


def _partition_generator(partition: Partition, seed: int) -> np.random.Generator:
    return numpy_generator(seed if partition.seed is None else partition.seed, "data", "partition")


def _corrupt(
    noise: Noise, clean: Mapping[str, Labels], rows: Mapping[str, Rows], dataset: Dataset, seed: int
) -> NoisyLabels:
    def generator(*path: str | int) -> np.random.Generator:
        return numpy_generator(seed, "data", "noise", *path)

    return noise.corrupt(NoiseInput(clean, dataset.n_classes, generator, rows, dataset))


def _to_sites(pool: NoisyLabels, positions: Mapping[str, Rows], truth: Mapping[str, Labels]) -> NoisyLabels:
    """The labels that were corrupted as one pool, divided among the sites."""
    given = {site: pool.given[POOL][where] for site, where in positions.items()}
    wrong = {site: bool((given[site] != truth[site]).any()) for site in positions}
    return replace(
        pool,
        given=given,
        level=dict.fromkeys(positions, pool.level[POOL]),
        noisy=tuple(site for site in positions if wrong[site]) if pool.noisy else (),
    )


def _declared(dataset: Dataset, names: tuple[str, ...]) -> dict[str, NDArray[np.bool_]] | None:
    """Masks of the classes that natural sites declare, when multi-label sites do not all annotate all of
    them."""
    declared = dataset.site_classes
    if not dataset.multilabel or declared is None or not all(site in declared for site in names):
        return None
    masks = {site: np.isin(np.array(dataset.classes), np.array(declared[site])) for site in names}
    return None if all(mask.all() for mask in masks.values()) else masks


def _hold_out(
    dataset: Dataset,
    names: tuple[str, ...],
    rows: Mapping[str, Rows],
    truth: Mapping[str, Labels],
    corrupted: NoisyLabels,
    share: float,
    seed: int,
) -> FederatedDataset:
    """Each site's training and held-out parts; no group on both sides."""
    kept: dict[str, Rows] = {}
    held: dict[str, Rows] = {}
    without: list[str] = []
    for site in names:
        groups = None if dataset.groups is None else dataset.groups[rows[site]]
        rng = numpy_generator(seed, "data", "held out", site)
        kept[site], held[site] = split(corrupted.given[site], share, rng, groups, at_least_one=True)
        if share > 0 and len(held[site]) == 0:
            without.append(site)
    notes = (f"too few samples to hold any out at {', '.join(without)}",) if without else ()
    known = corrupted.known
    return FederatedDataset(
        dataset=dataset,
        sites=names,
        rows={site: rows[site][kept[site]] for site in names},
        given={site: corrupted.given[site][kept[site]] for site in names},
        held_out={site: rows[site][held[site]] for site in names} if share > 0 else {},
        held_out_given={site: corrupted.given[site][held[site]] for site in names} if share > 0 else {},
        annotated=corrupted.annotated,
        truth=SimulationTruth(
            clean={site: truth[site][kept[site]] for site in names},
            level=dict(corrupted.level),
            noisy=corrupted.noisy,
            clean_held_out={site: truth[site][held[site]] for site in names} if share > 0 else {},
        )
        if known
        else None,
        notes=notes,
    )


def _absent(federated: FederatedDataset, placement: Placement) -> list[str]:
    """Classes that no site holds, in words for the user."""
    held = np.zeros(federated.dataset.n_classes, np.bool_)
    for site in federated.sites:
        labels = federated.given[site]
        held |= labels.any(axis=0) if labels.ndim == 2 else np.isin(np.arange(len(held)), labels)
    return [f"no site holds a sample labelled '{federated.dataset.classes[c]}'" for c in np.flatnonzero(~held)]


# The public set
# ------------------------------------------------------------------------------


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
