"""Real human labels for CIFAR: CIFAR-10N and CIFAR-100N.

Wei et al.: Learning with Noisy Labels Revisited, ICLR 2022.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fedsift.core.errors import DataError
from fedsift.data.dataset import Labels
from fedsift.data.download import find, first
from fedsift.data.input_files import read_arrays
from fedsift.data.noise.base import POOL, Noise, NoiseInput, NoisyLabels, noises
from fedsift.data.sources.cifar import read_pickled

ARRAYS = {
    "aggregate": "aggre_label",
    "worst": "worse_label",
    "random1": "random_label1",
    "random2": "random_label2",
    "random3": "random_label3",
    "fine": "noisy_label",
}


@noises.register("cifar-n")
@dataclass(frozen=True)
class CifarN(Noise):
    """The labels that people gave CIFAR's 50,000 training images; `clean_label` in the file is checked."""

    summary: ClassVar[str] = "human labels of CIFAR-10N (worst, random1-3, aggregate) and CIFAR-100N (fine)"

    labels: Literal["worst", "aggregate", "random1", "random2", "random3", "fine"] = "worst"
    """Which annotation: CIFAR-10N has all but "fine", CIFAR-100N has "fine" alone."""
    path: Path | None = None
    """The file (`CIFAR-10_human.npz`, `.npy` or `.pt` as published), or the folder that holds it."""

    @property
    def before_partition(self) -> bool:
        return True

    def corrupt(self, scene: NoiseInput) -> NoisyLabels:
        if scene.dataset is None:
            raise DataError("noise 'cifar-n' belongs to the CIFAR training set and needs its rows")
        arrays = read_human_labels(self.path, "CIFAR-100" if self.labels == "fine" else "CIFAR-10")
        rows = scene.rows[POOL]
        given = pick(arrays, ARRAYS[self.labels], rows)
        if (pick(arrays, "clean_label", rows) != scene.clean[POOL]).any():
            raise DataError("the file's clean labels are not those of these images: is this CIFAR in official order?")
        rate = float((given != scene.clean[POOL]).mean())
        return NoisyLabels(given={POOL: given}, level={POOL: rate}, noisy=(POOL,))


def pick(arrays: dict[str, NDArray[Any]], name: str, rows: NDArray[np.int64]) -> Labels:
    """One annotation for these rows of the training set."""
    if name not in arrays:
        raise DataError(f"the file has no labels '{name}': it holds {', '.join(sorted(arrays))}")
    if len(rows) and rows.max() >= len(arrays[name]):
        raise DataError(f"the file has labels for {len(arrays[name])} images only")
    return np.asarray(arrays[name])[rows].astype(np.int64)


def read_human_labels(path: Path | None, which: str) -> dict[str, NDArray[Any]]:
    """All arrays of the published file, from .npz, from .npy (a dictionary) or from .pt."""
    where = find("cifar_n", path, "get the labels from http://noisylabels.com")
    file = where if where.is_file() else first(where, f"{which}_human.npz", f"{which}_human*.npy", f"{which}_human.pt")
    if file is None:
        raise DataError(f"there is no {which}_human.npz, .npy or .pt in {where}")
    if file.suffix == ".npz":
        return read_arrays(file)
    return {str(name): np.asarray(values) for name, values in read_pickled(file).items()}
