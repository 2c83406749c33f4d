"""Data sources of the papers' medical sets: HAM10000, ISIC 2019 and ICH, each a folder of pictures and tables.

HAM10000 (Tschandl 2018), ISIC 2019, ChestX-ray14 (Wang 2017), ICH (RSNA 2019, as FedNoRo lists it).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from fedsift.core.errors import DataError
from fedsift.data.csv_tables import Table, column, read_table
from fedsift.data.dataset import Dataset
from fedsift.data.download import find, first
from fedsift.data.input_files import read_arrays
from fedsift.data.sources.base import (
    Source,
    as_labels,
    channel_statistics,
    channels_first,
    class_names,
    sources,
)
from fedsift.data.sources.folder import FolderSource

ICH = ("epidural", "intraparenchymal", "intraventricular", "subarachnoid", "subdural")
ISIC = ("MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC")


@dataclass(frozen=True)
class PictureSource(Source):
    """What these sources share."""

    path: Path | None = None
    """The folder with the tables and the pictures, in folders or zips (default: in the data folders)."""
    size: int = 64
    """Side of the decoded pictures in pixels."""
    statistics: Literal["data", "imagenet"] = "imagenet"
    """Mean and deviation for normalising: of these pictures, or ImageNet's."""
    split_seed: int = 0
    """Seed of a split that the source does not bring itself; the study's seed does not move it."""
    cache: Path | None = None
    """Where decoded pictures are kept (default: the user's cache folder)."""

    def pictures(self, root: Path, *, trusted: bool = True, **columns: Any) -> FolderSource:
        """The folder, read with what a person set here and with `columns`, what its tables call things."""
        return FolderSource(
            path=root,
            size=self.size,
            statistics=self.statistics,
            split_seed=self.split_seed,
            trusted=trusted,
            cache=self.cache,
            **columns,
        )


@sources.register("ham10000")
@dataclass(frozen=True)
class Ham10000(PictureSource):
    """10,015 dermatoscopic images in 7 classes from four sources, which are its natural sites.

    The split is that of a table with a `split` column, else one by lesion: no lesion is on both sides.
    """

    summary: ClassVar[str] = "10,015 skin lesions, 7 classes, four natural sites, split by lesion"
    licence: ClassVar[str] = "CC BY-NC 4.0; cite Tschandl 2018"
    folder: ClassVar[str] = "ham10000"

    test_fraction: float = 0.2
    """Share kept for testing, whole lesions, when no table gives a split."""
    own_split: bool = False
    """Split anew by `test_fraction` even if a table gives a split."""

    def read(self) -> Dataset:
        root = find(self.folder, self.path, "get HAM10000 from https://doi.org/10.7910/DVN/DBW86T")
        metadata = first(root, "HAM10000_metadata*")
        table = metadata if self.own_split else first(root, "*split*.csv") or metadata
        if table is None:
            raise DataError(f"there is no HAM10000_metadata.csv in {root}")
        folder = self.pictures(
            root,
            table=table,
            id_column="image_id",
            label_column="dx",
            site_column="dataset",
            group_column="lesion_id",
            test_fraction=self.test_fraction,
        )
        return replace(folder.load(), name="ham10000")


@sources.register("isic2019")
@dataclass(frozen=True)
class Isic2019(PictureSource):
    """25,331 dermatoscopic images in 8 classes; 7:3 as in FedNoRo, whole lesions where the metadata name
    them."""

    summary: ClassVar[str] = "25,331 skin lesions, 8 classes (ISIC 2019 training set)"
    licence: ClassVar[str] = "CC BY-NC 4.0"
    folder: ClassVar[str] = "isic2019"

    size: int = 224
    """Side of the decoded pictures in pixels."""
    test_fraction: float = 0.3
    """Share kept for testing."""

    def read(self) -> Dataset:
        root = find(self.folder, self.path, "get ISIC 2019 from https://challenge.isic-archive.com/data/#2019")
        truth = first(root, "*GroundTruth*.csv")
        if truth is None:
            raise DataError(f"there is no ISIC_2019_Training_GroundTruth.csv in {root}")
        table = read_table(truth)
        metadata = first(root, "*Metadata*.csv")
        if metadata is not None:
            table["lesion"] = lesions(read_table(metadata), column(table, "image", truth))
        folder = self.pictures(
            root,
            id_column="image",
            label_columns=ISIC,
            one_hot=True,
            unknown="drop",
            group_column="lesion" if metadata is not None else "",
            test_fraction=self.test_fraction,
        )
        return replace(folder.read_listing(folder.listing(table)), name="isic2019")


def lesions(metadata: Table, images: list[str]) -> list[str]:
    """The lesion of each image; an image without one is its own."""
    known = dict(zip(metadata["image"], metadata["lesion_id"]))
    return [known.get(image) or image for image in images]


@sources.register("ich")
@dataclass(frozen=True)
class Ich(PictureSource):
    """CT slices with bleeding in 5 subtypes, from FedNoRo's lists `train.csv` and `test.csv`.

    Each list has the picture's name in its first column and one 0/1 column a subtype.
    """

    summary: ClassVar[str] = "CT slices with bleeding in the head, 5 subtypes, from two CSV lists and PNGs"
    kind: ClassVar[str] = "either"
    licence: ClassVar[str] = "RSNA 2019 challenge terms"
    folder: ClassVar[str] = "ich"

    size: int = 224
    """Side of the decoded pictures in pixels."""
    multilabel: bool = False
    """All subtypes of a slice (FedMLP) instead of the slices with exactly one (FedNoRo)."""
    channels: int = 3
    """3 for the usual three windows, 1 for grey."""

    def read(self) -> Dataset:
        root = find(self.folder, self.path, "bring the RSNA 2019 slices and the lists train.csv and test.csv")
        table: Table = {name: [] for name in ("id", "split", *ICH)}
        for side in ("train", "test"):
            part = read_table(root / f"{side}.csv")
            names = next(iter(part.values()))
            table["id"] += names
            table["split"] += [side] * len(names)
            for subtype in ICH:
                table[subtype] += column(part, subtype, root / f"{side}.csv")
        folder = self.pictures(
            root,
            label_columns=ICH,
            one_hot=not self.multilabel,
            unknown="drop",
            channels=self.channels,
        )
        return replace(folder.read_listing(folder.listing(table)), name="ich")


# MedMNIST
# ------------------------------------------------------------------------------


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
