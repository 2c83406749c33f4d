"""Data source `clothing1m` in its official layout: a million pictures with labels from the web, and a clean test set.

Xiao et al.: Learning from Massive Noisy Labeled Data, CVPR 2015.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np

from fedsift.core.errors import DataError
from fedsift.core.randomness import numpy_generator
from fedsift.data.csv_tables import Table
from fedsift.data.dataset import Dataset
from fedsift.data.download import find
from fedsift.data.sources.base import sources
from fedsift.data.sources.medical import PictureSource

CLASSES = (
    "T-Shirt",
    "Shirt",
    "Knitwear",
    "Chiffon",
    "Sweater",
    "Hoodie",
    "Windbreaker",
    "Jacket",
    "Downcoat",
    "Suit",
    "Shawl",
    "Dress",
    "Vest",
    "Underwear",
)


@sources.register("clothing1m")
@dataclass(frozen=True)
class Clothing1M(PictureSource):
    """1,000,000 training pictures with noisy labels and 10,526 test pictures with clean ones, 14 classes.

    Nobody knows the truth of the training labels, so there is no truth to measure against.
    """

    summary: ClassVar[str] = "1,000,000 web pictures of clothes with real noise, 14 classes, clean test set"
    licence: ClassVar[str] = "research use by agreement with the authors"
    folder: ClassVar[str] = "clothing1m"

    size: int = 224
    """Side of the decoded pictures in pixels; 224 needs 150 GB of cache for all, so see `a_class`."""
    a_class: int = 0
    """Use so many training pictures of each class, drawn at random (0: all)."""

    def read(self) -> Dataset:
        root = find(self.folder, self.path, "ask its authors for Clothing1M")
        lists = root / "annotations" if (root / "annotations").is_dir() else root
        table = self._table(lists)
        folder = self.pictures(root, classes=CLASSES, trusted=False)
        return replace(folder.read_listing(folder.listing(table)), name="clothing1m")

    def _table(self, lists: Path) -> Table:
        table: Table = {name: [] for name in ("id", "path", "label", "split")}
        for side, keys, labels in (
            ("train", "noisy_train_key_list.txt", "noisy_label_kv.txt"),
            ("test", "clean_test_key_list.txt", "clean_label_kv.txt"),
        ):
            known = _pairs(lists / labels)
            names = [name for name in _lines(lists / keys) if name in known]
            if side == "train":
                names = self._some(names, known)
            table["id"] += names
            table["path"] += names
            table["label"] += [CLASSES[known[name]] for name in names]
            table["split"] += [side] * len(names)
        return table

    def _some(self, names: list[str], label: dict[str, int]) -> list[str]:
        """At most `a_class` of each class, in the list's order."""
        if self.a_class <= 0:
            return names
        order = numpy_generator(self.split_seed, "clothing1m", "subset").permutation(len(names))
        taken: Counter[int] = Counter()
        kept = []
        for k in order:
            if taken[label[names[k]]] < self.a_class:
                taken[label[names[k]]] += 1
                kept.append(k)
        return [names[k] for k in np.sort(kept)]


def _lines(path: Path) -> list[str]:
    try:
        return [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except FileNotFoundError:
        raise DataError(f"there is no {path}") from None


def _pairs(path: Path) -> dict[str, int]:
    """Lines of `images/0/...jpg 5`."""
    pairs = {}
    for number, line in enumerate(_lines(path), start=1):
        name, _, value = line.rpartition(" ")
        if not value.isdigit() or int(value) >= len(CLASSES):
            raise DataError(f"{path}, line {number}: '{line}' is not a picture and a class number")
        pairs[name] = int(value)
    return pairs
