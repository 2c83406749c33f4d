"""Downloads public datasets: resumable, checked by hash, with a clear error when there is no network."""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fedsift.core.errors import ConfigError, DataError
from fedsift.core.files import cache_root
from fedsift.core.registry import nearest

BLOCK = 1 << 18
TIMEOUT = 30.0

Progress = Callable[[str, int, int], None]
"""Called with a file's name, the bytes that are there and the bytes in all (0: unknown)."""


@dataclass(frozen=True)
class RemoteFile:
    """One file at a public address, known by its MD5 as its publisher prints it."""

    url: str
    md5: str
    name: str
    unpack: bool = False
    """A tar archive whose plain files are put into the folder."""


@dataclass(frozen=True)
class RemoteDataset:
    """A dataset that can be fetched."""

    folder: str
    """Its folder below the data folder."""
    files: tuple[RemoteFile, ...]
    licence: str


def _idx_files(address: str, hashes: tuple[str, str, str, str]) -> tuple[RemoteFile, ...]:
    names = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    return tuple(RemoteFile(f"{address}/{name}-ubyte.gz", md5, f"{name}-ubyte.gz") for name, md5 in zip(names, hashes))


def _medmnist(name: str, md5: str) -> RemoteDataset:
    url = f"https://zenodo.org/records/10519652/files/{name}.npz?download=1"
    return RemoteDataset("medmnist", (RemoteFile(url, md5, f"{name}.npz"),), "CC BY 4.0 (DermaMNIST: CC BY-NC 4.0)")


KRIZHEVSKY = "https://www.cs.toronto.edu/~kriz"

REMOTES: dict[str, RemoteDataset] = {
    "cifar10": RemoteDataset(
        "cifar10",
        (
            RemoteFile(
                f"{KRIZHEVSKY}/cifar-10-binary.tar.gz",
                "c32a1d4ab5d03f1284b67883e8d87530",
                "cifar-10-binary.tar.gz",
                unpack=True,
            ),
        ),
        "cite Krizhevsky 2009",
    ),
    "cifar100": RemoteDataset(
        "cifar100",
        (
            RemoteFile(
                f"{KRIZHEVSKY}/cifar-100-binary.tar.gz",
                "03b5dce01913d631647c71ecec9e9cb8",
                "cifar-100-binary.tar.gz",
                unpack=True,
            ),
        ),
        "cite Krizhevsky 2009",
    ),
    "mnist": RemoteDataset(
        "mnist",
        _idx_files(
            "https://ossci-datasets.s3.amazonaws.com/mnist",
            (
                "f68b3c2dcbeaaa9fbdd348bbdeb94873",
                "d53e105ee54ea40749a09fcbcd1e9432",
                "9fb629c4189551a2d022fa330f9573f3",
                "ec29112dd5afa0611ce80d1b7f02629c",
            ),
        ),
        "cite LeCun 1998",
    ),
    "fashion-mnist": RemoteDataset(
        "fashion-mnist",
        _idx_files(
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
            (
                "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
                "25c81989df183df01b3e8a0aad5dffbe",
                "bef4ecab320f06d8554ea6380940ec79",
                "bb300cfdad3c16e7a12a480ee83cd310",
            ),
        ),
        "MIT",
    ),
    "pathmnist": _medmnist("pathmnist", "a8b06965200029087d5bd730944a56c1"),
    "chestmnist": _medmnist("chestmnist", "02c8a6516a18b556561a56cbdd36c4a8"),
    "dermamnist": _medmnist("dermamnist", "0744692d530f8e62ec473284d019b0c7"),
    "octmnist": _medmnist("octmnist", "c68d92d5b585d8d81f7112f81e2d0842"),
    "pneumoniamnist": _medmnist("pneumoniamnist", "28209eda62fecd6e6a2d98b1501bb15f"),
    "retinamnist": _medmnist("retinamnist", "bd4c0672f1bba3e3a89f0e4e876791e4"),
    "breastmnist": _medmnist("breastmnist", "750601b1f35ba3300ea97c75c52ff8f6"),
    "bloodmnist": _medmnist("bloodmnist", "7053d0359d879ad8a5505303e11de1dc"),
    "tissuemnist": _medmnist("tissuemnist", "ebe78ee8b05294063de985d821c1c34b"),
    "organamnist": _medmnist("organamnist", "68e3f8846a6bd62f0c9bf841c0d9eacc"),
    "organcmnist": _medmnist("organcmnist", "0afa5834fb105f7705a7d93372119a21"),
    "organsmnist": _medmnist("organsmnist", "e5c39f1af030238290b9557d9503af9d"),
}

