"""Frozen features and labels of the benchmark's datasets, each embedded once and kept in the cache folder.

Data are found as always, by FEDSIFT_DATA and the cache folder; `python -m benchmarks.audit.pictures` embeds them all.
"""

from __future__ import annotations

import csv
import io
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fedsift.core.files import cache_root, write_atomically
from fedsift.data.download import find
from fedsift.training.features import efficientnet_lite0, embed

CIFAR = 12_000
"""Pictures of CIFAR-10 that are used."""
FINDINGS = 8
"""NIH: so many of the most frequent findings."""


@dataclass(frozen=True)
class Pictures:
    """What a scenario draws on; every array has one row a picture."""

    features: NDArray[np.float32]
    true: NDArray[np.int64]
    """`[n]`, or `[n, K]` zeros and ones for several findings a picture."""
    classes: int
    group: NDArray[np.int64] | None = None
    """Patient or lesion: one fold each."""
    site: NDArray[np.int64] | None = None
    """Where the picture was taken, if that is known."""
    given: dict[str, NDArray[np.int64]] | None = None
    """Labels that people gave, by the name of the column."""


def _kept(name: str, images: NDArray[np.uint8] | None, side: int) -> NDArray[np.float32]:
    file = cache_root() / "audit-benchmark" / f"{name}@{side}.npy"
    if not file.is_file():
        assert images is not None
        made = embed(images, efficientnet_lite0(), side).astype(np.float16)
        buffer = io.BytesIO()
        np.save(buffer, made)
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, buffer.getvalue())
    return np.load(file).astype(np.float32)


def cifar10_pictures(count: int = CIFAR) -> NDArray[np.uint8]:
    """The first `count` training pictures of CIFAR-10."""
    return _cifar10_records(count)[:, 1:].reshape(-1, 3, 32, 32)


def _cifar10_records(count: int) -> NDArray[np.uint8]:
    folder = find("cifar10", None, "run get-cifar10")
    files = [folder / f"data_batch_{i}.bin" for i in range(1, 2 + (count - 1) // 10_000)]
    return np.concatenate([np.fromfile(file, np.uint8).reshape(-1, 3073) for file in files])[:count]


def blurred(count: int = CIFAR) -> NDArray[np.float32]:
    """Features of the same pictures, each square of 4 x 4 pixels made one colour."""
    images = cifar10_pictures(count)
    coarse = images.reshape(-1, 3, 8, 4, 8, 4).mean((3, 5)).astype(np.uint8).repeat(4, 2).repeat(4, 3)
    return _kept(f"cifar10-{count}-blurred", coarse, 64)


def blank() -> NDArray[np.float32]:
    """Features `[1, F]` of a grey picture."""
    return _kept("blank", np.full((1, 3, 32, 32), 128, np.uint8), 64)


def cifar10n(count: int = CIFAR) -> Pictures:
    """The first `count` training pictures with people's labels; clean labels are the truth."""
    records = _cifar10_records(count)
    images = cifar10_pictures(count)
    with np.load(find("cifar_n", None, "the human labels of CIFAR-10N") / "CIFAR-10_human.npz") as people:
        given = {name: people[name][:count].astype(np.int64) for name in people.files}
    true = records[:, 0].astype(np.int64)
    assert (given.pop("clean_label") == true).all()
    return Pictures(_kept(f"cifar10-{count}", images, 64), true, 10, given=given)


def ham10000() -> Pictures:
    """10,015 skin pictures of seven classes, by lesion, from four places."""
    folder = find("ham10000", None, "the HAM10000 metadata and pictures")
    with (folder / "HAM10000_metadata.csv").open() as lines:
        rows = sorted(csv.DictReader(lines), key=lambda row: row["image_id"])
    names = sorted({row["dx"] for row in rows})
    places = sorted({row["dataset"] for row in rows})
    lesions = {name: i for i, name in enumerate(sorted({row["lesion_id"] for row in rows}))}
    file = cache_root() / "audit-benchmark" / "ham10000@112.npy"
    images = None if file.is_file() else _zipped(folder, [row["image_id"] for row in rows])
    return Pictures(
        _kept("ham10000", images, 112),
        np.array([names.index(row["dx"]) for row in rows]),
        len(names),
        group=np.array([lesions[row["lesion_id"]] for row in rows]),
        site=np.array([places.index(row["dataset"]) for row in rows]),
    )


def _zipped(folder: Path, ids: list[str]) -> NDArray[np.uint8]:
    with zipfile.ZipFile(next(folder.glob("*.zip"))) as archive:
        place = {Path(name).stem: name for name in archive.namelist()}
        pictures = [Image.open(io.BytesIO(archive.read(place[i]))).convert("RGB") for i in ids]
    small = [np.asarray(picture.resize((112, 112), Image.Resampling.BILINEAR)) for picture in pictures]
    return np.stack(small).transpose(0, 3, 1, 2)


def chest() -> Pictures:
    """4,999 chest X-rays with the eight most frequent findings, by patient."""
    folder = find("nih_cxr14", None, "the NIH X-rays")
    with np.load(next(folder.glob("*.npz"))) as held:
        images = held["images"][:, None]
        labels = held["labels"].astype(np.int64)
        patient = held["patient"].astype(np.int64)
    frequent = np.sort(np.argsort(-labels.sum(0), kind="stable")[:FINDINGS])
    return Pictures(_kept("nih", images, 112), labels[:, frequent], FINDINGS, group=patient)


def adjudicated() -> tuple[NDArray[np.int64], list[str], list[str]]:
    """Radiologists' reading `[4999, 4]` (255: not read), its classes, and the names of `chest`'s findings."""
    with np.load(next(find("nih_cxr14", None, "the NIH X-rays").glob("*.npz"))) as held:
        labels = held["labels"]
        frequent = np.sort(np.argsort(-labels.sum(0).astype(np.int64), kind="stable")[:FINDINGS])
        return (
            held["adjudicated"].astype(np.int64),
            [str(name) for name in held["adjudicated_classes"]],
            [str(held["classes"][k]) for k in frequent],
        )


def digits() -> Pictures:
    """scikit-learn's 1,797 digits of 8 x 8 pixels: the pixels and their products with random weights, rectified."""
    from sklearn.datasets import load_digits

    held = load_digits()
    pixels = held.data.astype(np.float32) / 16
    weights = np.random.default_rng(0).normal(size=(64, 256)).astype(np.float32) / 4
    features = np.maximum((pixels - pixels.mean(0)) @ weights, 0)
    return Pictures(np.hstack([pixels, features]), held.target.astype(np.int64), 10)


def main() -> None:
    for name, load in (("cifar10n", cifar10n), ("ham10000", ham10000), ("chest", chest)):
        print(name, load().features.shape, flush=True)


if __name__ == "__main__":
    main()
