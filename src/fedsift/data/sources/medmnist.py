"""Data source `medmnist`: any of its .npz files.

Yang et al.: MedMNIST v2, Scientific Data 2023.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from fedsift.core.errors import DataError
from fedsift.data.dataset import Dataset
from fedsift.data.download import find
from fedsift.data.sources.base import (
    Source,
    as_labels,
    channel_statistics,
    channels_first,
    class_names,
    sources,
)
from fedsift.data.sources.npz import read_arrays


@sources.register("medmnist")
@dataclass(frozen=True)
class MedMnist(Source):
    """One MedMNIST dataset (two-dimensional ones): pathmnist, dermamnist, chestmnist, bloodmnist_64, ..."""

    summary: ClassVar[str] = "any two-dimensional MedMNIST dataset from its .npz file"
    kind: ClassVar[str] = "either"
    licence: ClassVar[str] = "CC BY 4.0 (DermaMNIST: CC BY-NC 4.0)"
    folder: ClassVar[str] = "medmnist"

    dataset: str = "dermamnist"
    """Which one: the name of the file without `.npz`."""
    path: Path | None = None
    """The file, or the folder that holds it (default: `medmnist` in the data folders)."""
    classes: tuple[str, ...] = ()
    """Class names in the order of the label numbers (the files do not carry them)."""
    validation: Literal["train", "test", "drop"] = "train"
    """Where the validation images go."""

    def read(self) -> Dataset:
        where = find(self.folder, self.path, f"run `fedsift data get {self.dataset}`")
        arrays = read_arrays(where if where.is_file() else where / f"{self.dataset}.npz")
        sides = [side for side in ("train", "val", "test") if f"{side}_images" in arrays]
        if "train" not in sides:
            raise DataError(f"{where} has no train_images: it is not a MedMNIST file")
        images = channels_first(np.concatenate([arrays[f"{side}_images"] for side in sides]))
        labels = as_labels(np.concatenate([arrays[f"{side}_labels"] for side in sides]))
        place = {"train": "train", "val": self.validation, "test": "test"}
        of = np.concatenate([np.full(len(arrays[f"{side}_labels"]), place[side]) for side in sides])
        train, test = np.flatnonzero(of == "train"), np.flatnonzero(of == "test")
        mean, std = channel_statistics(images, train)
        return Dataset(
            name=self.dataset,
            images=images,
            labels=labels,
            classes=class_names(labels, self.classes),
            train=train,
            test=test,
            multilabel=labels.ndim == 2,
            mean=mean,
            std=std,
        )
