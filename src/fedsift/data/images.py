"""Decodes pictures once, in parallel, into a uint8 cache keyed by content."""

from __future__ import annotations

import hashlib
import io
import json
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fedsift.core.errors import ConfigError, DataError, FedsiftError
from fedsift.core.files import cache_root
from fedsift.core.text import visible
from fedsift.data.dataset import Rows
from fedsift.data.dicom import decode_dicom, pydicom
from fedsift.data.input_files import (
    MAX_PIXELS,
    Picture,
    PictureFinder,
    find_pictures,
    inside_reference,
    is_dicom,
    too_large,
)

FORMAT = 3
"""Part of every cache key: raise it when decoding changes."""
CHUNK = 1024

FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP")
"""What is decoded, whatever a file is called. Others run programs, as PostScript does Ghostscript, or are rare."""
MAX_SCANS = 100
"""A progressive JPEG with more is not decoded: each costs as much as a whole picture, and usual ones have ten."""
SCAN = b"\xff\xda"
"""Begins a scan, and stands nowhere in one."""
DARK = 16
"""A 16-bit picture whose brightest value is below this share (1/16) of its range would be almost black."""

__all__ = [
    "DecodedPictures",
    "Picture",
    "PictureFinder",
    "PictureForm",
    "decode",
    "find_pictures",
    "inside_reference",
    "load_pictures",
    "why_unreadable",
]

T = TypeVar("T")

# Sizes are checked here before anything is decoded, with a clearer line than the library's warning.
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)


@dataclass(frozen=True)
class PictureForm:
    """How pictures are brought to one shape."""

    size: int
    """Side in pixels."""
    channels: int = 3
    """3 for colour, 1 for grey."""
    fit: Literal["squash", "crop"] = "squash"
    """"squash": the whole picture; "crop": the central square."""
    bits: int = 16
    """Bits that 16-bit grey pictures use; more are cut off at white."""

    def __post_init__(self) -> None:
        if self.size < 1 or self.channels not in (1, 3):
            raise ConfigError(f"pictures need size >= 1 and 1 or 3 channels, not {self.size} and {self.channels}")


@dataclass(frozen=True)
class DecodedPictures:
    """images: uint8 `[kept, channels, size, size]`; kept: their positions among the pictures asked for."""

    images: NDArray[np.uint8]
    kept: Rows
    broken: tuple[tuple[str, str], ...]
    """Name and reason of each picture that could not be read."""
    dark: tuple[str, ...] = ()
    """Names of 16-bit pictures that use a small part of their range."""


def decode(data: bytes, form: PictureForm) -> NDArray[np.uint8]:
    """One picture as uint8 `[channels, size, size]`."""
    return _decode(data, form)[0]


def _decode(data: bytes, form: PictureForm) -> tuple[NDArray[np.uint8], bool]:
    """The picture, and whether it is a 16-bit one that would be almost black."""
    dark = False
    mode = "L" if form.channels == 1 else "RGB"
    if data[128:132] == b"DICM":
        picture = decode_dicom(data).convert(mode)
    else:
        with Image.open(io.BytesIO(data), formats=FORMATS) as opened:
            if opened.width * opened.height > MAX_PIXELS:
                raise DataError(too_large(opened.width, opened.height))
            if opened.format in ("JPEG", "MPO") and data.count(SCAN) > MAX_SCANS:
                raise DataError(f"a JPEG of {data.count(SCAN)} scans, {MAX_SCANS} are decoded: save it anew")
            # A JPEG can be decoded at a half or a quarter of its size for much less work.
            opened.draft(mode, (2 * form.size, 2 * form.size))
            picture = opened
            if opened.mode.startswith("I"):
                values = np.asarray(opened, np.int64)
                dark = int(values.max(initial=0)) < 2**form.bits // DARK
                # 16-bit grey: keep the upper eight bits in use, as a plain conversion would saturate.
                picture = Image.fromarray((values >> (form.bits - 8)).clip(0, 255).astype(np.uint8))
            picture = picture.convert(mode)
    if form.fit == "crop":
        side = min(picture.size)
        left, top = (picture.width - side) // 2, (picture.height - side) // 2
        picture = picture.crop((left, top, left + side, top + side))
    pixels = np.asarray(picture.resize((form.size, form.size), Image.Resampling.BILINEAR), np.uint8)
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1), dark


def why_unreadable(picture: Picture, form: PictureForm) -> tuple[NDArray[np.uint8] | None, str, bool]:
    """The decoded picture, or None and the reason; and whether it is almost black."""
    try:
        pixels, dark = _decode(picture.read(), form)
    except UnidentifiedImageError:
        return None, "not a picture", False
    except FileNotFoundError:
        return None, "a link that leads nowhere", False
    except FedsiftError as error:
        return None, str(error), False
    except Exception as error:  # any decoder failure is the file's, never the run's
        return None, visible(f"{type(error).__name__}: {error}"), False
    return pixels, "", dark


def load_pictures(
    pictures: Sequence[Picture],
    form: PictureForm,
    *,
    cache: Path | None = None,
    what: str = "pictures",
    workers: int = 0,
) -> DecodedPictures:
    """Decode all pictures, or read them from the cache when the same contents were decoded before."""
    if any(is_dicom(picture) for picture in pictures):
        pydicom()  # its absence is the machine's fault: said once, before every file is called unreadable
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
    dark = tuple(str(name) for name in facts["dark"])
    return DecodedPictures(np.asarray(stored), np.asarray(facts["kept"], np.int64), broken, dark)


def _content_key(pictures: Sequence[Picture], form: PictureForm, folder: Path, what: str, workers: int) -> str:
    """A key of the pictures' contents. Contents are read once; later a folder's sizes and times identify them."""
    shape = f"{FORMAT}|{form.size}|{form.channels}|{form.fit}|{form.bits}"
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
    except Exception as error:  # an encrypted or damaged zip, a link that leads nowhere: decoding says so
        return f"unreadable {type(error).__name__}"


def _digest(parts: Sequence[str]) -> str:
    return hashlib.blake2b("\x1f".join(parts).encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()


def _decode_to(
    pictures: Sequence[Picture], form: PictureForm, data: Path, about: Path, what: str, workers: int
) -> None:
    """Write the readable pictures one after the other; a stopped decoding leaves only a temporary file."""
    kept: list[int] = []
    broken: list[tuple[str, str]] = []
    dark: list[str] = []
    unfinished = data.with_suffix(f".{os.getpid()}.tmp")
    position = 0
    try:
        with unfinished.open("wb") as file:
            for chunk in _chunks(pictures, lambda picture: why_unreadable(picture, form), f"decoding {what}", workers):
                for pixels, reason, is_dark in chunk:
                    if is_dark:
                        dark.append(pictures[position].name)
                    if pixels is None:
                        broken.append((pictures[position].name, reason))
                    else:
                        kept.append(position)
                        file.write(np.ascontiguousarray(pixels).tobytes())
                    position += 1
        unfinished.replace(data)
    finally:
        unfinished.unlink(missing_ok=True)
    _write_whole(about, json.dumps({"kept": kept, "broken": broken, "dark": dark}))


def _chunks(items: Sequence[Picture], work: Callable[[Picture], T], title: str, workers: int) -> Iterator[list[T]]:
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
        task = progress.add_task(escape(visible(title)), total=len(items))
        for start in range(0, len(items), CHUNK):
            part = items[start : start + CHUNK]
            yield list(pool.map(work, part))
            progress.advance(task, len(part))


def _write_whole(path: Path, text: str) -> None:
    unfinished = path.with_suffix(f".{os.getpid()}.tmp")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(path)
