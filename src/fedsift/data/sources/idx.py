"""Data sources in MNIST's idx files: MNIST and Fashion-MNIST."""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedsift.core.errors import DataError
from fedsift.data.dataset import Dataset
from fedsift.data.download import find, first
from fedsift.data.input_files import read_file
from fedsift.data.sources.base import Source, channel_statistics, sources

FASHION = (
    "T-shirt/top",
    "trouser",
    "pullover",
    "dress",
    "coat",
    "sandal",
    "shirt",
    "sneaker",
    "bag",
    "ankle boot",
)


@sources.register("mnist")
@dataclass(frozen=True)
class Mnist(Source):
    """60,000 training and 10,000 test digits of 28x28 pixels."""

    summary: ClassVar[str] = "70,000 handwritten digits, 28x28, 10 classes (idx files)"
    licence: ClassVar[str] = "no licence stated; cite LeCun 1998"
    folder: ClassVar[str] = "mnist"
    classes: ClassVar[tuple[str, ...]] = tuple(str(k) for k in range(10))

    path: Path | None = None
    """The folder with `train-images-idx3-ubyte` (.gz or not) and its siblings."""

    def read(self) -> Dataset:
        root = find(self.folder, self.path, f"run `fedsift data get {self.folder}`")
        parts = [(_idx(root, f"{side}-images"), _idx(root, f"{side}-labels")) for side in ("train", "t10k")]
        images = np.concatenate([part[0] for part in parts])[:, None]
        labels = np.concatenate([part[1] for part in parts]).astype(np.int64)
        count = len(parts[0][0])
        if len(images) != len(labels):
            raise DataError(f"{root}: {len(images)} images but {len(labels)} labels")
        train, test = np.arange(count, dtype=np.int64), np.arange(count, len(images), dtype=np.int64)
        mean, std = channel_statistics(images, train)
        return Dataset(self.folder, images, labels, self.classes, train, test, mean=mean, std=std)


@sources.register("fashion-mnist")
@dataclass(frozen=True)
class FashionMnist(Mnist):
    """60,000 training and 10,000 test pictures of clothes, 28x28 pixels."""

    summary: ClassVar[str] = "70,000 pictures of clothes, 28x28, 10 classes (idx files)"
    licence: ClassVar[str] = "MIT"
    folder: ClassVar[str] = "fashion-mnist"
    classes: ClassVar[tuple[str, ...]] = FASHION


def _idx(root: Path, start: str) -> NDArray[np.uint8]:
    """An idx file of unsigned bytes: magic 0, 0, 8, dimensions; sizes as big-endian 32-bit numbers; data."""
    path = first(root, f"{start}-idx?-ubyte", f"{start}-idx?-ubyte.gz", f"{start}.idx?-ubyte")
    if path is None:
        raise DataError(f"there is no {start}-idx*-ubyte in {root}")
    try:
        data = gzip.decompress(read_file(path)) if path.suffix == ".gz" else read_file(path)
    except (OSError, EOFError) as error:
        raise DataError(f"{path} is damaged: {error}") from error
    if len(data) < 4 or data[:3] != b"\x00\x00\x08":
        raise DataError(f"{path} is not an idx file of bytes")
    shape = np.frombuffer(data, ">u4", data[3], 4).astype(np.int64)
    values = np.frombuffer(data, np.uint8, offset=4 + 4 * data[3])
    if len(values) != int(shape.prod()):
        raise DataError(f"{path} holds {len(values)} values, its header says {shape.tolist()}: it is damaged")
    return values.reshape(shape)
