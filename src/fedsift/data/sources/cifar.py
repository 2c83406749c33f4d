"""Data sources `cifar10` and `cifar100` in their official layouts, binary or Python pickles (read without running
them).

Krizhevsky: Learning Multiple Layers of Features from Tiny Images, 2009.
"""

from __future__ import annotations

import io
import pickle
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fedsift.core.errors import DataError
from fedsift.data.dataset import Dataset, Labels
from fedsift.data.download import find
from fedsift.data.input_files import read_arrays
from fedsift.data.sources.base import Source, normalisation, sources

CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_NAMES = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel
can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur
dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion
lizard lobster man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree
pear pickup_truck pine_tree plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea
seal shark shrew skunk skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table
tank telephone television tiger tractor train trout tulip turtle wardrobe whale willow_tree wolf woman
worm
"""
CIFAR100 = tuple(_NAMES.split())
PIXELS = 3 * 32 * 32


@dataclass(frozen=True)
class Cifar(Source):
    """What both sets share: the layouts, binary before pickled, and the split into training and test files."""

    licence: ClassVar[str] = "no licence stated; cite Krizhevsky 2009"
    names: ClassVar[tuple[str, ...]]
    """Of the classes."""
    files: ClassVar[tuple[str, ...]]
    """Without their ending; the last one is the test set."""
    label_bytes: ClassVar[int]
    """Before the pixels of a binary record."""
    label_key: ClassVar[str]
    """In a pickle."""

    path: Path | None = None
    """The folder with the files of the binary or the Python version (default: in the data folders)."""
    statistics: Literal["data", "imagenet"] = "data"
    """Mean and deviation for normalising: of these images, or ImageNet's (FedCorr's released code)."""

    def read(self) -> Dataset:
        root = find(self.folder, self.path, f"run `fedsift data get {self.folder}`")
        first = self.files[0]
        if folder := _holding(root, f"{first}.bin"):
            parts = [_binary(folder / f"{name}.bin", self.label_bytes) for name in self.files]
        elif folder := _holding(root, first):
            parts = [_pickle(folder / name, self.label_key) for name in self.files]
        else:
            raise DataError(f"{root} holds neither {first}.bin nor {first}")
        return _dataset(self.folder, parts, self.names, self.statistics)


@sources.register("cifar10")
@dataclass(frozen=True)
class Cifar10(Cifar):
    """50,000 training and 10,000 test images of 32x32 pixels in 10 classes."""

    summary: ClassVar[str] = "60,000 colour images, 32x32, 10 classes"
    folder: ClassVar[str] = "cifar10"
    names: ClassVar[tuple[str, ...]] = CIFAR10
    files: ClassVar[tuple[str, ...]] = (*(f"data_batch_{k}" for k in range(1, 6)), "test_batch")
    label_bytes: ClassVar[int] = 1
    label_key: ClassVar[str] = "labels"


@sources.register("cifar100")
@dataclass(frozen=True)
class Cifar100(Cifar):
    """50,000 training and 10,000 test images of 32x32 pixels in 100 classes."""

    summary: ClassVar[str] = "60,000 colour images, 32x32, 100 classes"
    folder: ClassVar[str] = "cifar100"
    names: ClassVar[tuple[str, ...]] = CIFAR100
    files: ClassVar[tuple[str, ...]] = ("train", "test")
    label_bytes: ClassVar[int] = 2
    label_key: ClassVar[str] = "fine_labels"


@sources.register("cifar100-public")
@dataclass(frozen=True)
class Cifar100Public(Source):
    """5,000 unlabelled CIFAR-100 images: the public set of RHFL, FedMD and FedDF. Every label is the one
    class."""

    summary: ClassVar[str] = "5,000 unlabelled CIFAR-100 images, the public set of RHFL, FedMD and FedDF"
    licence: ClassVar[str] = "no licence stated; cite Krizhevsky 2009"
    folder: ClassVar[str] = "cifar100_public"

    path: Path | None = None
    """An .npz with `images`, or the folder that holds it (default: `cifar100_public` in the data folders)."""

    def read(self) -> Dataset:
        where = find(self.folder, self.path, "save images as an .npz, or use cifar100")
        file = where if where.is_file() else next(iter(sorted(where.glob("*.npz"))), None)
        if file is None:
            raise DataError(f"there is no .npz in {where}")
        images = np.ascontiguousarray(read_arrays(file)["images"].transpose(0, 3, 1, 2))
        rows = np.arange(len(images), dtype=np.int64)
        mean, std = normalisation(images, rows, "data")
        return Dataset(
            name="cifar100-public",
            images=images,
            labels=np.zeros(len(images), np.int64),
            classes=("unlabelled",),
            train=rows,
            test=rows[:0],
            mean=mean,
            std=std,
            trusted=False,
        )


def _holding(root: Path, name: str) -> Path | None:
    """The folder that holds the file: the root itself or one of its folders."""
    for folder in [root, *sorted(part for part in root.iterdir() if part.is_dir())]:
        if (folder / name).is_file():
            return folder
    return None


def _binary(path: Path, label_bytes: int) -> tuple[NDArray[np.uint8], Labels]:
    """Records of label bytes (the last one counts) and 3,072 pixels, channels first."""
    if not path.is_file():
        raise DataError(f"there is no {path}: the download is incomplete")
    record = label_bytes + PIXELS
    data = np.fromfile(path, np.uint8)
    if len(data) % record:
        raise DataError(f"{path} has {len(data)} bytes, not a multiple of {record}: the file is damaged")
    table = data.reshape(-1, record)
    return table[:, label_bytes:].reshape(-1, 3, 32, 32), table[:, label_bytes - 1].astype(np.int64)


def _pickle(path: Path, key: str) -> tuple[NDArray[np.uint8], Labels]:
    batch: dict[Any, Any] = read_pickled(path)
    if "data" not in batch or key not in batch:
        raise DataError(f"{path} has no '{key}': is this the right CIFAR?")
    return np.asarray(batch["data"], np.uint8).reshape(-1, 3, 32, 32), np.asarray(batch[key], np.int64)


def _dataset(
    name: str, parts: Sequence[tuple[NDArray[np.uint8], Labels]], classes: tuple[str, ...], statistics: str
) -> Dataset:
    """Training images in official order first, then the test images, as one array."""
    images = np.concatenate([part[0] for part in parts])
    labels = np.concatenate([part[1] for part in parts])
    count = len(images) - len(parts[-1][0])
    train, test = np.arange(count, dtype=np.int64), np.arange(count, len(images), dtype=np.int64)
    mean, std = normalisation(images, train, statistics)
    ids = np.array([f"train-{k:05d}" for k in range(count)] + [f"test-{k:05d}" for k in range(len(test))])
    return Dataset(name, images, labels, classes, train, test, mean=mean, std=std, ids=ids)


# Pickles, read without running them
# ------------------------------------------------------------------------------


ALLOWED = {
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy.core.multiarray", "scalar"),
    ("numpy._core.multiarray", "scalar"),
    ("numpy._core.numeric", "_frombuffer"),
    ("numpy.core.numeric", "_frombuffer"),
    ("_codecs", "encode"),
    ("collections", "OrderedDict"),
}


class _PlainUnpickler(pickle.Unpickler):
    """A pickle can run any code on loading; this one refuses everything that plain data do not need."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in ALLOWED:
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")


