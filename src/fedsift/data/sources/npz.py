"""A person's own arrays in one .npz file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedsift.contract.errors import DataError
from fedsift.contract.randomness import numpy_generator
from fedsift.data.dataset import Dataset, Rows
from fedsift.data.sources.base import (
    Source,
    as_labels,
    channel_statistics,
    channels_first,
    class_names,
    sources,
)
from fedsift.data.splits import split


@sources.register("npz")
@dataclass(frozen=True)
class Npz(Source):
    """Arrays `images` and `labels`; if there, `test_images`, `test_labels`, `given`, `classes` and more.

    images: uint8 `[n, h, w]`, `[n, h, w, c]` or `[n, c, h, w]`, or float `[n, features]`.
    labels: `[n]` class numbers or `[n, K]` zeros and ones.
    """

    summary: ClassVar[str] = "your own arrays in one .npz file"
    kind: ClassVar[str] = "either"

    path: Path
    """The .npz file."""
    images: str = "images"
    """Name of the array of samples."""
    labels: str = "labels"
    """Name of the array of labels."""
    given: str = "given"
    """Name of the array of labels as annotated, when `labels` are the true ones."""
    ids: str = "ids"
    """Name of the array that names each sample."""
    site: str = "site"
    """Name of the array that tells each sample's site."""
    group: str = "group"
    """Name of the array that tells each sample's group (patient)."""
    classes: tuple[str, ...] = ()
    """Classes to keep and their order (default: all, in the file's order)."""
    test_fraction: float = 0.0
    """Share to keep for testing when the file has no test arrays; whole groups where there are groups."""
    split_seed: int = 0
    """Seed of that split; the study's seed does not move it."""
    trusted: bool = True
    """Whether the labels can be taken for the truth."""

    def read(self) -> Dataset:
        arrays = read_arrays(self.path)
        for key in ("images", "labels", "given", "ids", "site", "group"):
            name = getattr(self, key)
            if name in arrays:
                arrays[key] = arrays[name]
            elif key in ("images", "labels") or name != key:
                raise DataError(f"{self.path} has no array '{name}': it holds {', '.join(sorted(arrays))}")
        options = ArrayOptions(self.path.stem, self.test_fraction, self.split_seed, self.trusted)
        return keep_classes(from_arrays(arrays, options), self.classes)


@dataclass(frozen=True)
class ArrayOptions:
    """What arrays do not say of themselves."""

    name: str
    test_fraction: float = 0.0
    split_seed: int = 0
    trusted: bool = True


def from_arrays(arrays: Mapping[str, NDArray[Any]], options: ArrayOptions) -> Dataset:
    """A dataset from arrays under their usual names."""
    for name in ("images", "labels"):
        if name not in arrays:
            raise DataError(f"{options.name} has no array '{name}': it holds {', '.join(sorted(arrays))}")
    images, labels = channels_first(np.asarray(arrays["images"])), as_labels(arrays["labels"])
    if len(images) != len(labels):
        raise DataError(f"{options.name}: {len(images)} images but {len(labels)} labels")
    train: Rows
    if "test_images" in arrays and "test_labels" in arrays:
        train = np.arange(len(images), dtype=np.int64)
        images = np.concatenate([images, channels_first(np.asarray(arrays["test_images"]))])
        labels = np.concatenate([labels, as_labels(arrays["test_labels"])])
        test = np.arange(len(train), len(images), dtype=np.int64)
    else:
        rng = numpy_generator(options.split_seed, "arrays", "split")
        train, test = split(labels, options.test_fraction, rng, arrays.get("group"))
    if images.dtype != np.uint8:
        images = images.astype(np.float32)
    mean, std = channel_statistics(images, train)
    return Dataset(
        name=options.name,
        images=images,
        labels=labels,
        classes=class_names(labels, None if "classes" not in arrays else [str(c) for c in arrays["classes"]]),
        train=train,
        test=test,
        multilabel=labels.ndim == 2,
        mean=mean,
        std=std,
        ids=_column(arrays.get("ids"), len(images)),
        groups=_column(arrays.get("group"), len(images)),
        sites=_column(arrays.get("site"), len(images)),
        given=None if "given" not in arrays else _extended(as_labels(arrays["given"]), labels),
        trusted=options.trusted,
    )


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """All arrays of an .npz file; pickled objects are refused."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except FileNotFoundError:
        raise DataError(f"there is no file {path}") from None
    except (ValueError, OSError, AttributeError) as error:
        raise DataError(f"{path} cannot be read as .npz: {error}") from error


def _column(values: NDArray[Any] | None, n: int) -> NDArray[np.str_] | None:
    """A column as text, with empty entries for test rows that it does not cover."""
    if values is None:
        return None
    text = np.asarray(values).astype(str)
    if len(text) > n:
        raise DataError(f"a column has {len(text)} entries for {n} samples")
    return np.concatenate([text, np.full(n - len(text), "")]) if len(text) < n else text


def _extended(given: NDArray[np.int64], labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """Given labels for training rows, true ones for test rows that `given` does not cover."""
    if len(given) > len(labels) or given.ndim != labels.ndim:
        raise DataError(
            f"given labels of shape {given.shape} do not belong to labels of shape {labels.shape}"
        )
    return np.concatenate([given, labels[len(given) :]])


def keep_classes(dataset: Dataset, classes: tuple[str, ...]) -> Dataset:
    """The same samples with these classes in this order; samples of other classes leave the split."""
    if not classes:
        return dataset
    unknown = [name for name in classes if name not in dataset.classes]
    if unknown:
        raise DataError(f"{dataset.name} has no class '{unknown[0]}': it has {', '.join(dataset.classes)}")
    columns = np.array([dataset.classes.index(name) for name in classes])
    if dataset.multilabel:
        given = None if dataset.given is None else dataset.given[:, columns]
        return replace(dataset, labels=dataset.labels[:, columns], given=given, classes=classes)
    number = np.full(len(dataset.classes), -1, np.int64)
    number[columns] = np.arange(len(classes))
    labels = number[dataset.labels]
    given = None if dataset.given is None else number[dataset.given]
    known = labels >= 0 if given is None else (labels >= 0) & (given >= 0)
    train, test = dataset.train[known[dataset.train]], dataset.test[known[dataset.test]]
    dropped = len(dataset.train) + len(dataset.test) - len(train) - len(test)
    notes = (*dataset.notes, f"{dropped} samples of other classes are left out") if dropped else dataset.notes
    return replace(dataset, labels=labels, given=given, classes=classes, train=train, test=test, notes=notes)
