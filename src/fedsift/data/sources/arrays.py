"""The data source `arrays`: a user's NumPy arrays, passed in Python; no file is read or written."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedsift.core.errors import DataError
from fedsift.data.dataset import Dataset, Labels
from fedsift.data.sources.base import Source, as_labels, sources
from fedsift.data.sources.npz import ArrayOptions, from_arrays

LEVELS = 255.0


@sources.register("arrays")
@dataclass(frozen=True, init=False)
class Arrays(Source):
    """Samples and labels that are in memory.

    images: pictures `[N, C, H, W]`, uint8 or float in 0..1, or rows of features `[N, F]` (a table, embeddings).
    labels: class numbers `[N]`, class names `[N]`, or zeros and ones `[N, K]` for multi-label data.
    site: the site of each sample; then those are the federation's sites.
    true: the true labels where they are known, for measuring; without them nobody takes `labels` for the truth.

    A run's folder keeps no samples, only what they are recognised by: `samples`, `shape`, `digest`.
    """

    summary: ClassVar[str] = "your own arrays in Python: fedsift.Arrays(images, labels, site=...)"
    kind: ClassVar[str] = "either"
    own: ClassVar[bool] = True

    samples: int = 0
    """How many samples there are; written by a run."""
    shape: tuple[int, ...] = ()
    """Shape of one sample; written by a run."""
    digest: str = ""
    """A fingerprint of the arrays; written by a run."""
    held: Dataset | None = field(default=None, init=False, repr=False, compare=False)

    def __init__(
        self,
        images: ArrayLike | None = None,
        labels: ArrayLike | None = None,
        *,
        site: ArrayLike | None = None,
        test_images: ArrayLike | None = None,
        test_labels: ArrayLike | None = None,
        true: ArrayLike | None = None,
        classes: Sequence[str] | None = None,
        ids: ArrayLike | None = None,
        groups: ArrayLike | None = None,
        test_fraction: float = 0.0,
        split_seed: int = 0,
        title: str = "arrays",
        train_limit: int = 0,
        test_limit: int = 0,
        samples: int = 0,
        shape: tuple[int, ...] = (),
        digest: str = "",
    ) -> None:
        held = None
        if images is not None:
            columns = {"site": site, "ids": ids, "group": groups}
            parts = _checked(images, labels, test_images, test_labels, true, classes, columns)
            options = ArrayOptions(title, test_fraction, split_seed, trusted=true is not None)
            held = from_arrays(parts.arrays, options)
            held = replace(held, notes=(*held.notes, *parts.notes))
            samples, shape, digest = len(held.images), held.shape, _digest_of(held)
        elif labels is not None or test_images is not None:
            raise DataError("Arrays needs images: fedsift.Arrays(images, labels, ...)")
        values = {
            "samples": samples, "shape": tuple(shape), "digest": digest, "held": held,
            "train_limit": train_limit, "test_limit": test_limit,
        }  # fmt: skip
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def read(self) -> Dataset:
        if self.held is None:
            raise DataError(
                f"these data ({self.samples} samples of shape {self.shape}) were arrays in a Python session and "
                "are in no file: go on there with fedsift.resume(run, data=fedsift.Arrays(...))"
            )
        return self.held

    def usual(self) -> Mapping[str, Mapping[str, Any]]:
        """Labels as given where the true ones are known beside them."""
        known = self.held is not None and self.held.given is not None
        return {"noise": {"name": "as-given"}} if known else {}


@dataclass(frozen=True)
class _Parts:
    arrays: dict[str, NDArray[Any]]
    notes: tuple[str, ...]


def _checked(
    images: ArrayLike,
    labels: ArrayLike | None,
    test_images: ArrayLike | None,
    test_labels: ArrayLike | None,
    true: ArrayLike | None,
    classes: Sequence[str] | None,
    columns: Mapping[str, ArrayLike | None],
) -> _Parts:
    """Arrays under the names that an .npz would give them, every one checked."""
    if labels is None:
        raise DataError("Arrays needs labels: fedsift.Arrays(images, labels, ...)")
    if (test_images is None) != (test_labels is None):
        raise DataError("give test_images and test_labels together, or neither")
    arrays: dict[str, NDArray[Any]] = {"images": as_samples(images, "images")}
    count = len(arrays["images"])
    named: dict[str, tuple[ArrayLike | None, int]] = {"labels": (labels, count)}
    if test_images is not None:
        arrays["test_images"] = as_samples(test_images, "test_images")
        if arrays["test_images"].shape[1:] != arrays["images"].shape[1:]:
            raise DataError(
                f"test_images are {arrays['test_images'].shape[1:]}, images {arrays['images'].shape[1:]} each: "
                "both need the same shape"
            )
        named["test_labels"] = (test_labels, len(arrays["test_images"]))
    if true is not None:
        named["true"] = (true, count)
    names, numbers = _numbered({key: np.asarray(value) for key, (value, _) in named.items()}, classes)
    for key, array in numbers.items():
        arrays[key] = _checked_labels(array, key, named[key][1], names)
    if true is not None:
        arrays["given"], arrays["labels"] = arrays["labels"], arrays.pop("true")
    arrays["classes"] = np.array(names)
    for key, value in columns.items():
        if value is not None:
            arrays[key] = _column(value, key, count)
    rounded = _rounded(images) or (test_images is not None and _rounded(test_images))
    note = "pictures of fractions were rounded to 256 levels, as pictures are stored"
    return _Parts(arrays, (note,) if rounded else ())


def as_samples(values: ArrayLike, name: str = "images") -> NDArray[Any]:
    """Pictures `[N, C, H, W]` as uint8 (fractions of 0..1 become 256 levels), or rows `[N, F]` as float32."""
    array = _array(values, name)
    if array.ndim not in (2, 4):
        hint = ": add the channel, images[:, None]" if array.ndim == 3 else ""
        raise DataError(f"{name} of shape {array.shape} are neither pictures [N, C, H, W] nor rows [N, F]{hint}")
    if len(array) == 0 or 0 in array.shape:
        raise DataError(f"{name} of shape {array.shape} hold nothing")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        row = int(np.flatnonzero(~np.isfinite(array).reshape(len(array), -1).all(axis=1))[0])
        raise DataError(f"{name}: sample {row} holds a value that is no number: fill it in or leave the sample out")
    if array.ndim == 2:
        if array.dtype.kind not in "biuf":
            raise DataError(f"{name} are of type {array.dtype}: rows of features must be numbers")
        with np.errstate(over="ignore"):
            rows = array.astype(np.float32)
        if not np.isfinite(rows).all():
            raise DataError(f"{name} hold numbers beyond float32: scale the features first")
        return rows
    if array.shape[1] not in (1, 3, 4) and array.shape[-1] in (1, 3, 4):
        raise DataError(f"{name} of shape {array.shape} have their channels last: use images.transpose(0, 3, 1, 2)")
    return _levels(array, name)


def _levels(array: NDArray[Any], name: str) -> NDArray[np.uint8]:
    if array.dtype == np.uint8:
        return np.ascontiguousarray(array)
    if array.dtype.kind != "f":
        raise DataError(f"{name} are of type {array.dtype}: give uint8, or fractions of 0..1 as float")
    low, high = float(array.min()), float(array.max())
    if low < 0.0 or high > 1.0:
        fix = f"use images / {high:g}" if low >= 0.0 else "undo their normalisation, which is done later"
        raise DataError(f"{name} lie in {low:g}..{high:g}, floating-point pictures must lie in 0..1: {fix}")
    return np.rint(array * LEVELS).astype(np.uint8)


def _rounded(values: ArrayLike) -> bool:
    """Whether storing as 256 levels changes the pictures by more than rounding in float32 does."""
    array = _array(values, "images")
    if array.ndim != 4 or array.dtype.kind != "f":
        return False
    return bool(np.abs(array * LEVELS - np.rint(array * LEVELS)).max() > 1e-3)


def _array(values: Any, name: str) -> NDArray[Any]:
    """NumPy's view of an array, a list or a tensor of any library."""
    if hasattr(values, "detach"):
        values = values.detach().cpu()
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise DataError(f"{name} are no array: {error}") from None
    if array.dtype == object:
        raise DataError(f"{name} are of different shapes or no numbers: stack them into one array first")
    return array