def read_pickled(path: Path, encoding: str = "latin1") -> dict[Any, Any]:
    """The dictionary in a pickle, in an object array (.npy) or in a zipped .pt file."""
    try:
        return _dictionary(path, encoding)
    except FileNotFoundError:
        raise DataError(f"there is no file {path}") from None
    except (pickle.UnpicklingError, EOFError, ValueError, KeyError, AttributeError, IndexError) as error:
        raise DataError(f"{path} is not a file of plain arrays: {error}") from error


def _dictionary(path: Path, encoding: str) -> dict[Any, Any]:
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            inner = next(name for name in archive.namelist() if name.endswith("data.pkl"))
            return _checked(archive.read(inner), encoding)
    with path.open("rb") as file:
        if file.read(6) != np.lib.format.MAGIC_PREFIX:
            file.seek(0)
            return _checked(file.read(), encoding)
        file.seek(0)
        version = np.lib.format.read_magic(file)
        reader = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        reader(file)
        return _checked(file.read(), encoding)


def _checked(data: bytes, encoding: str) -> dict[Any, Any]:
    loaded = _PlainUnpickler(io.BytesIO(data), encoding=encoding).load()
    if isinstance(loaded, np.ndarray) and loaded.dtype == object and loaded.size == 1:
        loaded = loaded.item()
    if not isinstance(loaded, dict):
        raise ValueError(f"it holds a {type(loaded).__name__}, not a dictionary")
    return loaded