BY_HAND = {
    "ham10000": "https://doi.org/10.7910/DVN/DBW86T, the CSV and the pictures, into a folder `ham10000`",
    "isic2019": "https://challenge.isic-archive.com/data/#2019, tables and pictures, into `isic2019`",
    "chestxray14": "https://nihcc.app.box.com/v/ChestXray-NIHCC, tables and pictures, into `nih_cxr14`",
    "ich": "https://www.kaggle.com/c/rsna-intracranial-hemorrhage-detection as PNGs and lists, into `ich`",
    "clothing1m": "its authors give Clothing1M on request: https://github.com/Cysu/noisy_label",
    "cifar-n": "http://noisylabels.com, CIFAR-10_human.npy or .pt, into a folder `cifar_n`",
    "cifar100-public": "an .npz with `images` [n, 32, 32, 3] into a folder `cifar100_public`",
}


def fetch(name: str, root: Path | None = None, *, progress: Progress | None = None) -> Path:
    """Fetch a dataset into `root/FOLDER` (default: the user's cache) and return that folder."""
    if name in BY_HAND:
        raise DataError(f"'{name}' cannot be fetched by a program. Get it by hand: {BY_HAND[name]}")
    if name not in REMOTES:
        raise ConfigError(f"unknown dataset '{name}'.{nearest(name, [*REMOTES, *BY_HAND])}")
    remote = REMOTES[name]
    folder = (root or cache_root()) / remote.folder
    folder.mkdir(parents=True, exist_ok=True)
    for file in remote.files:
        target = folder / file.name
        done = folder / f".{file.name}.done"
        if done.is_file() and done.read_text(encoding="utf-8").strip() == file.md5:
            continue
        if not (target.is_file() and md5_of(target) == file.md5):
            download(file, target, progress)
        if file.unpack:
            unpack(target, folder)
            target.unlink()
        done.write_text(file.md5, encoding="utf-8")
    return folder


def download(file: RemoteFile, target: Path, progress: Progress | None = None) -> None:
    """Fetch one file; what an earlier try left in `.part` is continued, and thrown away if the hash is
    wrong."""
    part = target.with_name(f"{target.name}.part")
    for attempt in ("resumed", "fresh"):
        resumed = part.is_file() and part.stat().st_size > 0
        _append(file, part, progress)
        if md5_of(part) == file.md5:
            part.replace(target)
            return
        part.unlink()
        if attempt == "fresh" or not resumed:
            break
    raise DataError(f"{file.url} arrived with a wrong MD5: nothing is kept. Try again, or fetch it by hand to {target}")


def _append(file: RemoteFile, part: Path, progress: Progress | None) -> None:
    have = part.stat().st_size if part.is_file() else 0
    request = urllib.request.Request(file.url, headers={"User-Agent": "fedsift"})
    if have:
        request.add_header("Range", f"bytes={have}-")
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
            continued = answer.status == 206
            have = have if continued else 0
            total = have + int(answer.headers.get("Content-Length") or 0)
            with part.open("ab" if continued else "wb") as stream:
                while block := answer.read(BLOCK):
                    stream.write(block)
                    have += len(block)
                    if progress is not None:
                        progress(file.name, have, total)
    except urllib.error.HTTPError as error:
        if error.code != 416:  # 416: the part is already complete
            raise DataError(
                f"{file.url} answers {error.code} {error.reason}: fetch it by hand to {part.parent}"
            ) from None
    except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
        reason = getattr(error, "reason", error)
        raise DataError(
            f"no connection to {file.url} ({reason}). The part that is there is kept and will be continued. "
            f"Without a network: put the file into {part.parent} as {file.name} and run this again"
        ) from None


def unpack(archive: Path, folder: Path) -> None:
    """Put the archive's plain files into the folder, without its own folders."""
    with tarfile.open(archive) as tar:
        for member in tar:
            if member.isfile():
                source = tar.extractfile(member)
                assert source is not None
                with source, (folder / Path(member.name).name).open("wb") as target:
                    shutil.copyfileobj(source, target)


def md5_of(path: Path) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as stream:
        while block := stream.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()


# Where data and caches lie
# -------------------------


class DataNotFound(DataError):
    """The dataset is not on this machine; whatever else may be wrong with it is another error."""


def data_roots() -> list[Path]:
    """Folders that are searched for datasets: those of FEDSIFT_DATA in order, then the cache."""
    named = os.environ.get("FEDSIFT_DATA", "")
    return [Path(part).expanduser() for part in named.split(os.pathsep) if part] + [cache_root()]


def find(name: str, path: Path | None, hint: str) -> Path:
    """The dataset's folder: `path` if given, else the first root that has a folder called `name`."""
    if path is not None:
        if path.exists():
            return path
        raise DataNotFound(f"there is no {path}; {hint}")
    for root in data_roots():
        if (root / name).exists():
            return root / name
    searched = ", ".join(str(root) for root in data_roots())
    raise DataNotFound(f"'{name}' is in none of {searched}; {hint}, or set `path`, or name its parent in FEDSIFT_DATA")


def first(folder: Path, *patterns: str) -> Path | None:
    """The first file, in the order of the patterns, that lies in the folder."""
    for pattern in patterns:
        found = sorted(folder.glob(pattern))
        if found:
            return found[0]
    return None
