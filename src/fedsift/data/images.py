"""Pictures in a folder or a zip: decoded once, in parallel, into a uint8 cache keyed by content."""

from __future__ import annotations

import hashlib
import io
import json
import os
import threading
import zipfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fedsift.contract.errors import ConfigError, DataError
from fedsift.data.dataset import Rows
from fedsift.data.places import cache_root

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp"})
FORMAT = 1
"""Part of every cache key: raise it when decoding changes."""
CHUNK = 1024

T = TypeVar("T")


@dataclass(frozen=True)
class Picture:
    """One picture file: `name` inside a folder, or inside the zip `archive`."""

    root: Path
    name: str
    archive: bool = False
    mark: str = ""
    """What tells contents apart without reading them: size and checksum (zip), size and time (folder)."""

    def read(self) -> bytes:
        if self.archive:
            return _archive(self.root).read(self.name)
        return (self.root / self.name).read_bytes()


_open = threading.local()


def _archive(path: Path) -> zipfile.ZipFile:
    """One open handle a thread: zip handles are not to be shared."""
    handles: dict[Path, zipfile.ZipFile] = _open.__dict__.setdefault("handles", {})
    if path not in handles:
        handles[path] = zipfile.ZipFile(path)
    return handles[path]


def find_pictures(path: Path) -> list[Picture]:
    """All pictures under a folder (zips inside it included) or in one zip, in the order of their names."""
    if path.is_dir():
        found: list[Picture] = []
        for folder, folders, files in os.walk(path):
            folders.sort()
            for file in sorted(files):
                full = Path(folder) / file
                if full.suffix.lower() == ".zip":
                    found += _members(full)
                elif full.suffix.lower() in SUFFIXES:
                    about = full.stat()
                    mark = f"{about.st_size}:{about.st_mtime_ns}"
                    found.append(Picture(path, full.relative_to(path).as_posix(), mark=mark))
        return found
    if zipfile.is_zipfile(path):
        return _members(path)
    raise DataError(f"{path} is neither a folder nor a zip of pictures")


def _members(path: Path) -> list[Picture]:
    with zipfile.ZipFile(path) as archive:
        return [
            Picture(path, info.filename, archive=True, mark=f"{info.file_size}:{info.CRC:08x}")
            for info in sorted(archive.infolist(), key=lambda info: info.filename)
            if not info.is_dir() and Path(info.filename).suffix.lower() in SUFFIXES
        ]


class Finder:
    """Pictures by path, by file name, or by file name without its ending."""

    def __init__(self, pictures: Sequence[Picture]) -> None:
        self._by_path = {picture.name: picture for picture in pictures}
        self._by_name: dict[str, Picture] = {}
        for picture in pictures:
            path = Path(picture.name)
            self._by_name.setdefault(path.name, picture)
            self._by_name.setdefault(path.stem, picture)

    def find(self, reference: str) -> Picture | None:
        return self._by_path.get(reference) or self._by_name.get(Path(reference).name)


@dataclass(frozen=True)
class Form:
    """How pictures are brought to one shape."""

    size: int
    """Side in pixels."""
    channels: int = 3
    """3 for colour, 1 for grey."""
    fit: Literal["squash", "crop"] = "squash"
    """"squash": the whole picture; "crop": the central square."""

    def __post_init__(self) -> None:
        if self.size < 1 or self.channels not in (1, 3):
            raise ConfigError(
                f"pictures need size >= 1 and 1 or 3 channels, not {self.size} and {self.channels}"
            )


@dataclass(frozen=True)
class Decoded:
    """images: uint8 `[kept, channels, size, size]`; kept: their positions among the pictures asked for."""

    images: NDArray[np.uint8]
    kept: Rows
    broken: tuple[tuple[str, str], ...]
    """Name and reason of each picture that could not be read."""


