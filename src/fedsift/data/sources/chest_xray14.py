"""Data source `chestxray14`: the official tables and PNGs, or one .npz with the same content.

Wang et al., CVPR 2017. FedMLP uses the PA views and the eight most frequent findings, 7:3.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fedsift.core.errors import ConfigError, DataError
from fedsift.core.randomness import numpy_generator
from fedsift.data.csv_tables import Table, column, read_table
from fedsift.data.dataset import Dataset
from fedsift.data.download import find, first
from fedsift.data.input_files import read_arrays
from fedsift.data.sources.base import as_labels, channels_first, normalisation, sources
from fedsift.data.sources.medical import PictureSource
from fedsift.data.sources.npz import keep_classes
from fedsift.data.splits import split

FINDINGS = (
    "Atelectasis",
    "Cardiomegaly",
    "Effusion",
    "Infiltration",
    "Mass",
    "Nodule",
    "Pneumonia",
    "Pneumothorax",
    "Consolidation",
    "Edema",
    "Emphysema",
    "Fibrosis",
    "Pleural_Thickening",
    "Hernia",
)


def shrunk(images: NDArray[np.uint8], blocks: int) -> NDArray[np.uint8]:
    """`[n, c, h, w]` with every block of `blocks` x `blocks` pixels averaged, rounded half up."""
    if blocks == 1:
        return images
    n, channels, height, width = images.shape
    if blocks < 1 or height % blocks or width % blocks:
        raise ConfigError(f"data.shrink = {blocks}: {height} x {width} pixels do not divide into such blocks")
    sums = np.zeros((n, channels, height // blocks, width // blocks), np.uint32)
    for row in range(blocks):
        for place in range(blocks):
            sums += images[:, :, row::blocks, place::blocks]
    area = blocks * blocks
    return ((sums + area // 2) // area).astype(np.uint8)


@sources.register("chestxray14")
@dataclass(frozen=True)
class ChestXray14(PictureSource):
    """Chest X-rays with 14 findings, several an image; split by patient, never one on both sides."""

    summary: ClassVar[str] = "chest X-rays, 14 findings, multi-label, split by patient (NIH ChestX-ray14)"
    kind: ClassVar[str] = "multilabel"
    licence: ClassVar[str] = "NIH: free use with credit; cite Wang 2017"
    folder: ClassVar[str] = "nih_cxr14"

    size: int = 64
    """Side of the decoded pictures in pixels; an .npz keeps its own."""
    shrink: int = 1
    """Average blocks of so many pixels each way into one: 2 makes 64 pixels 32."""
    findings: int = 8
    """Keep so many of the most frequent findings (0: all 14)."""
    classes: tuple[str, ...] = ()
    """Instead: these findings, in this order."""
    channels: Literal[1, 3] = 1
    """3 repeats the grey value, for networks whose weights come from colour pictures."""
    view: Literal["PA", "AP", "all"] = "PA"
    """Which views to use."""
    test_fraction: float = 0.3
    """Share kept for testing, whole patients."""
    official_split: bool = False
    """Use train_val_list.txt and test_list.txt instead."""
    statistics: Literal["data", "imagenet"] = "data"
    """Mean and deviation for normalising."""

    def read(self) -> Dataset:
        root = find("nih_cxr14", self.path, "get ChestX-ray14 from https://nihcc.app.box.com/v/ChestXray-NIHCC")
        packed = root if root.is_file() else first(root, "*.npz")
        dataset = self._packed(packed) if packed is not None else self._official(root)
        images = shrunk(dataset.images, self.shrink)
        dataset = replace(dataset, images=np.repeat(images, 3, axis=1) if self.channels == 3 else images)
        if not self.official_split:
            rng = numpy_generator(self.split_seed, "chestxray14", "split")
            rows = np.sort(np.concatenate([dataset.train, dataset.test]))
            groups = None if dataset.groups is None else dataset.groups[rows]
            train, test = split(dataset.labels[rows], self.test_fraction, rng, groups)
            dataset = replace(dataset, train=rows[train], test=rows[test])
        mean, std = normalisation(dataset.images, dataset.train, self.statistics)
        return keep_classes(replace(dataset, mean=mean, std=std), self._chosen(dataset))

    def _chosen(self, dataset: Dataset) -> tuple[str, ...]:
        """The named findings, or the most frequent ones, most frequent first."""
        if self.classes or self.findings <= 0:
            return self.classes
        if self.findings > dataset.n_classes:
            raise ConfigError(f"chestxray14 has {dataset.n_classes} findings, not {self.findings}")
        rows = np.concatenate([dataset.train, dataset.test])
        order = np.argsort(-dataset.labels[rows].sum(axis=0), kind="stable")[: self.findings]
        return tuple(dataset.classes[c] for c in order)

    def _packed(self, path: Path) -> Dataset:
        """`images` `[n, h, w]`, `labels` `[n, 14]`, `classes`, `patient`, `names`, `view`."""
        arrays = read_arrays(path)
        for name in ("images", "labels", "classes", "patient"):
            if name not in arrays:
                raise DataError(f"{path} has no array '{name}': it holds {', '.join(sorted(arrays))}")
        if self.official_split:
            raise ConfigError("chestxray14: an .npz does not hold the official lists; use official_split = false")
        images = channels_first(arrays["images"])
        rows = np.arange(len(images), dtype=np.int64)
        if self.view != "all" and "view" in arrays:
            rows = np.flatnonzero(arrays["view"] == self.view)
        return Dataset(
            name="chestxray14",
            images=images,
            labels=as_labels(arrays["labels"]),
            classes=tuple(str(name) for name in arrays["classes"]),
            train=rows,
            test=rows[:0],
            multilabel=True,
            ids=arrays["names"].astype(str) if "names" in arrays else None,
            groups=arrays["patient"].astype(str),
        )

    def _official(self, root: Path) -> Dataset:
        """Data_Entry_2017*.csv, pictures in folders or zips, and the official lists."""
        path = first(root, "Data_Entry_2017*.csv")
        if path is None:
            raise DataError(f"there is neither an .npz nor Data_Entry_2017.csv in {root}")
        table = read_table(path)
        views = column(table, "View Position", path)
        keep = [row for row, view in enumerate(views) if self.view in ("all", view)]
        chosen: Table = {
            name: [column(table, name, path)[row] for row in keep]
            for name in ("Image Index", "Finding Labels", "Patient ID")
        }
        if self.official_split:
            listed = set((root / "test_list.txt").read_text(encoding="utf-8").split())
            chosen["split"] = ["test" if name in listed else "train" for name in chosen["Image Index"]]
        folder = self.pictures(
            root,
            id_column="Image Index",
            label_column="Finding Labels",
            separator="|",
            group_column="Patient ID",
            classes=FINDINGS,
            channels=1,
        )
        return replace(folder.read_listing(folder.listing(chosen)), name="chestxray14")
