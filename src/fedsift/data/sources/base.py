"""The interface of a data source: where samples lie, and `load`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedsift.core.errors import DataError
from fedsift.core.randomness import numpy_generator
from fedsift.core.ranges import Count, RangeChecked
from fedsift.core.registry import Registry
from fedsift.data.dataset import Dataset, Labels, Rows
from fedsift.data.splits import split

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Source(RangeChecked):
    """Base of all sources. Subclasses add their parameters as fields and say how a dataset is loaded."""

    summary: ClassVar[str] = ""
    kind: ClassVar[str] = "multiclass"
    """"multiclass", "multilabel" or "either"."""
    bundled: ClassVar[bool] = False
    """True when the data come with an installed dependency: nothing to fetch."""
    licence: ClassVar[str] = ""
    own: ClassVar[bool] = False
    """True for a user's own data: their labels are not the truth, and their site column means the sites."""
    folder: ClassVar[str] = ""
    """Its folder below the data folders, for sources that look there when no path is given."""

    train_limit: Count = field(default=0, kw_only=True)
    """Use so many training samples only, in each class's proportion (0: all)."""
    test_limit: Count = field(default=0, kw_only=True)
    """Use so many test samples only (0: all)."""

    def __post_init__(self) -> None:
        for part in fields(self):
            value = getattr(self, part.name)
            if isinstance(value, Path):
                object.__setattr__(self, part.name, value.expanduser())

    @classmethod
    def about(cls) -> str:
        """One line for listings."""
        return cls.summary

    def load(self) -> Dataset:
        """The dataset, cut down to the limits."""
        dataset = self.read()
        train = _limited(dataset.labels, dataset.train, self.train_limit, "train")
        test = _limited(dataset.labels, dataset.test, self.test_limit, "test")
        return replace(dataset, train=train, test=test)

    def read(self) -> Dataset:
        """The whole dataset."""
        raise TypeError(f"{type(self).__name__} does not say how it is read")

    def usual(self) -> Mapping[str, Mapping[str, Any]]:
        """Tables that a study of these data has unless it says otherwise, e.g. `{"noise": {"name": "as-given"}}`."""
        return {}


def _plugged_in(entry: EntryPoint) -> type[Source]:
    from fedsift.data.sources.plugins import source_of  # here, for it is made of sources itself

    return source_of(entry)


sources: Registry[type[Source]] = Registry("dataset", base=Source, group="fedsift.datasets", adapt=_plugged_in)


def _limited(labels: Labels, rows: Rows, limit: int, side: str) -> Rows:
    """At most `limit` rows, stratified and always the same ones."""
    if limit <= 0 or limit >= len(rows):
        return rows
    rng = numpy_generator("limit", side, limit)
    _, chosen = split(labels[rows], limit / len(rows), rng)
    return rows[chosen]


def normalisation(images: NDArray[Any], rows: Rows, statistics: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation of each channel: of these rows ("data"), or the usual ones of ImageNet."""
    if statistics == "imagenet" and images.ndim == 4:
        channels = images.shape[1]
        return (IMAGENET_MEAN, IMAGENET_STD) if channels == 3 else ((0.449,), (0.226,))
    return channel_statistics(images, rows)


def channel_statistics(images: NDArray[Any], rows: Rows) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel over the given rows, on the scale 0..1 for uint8 images.

    images: `[n, channels, height, width]`; read a slice at a time, so that memory stays one copy.
    Feature rows `[n, features]` are left as they are (mean 0, std 1).
    """
    if images.ndim != 4:
        return (0.0,), (1.0,)
    whole = images.dtype == np.uint8
    total = np.zeros(images.shape[1])
    squares = np.zeros(images.shape[1])
    for start in range(0, len(rows), 512):
        part = images[rows[start : start + 512]].astype(np.uint32 if whole else np.float64)
        # Sums of whole numbers are exact, so the same pixels give the same numbers in any order.
        total += part.sum(axis=(0, 2, 3), dtype=np.uint64 if whole else np.float64)
        squares += np.square(part).sum(axis=(0, 2, 3), dtype=np.uint64 if whole else np.float64)
    count = max(1, len(rows) * images.shape[2] * images.shape[3])
    scale = 255.0 if whole else 1.0
    mean = total / count / scale
    std = np.sqrt(np.maximum(squares / count / scale**2 - np.square(mean), 1e-12))
    return tuple(round(float(m), 6) for m in mean), tuple(max(round(float(s), 6), 1e-3) for s in std)


def channels_first(images: NDArray[Any]) -> NDArray[Any]:
    """`[n, h, w]` or `[n, h, w, c]` to `[n, c, h, w]`; `[n, c, h, w]` and `[n, features]` stay."""
    if images.ndim == 3:
        return images[:, None]
    if images.ndim == 4 and images.shape[-1] in (1, 3, 4) and images.shape[1] not in (1, 3, 4):
        return np.ascontiguousarray(images.transpose(0, 3, 1, 2))
    if images.ndim not in (2, 4):
        raise DataError(f"images of shape {images.shape} are neither pictures nor rows of features")
    return images


def as_labels(labels: NDArray[Any]) -> Labels:
    """int64 `[n]`, or `[n, K]` of zeros and ones; `[n, 1]` is flattened."""
    array = np.asarray(labels)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim not in (1, 2):
        raise DataError(f"labels of shape {array.shape} are neither [n] nor [n, K]")
    if array.dtype.kind not in "biuf" or (array.dtype.kind == "f" and (array != np.round(array)).any()):
        raise DataError("labels must be whole numbers; give class names in `classes`")
    result = array.astype(np.int64)
    if result.ndim == 2 and not np.isin(result, (0, 1)).all():
        raise DataError("labels [n, K] must be zeros and ones, one column a class")
    return result


def class_names(labels: Labels, names: Sequence[str] | None = None) -> tuple[str, ...]:
    """Given names, or the numbers as names."""
    if names:
        return tuple(str(name) for name in names)
    count = labels.shape[1] if labels.ndim == 2 else int(labels.max(initial=0)) + 1
    return tuple(str(k) for k in range(count))
