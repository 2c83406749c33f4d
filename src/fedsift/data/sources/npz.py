"""Makes datasets of arrays, with the checks that all sources of arrays share; and the source `npz`, one .npz file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fedsift.core.errors import DataError
from fedsift.core.randomness import numpy_generator
from fedsift.core.ranges import Range
from fedsift.data.dataset import Dataset, Rows
from fedsift.data.input_files import read_arrays
from fedsift.data.sources.base import (
    Source,
    as_labels,
    channel_statistics,
    channels_first,
    class_names,
    sources,
)
from fedsift.data.sources.listing import repeated_notes
from fedsift.data.splits import split


@sources.register("npz")
@dataclass(frozen=True)
class Npz(Source):
    """Arrays `images` and `labels`; if there, `test_images`, `test_labels`, `given`, `classes` and more.

    MedMNIST's files, with `train_images`, `val_images` and so on, are read as they are.

    images: uint8 (or float) `[n, h, w]`, `[n, h, w, c]` or `[n, c, h, w]`, or numbers `[n, features]`.
    labels: `[n]` class numbers or `[n, K]` zeros and ones.
    """

    summary: ClassVar[str] = "your own arrays in one .npz file"
    kind: ClassVar[str] = "either"
    own: ClassVar[bool] = True

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
    """Name of the array that holds each sample's site."""
    group: str = "group"
    """Name of the array that holds each sample's group (patient)."""
    classes: tuple[str, ...] = ()
    """Classes to keep and their order (default: all, in the file's order)."""
    validation: Literal["train", "test", "drop"] = "train"
    """Where `val_images` go, if the file has them."""
    test_fraction: Annotated[float, Range(0, 1, below=True)] = 0.0
    """Share to keep for testing when the file has no test arrays; whole groups where there are groups."""
    split_seed: int = 0
    """Seed of that split; the study's seed does not move it."""
    trusted: bool = False
    """Whether the labels can be taken for the truth: only then right and wrong are counted against them."""

    def read(self) -> Dataset:
        arrays = as_one_pool(read_arrays(self.path), self.path.name, self.validation)
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
    trusted: bool = False


def as_one_pool(
    arrays: dict[str, NDArray[Any]], name: str, validation: Literal["train", "test", "drop"]
) -> dict[str, NDArray[Any]]:
    """MedMNIST's arrays under the usual names; other arrays as they are."""
    if "images" in arrays or "train_images" not in arrays:
        return arrays
    sides: dict[str, list[str]] = {"train": ["train"], "test": ["test"] if "test_images" in arrays else []}
    if "val_images" in arrays and validation != "drop":
        sides[validation].append("val")
    result = {key: value for key, value in arrays.items() if not key.endswith(("_images", "_labels"))}
    for side, parts in sides.items():
        for what in ("images", "labels"):
            lacking = [part for part in parts if f"{part}_{what}" not in arrays]
            if lacking:
                raise DataError(f"{name} has no array '{lacking[0]}_{what}': it holds {', '.join(sorted(arrays))}")
            if parts:
                key = what if side == "train" else f"test_{what}"
                result[key] = np.concatenate([arrays[f"{part}_{what}"] for part in parts])
    return result


def from_arrays(arrays: Mapping[str, NDArray[Any]], options: ArrayOptions) -> Dataset:
    """A dataset from arrays under their usual names."""
    for name in ("images", "labels"):
        if name not in arrays:
            raise DataError(f"{options.name} has no array '{name}': it holds {', '.join(sorted(arrays))}")
    if len(arrays["images"]) == 0:
        raise DataError(f"{options.name}: array 'images' is empty")
    images, labels = as_samples(arrays["images"], f"{options.name}: images"), as_labels(arrays["labels"])
    if len(images) != len(labels):
        raise DataError(f"{options.name}: {len(images)} images but {len(labels)} labels: give every image one")
    train: Rows
    if "test_images" in arrays and "test_labels" in arrays:
        train = np.arange(len(images), dtype=np.int64)
        test_images = as_samples(arrays["test_images"], f"{options.name}: test_images")
        if test_images.shape[1:] != images.shape[1:] or test_images.dtype != images.dtype:
            raise DataError(
                f"{options.name}: test_images are {test_images.dtype} of shape {test_images.shape[1:]}, "
                f"images {images.dtype} of shape {images.shape[1:]}: they must be alike"
            )
        images = np.concatenate([images, test_images])
        labels = np.concatenate([labels, as_labels(arrays["test_labels"])])
        test = np.arange(len(train), len(images), dtype=np.int64)
    else:
        for name in ("ids", "site", "group"):
            if name in arrays and len(arrays[name]) < len(images):
                raise DataError(
                    f"{options.name}: array '{name}' has {len(arrays[name])} entries for {len(images)} images: "
                    "give every image one"
                )
        rng = numpy_generator(options.split_seed, "arrays", "split")
        train, test = split(labels, options.test_fraction, rng, arrays.get("group"))
    mean, std = channel_statistics(images, train)
    ids = _column(arrays.get("ids"), len(images))
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
        ids=ids,
        groups=_column(arrays.get("group"), len(images)),
        sites=_column(arrays.get("site"), len(images)),
        given=None if "given" not in arrays else _extended(as_labels(arrays["given"]), labels),
        trusted=options.trusted,
        notes=() if ids is None else tuple(repeated_notes([name for name in ids.tolist() if name])),
    )


def as_samples(values: NDArray[Any], name: str) -> NDArray[Any]:
    """Pictures `[n, channels, height, width]` as uint8 or float32, rows of features as float32; the rest is refused.

    Whole numbers of more than 8 bits have no known range: scaling them in silence would make pictures black.
    """
    images = channels_first(np.asarray(values))
    if images.dtype == np.uint8 and images.ndim == 4:
        return images
    if images.dtype.kind not in "biuf":
        raise DataError(f"{name} hold {images.dtype}, not numbers")
    if images.ndim == 4 and images.dtype.kind != "f":
        high = int(images.max())
        scaled = "values.astype('uint8')" if high < 256 else f"(values / {high} * 255).astype('uint8')"
        raise DataError(
            f"{name} are {images.dtype} with values from {int(images.min())} to {high}: "
            f"save them as uint8, e.g. {scaled}, or as floats that are normalised already"
        )
    bad = ~np.isfinite(images)
    if bad.any():
        row = int(np.argwhere(bad)[0][0])
        raise DataError(
            f"{name} hold {int(bad.sum())} values that are NaN or infinite, first at sample {row}: "
            "fill them in or leave those samples out"
        )
    with np.errstate(over="ignore"):
        result = images.astype(np.float32)
    if not np.isfinite(result).all():
        raise DataError(f"{name} hold values beyond the range of 32-bit floats: scale them down")
    return result


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
        raise DataError(f"given labels of shape {given.shape} do not belong to labels of shape {labels.shape}")
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