def _numbered(
    labels: Mapping[str, NDArray[Any]], classes: Sequence[str] | None
) -> tuple[tuple[str, ...], dict[str, NDArray[Any]]]:
    """Class names, and the labels as numbers; labels that are names are looked up among the classes."""
    words = {key: array for key, array in labels.items() if array.dtype.kind in "UO" and array.ndim == 1}
    names = tuple(str(name) for name in classes) if classes is not None else ()
    if len(set(names)) < len(names):
        raise DataError(f"classes name '{next(n for n in names if names.count(n) > 1)}' twice")
    if words:
        if not names:
            names = tuple(sorted({str(name) for array in words.values() for name in array}))
        place = {name: number for number, name in enumerate(names)}
        for key, array in words.items():
            unknown = next((str(name) for name in array if str(name) not in place), None)
            if unknown is not None:
                raise DataError(f"{key}: '{unknown}' is not among the classes {', '.join(names)}")
        named = {key: np.array([place[str(name)] for name in array], np.int64) for key, array in words.items()}
        return names, {**labels, **named}
    if not names:
        widest = max((array.shape[1] for array in labels.values() if array.ndim == 2), default=0)
        numbered = [array for array in labels.values() if array.ndim == 1 and array.size and array.dtype.kind in "biu"]
        highest = max((int(array.max()) for array in numbered), default=0)
        names = tuple(str(k) for k in range(widest or highest + 1))
    return names, dict(labels)