def decode(data: bytes, form: Form) -> NDArray[np.uint8]:
    """One picture as uint8 `[channels, size, size]`."""
    with Image.open(io.BytesIO(data)) as opened:
        mode = "L" if form.channels == 1 else "RGB"
        # A JPEG can be decoded at a half or a quarter of its size for much less work.
        opened.draft(mode, (2 * form.size, 2 * form.size))
        picture: Image.Image = opened
        if opened.mode.startswith("I"):
            # 16-bit grey: keep the upper byte, as a plain conversion would saturate.
            picture = Image.fromarray((np.asarray(opened, np.int64) // 256).clip(0, 255).astype(np.uint8))
        picture = picture.convert(mode)
    if form.fit == "crop":
        side = min(picture.size)
        left, top = (picture.width - side) // 2, (picture.height - side) // 2
        picture = picture.crop((left, top, left + side, top + side))
    pixels = np.asarray(picture.resize((form.size, form.size), Image.Resampling.BILINEAR), np.uint8)
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def why_unreadable(picture: Picture, form: Form) -> tuple[NDArray[np.uint8] | None, str]:
    """The decoded picture, or None and the reason."""
    try:
        return decode(picture.read(), form), ""
    except UnidentifiedImageError:
        return None, "not a picture"
    except Exception as error:  # any decoder failure is the file's, never the run's
        return None, f"{type(error).__name__}: {error}"


def load_pictures(
    pictures: Sequence[Picture],
    form: Form,
    *,
    cache: Path | None = None,
    what: str = "pictures",
    workers: int = 0,
) -> Decoded:
    """Decode all pictures, or read them from the cache when the same contents were decoded before."""
    folder = (cache or cache_root()) / "images"
    folder.mkdir(parents=True, exist_ok=True)
    key = _content_key(pictures, form, folder, what, workers)
    data, about = folder / f"{key}.u8", folder / f"{key}.json"
    if not (data.is_file() and about.is_file()):
        _decode_to(pictures, form, data, about, what, workers)
    facts = json.loads(about.read_text(encoding="utf-8"))
    shape = (len(facts["kept"]), form.channels, form.size, form.size)
    # Private pages of the file: read when touched, one copy, and a stray write never reaches the cache.
    stored = np.memmap(data, np.uint8, mode="c", shape=shape) if shape[0] else np.zeros(shape, np.uint8)
    broken = tuple((str(name), str(reason)) for name, reason in facts["broken"])
    return Decoded(np.asarray(stored), np.asarray(facts["kept"], np.int64), broken)


def _content_key(pictures: Sequence[Picture], form: Form, folder: Path, what: str, workers: int) -> str:
    """A key of the pictures' contents. Contents are read once; later a folder's sizes and times tell them."""
    shape = f"{FORMAT}|{form.size}|{form.channels}|{form.fit}"
    marks = _digest([shape, *(f"{picture.name}|{picture.mark}" for picture in pictures)])
    if all(picture.archive for picture in pictures):
        return marks  # a zip's directory holds checksums of the contents
    link = folder / f"{marks}.key"
    if link.is_file():
        return link.read_text(encoding="utf-8")
    digests = [shape]
    for chunk in _chunks(pictures, _digest_of, f"checking {what}", workers):
        digests += chunk
    key = _digest(digests)
    _write_whole(link, key)
    return key


def _digest_of(picture: Picture) -> str:
    try:
        return hashlib.blake2b(picture.read(), digest_size=16).hexdigest()
    except OSError as error:
        return f"unreadable {type(error).__name__}"


def _digest(parts: Sequence[str]) -> str:
    return hashlib.blake2b("\x1f".join(parts).encode(), digest_size=16).hexdigest()


def _decode_to(
    pictures: Sequence[Picture], form: Form, data: Path, about: Path, what: str, workers: int
) -> None:
    """Write the readable pictures one after the other; a stopped decoding leaves only a temporary file."""
    kept: list[int] = []
    broken: list[tuple[str, str]] = []
    unfinished = data.with_suffix(f".{os.getpid()}.tmp")
    position = 0
    try:
        with unfinished.open("wb") as file:
            for chunk in _chunks(
                pictures, lambda picture: why_unreadable(picture, form), f"decoding {what}", workers
            ):
                for pixels, reason in chunk:
                    if pixels is None:
                        broken.append((pictures[position].name, reason))
                    else:
                        kept.append(position)
                        file.write(np.ascontiguousarray(pixels).tobytes())
                    position += 1
        unfinished.replace(data)
    finally:
        unfinished.unlink(missing_ok=True)
    _write_whole(about, json.dumps({"kept": kept, "broken": broken}))


def _chunks(
    items: Sequence[Picture], work: Callable[[Picture], T], title: str, workers: int
) -> Iterator[list[T]]:
    """Results in order, a chunk at a time, from threads (decoding frees the interpreter)."""
    console = Console(stderr=True)
    columns: list[Any] = [
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    ]
    with (
        ThreadPoolExecutor(workers or min(8, os.cpu_count() or 1)) as pool,
        Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress,
    ):
        task = progress.add_task(title, total=len(items))
        for start in range(0, len(items), CHUNK):
            part = items[start : start + CHUNK]
            yield list(pool.map(work, part))
            progress.advance(task, len(part))


def _write_whole(path: Path, text: str) -> None:
    unfinished = path.with_suffix(f".{os.getpid()}.tmp")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(path)