def _checked_labels(values: NDArray[Any], name: str, count: int, classes: tuple[str, ...]) -> Labels:
    try:
        labels = as_labels(values)
    except DataError as error:
        raise DataError(f"{name}: {error}") from None
    if len(labels) != count:
        raise DataError(f"{name}: {len(labels)} labels for {count} samples")
    if labels.ndim == 2:
        if labels.shape[1] != len(classes):
            raise DataError(f"{name} have {labels.shape[1]} columns for {len(classes)} classes")
        return labels
    wrong = np.flatnonzero((labels < 0) | (labels >= len(classes)))
    if len(wrong):
        row = int(wrong[0])
        more = f" ({len(wrong) - 1} more)" if len(wrong) > 1 else ""
        raise DataError(
            f"{name}: sample {row} has label {labels[row]}{more}, outside 0..{len(classes) - 1}: "
            "correct it, or name all classes in `classes`"
        )
    return labels


def _column(values: ArrayLike, name: str, count: int) -> NDArray[np.str_]:
    array = np.asarray(values)
    if array.ndim != 1 or len(array) != count:
        raise DataError(f"{name} has the shape {array.shape}, not one entry for each of the {count} samples")
    text = array.astype(str)
    if name == "ids" and len(set(text.tolist())) < count:
        seen, number = np.unique(text, return_counts=True)
        raise DataError(f"ids: '{seen[number > 1][0]}' names {number[number > 1][0]} samples: ids must differ")
    if name == "site" and (text == "").any():
        raise DataError(f"site: sample {int(np.flatnonzero(text == '')[0])} names no site")
    return text


def _digest_of(data: Dataset) -> str:
    hasher = hashlib.blake2b(repr((data.images.shape, data.classes)).encode(), digest_size=16)
    for array in (data.labels, data.given, data.train, data.test):
        hasher.update(b"-" if array is None else np.ascontiguousarray(array).tobytes())
    for column in (data.sites, data.groups, data.ids):
        hasher.update("\x1f".join(map(str, () if column is None else column)).encode())
    for start in range(0, len(data.images), 4096):
        hasher.update(np.ascontiguousarray(data.images[start : start + 4096]).data)
    return hasher.hexdigest()
