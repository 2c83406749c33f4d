"""Finds picture files in a folder or a zip, and the file that a row of a table means."""

from __future__ import annotations

import os
import threading
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from fedsift.core.errors import DataError
from fedsift.core.text import visible

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp"})
DICOM_SUFFIXES = frozenset({".dcm", ".dicom", ".dic", ".ima"})
OTHER_SUFFIXES = frozenset({".csv", ".txt", ".toml", ".json", ".md", ".npz", ".npy", ".html", ".py", ".xlsx", ".pdf"})
"""Never a DICOM file without an ending, so not opened to see."""
MAX_PIXELS = 100_000_000
"""A picture with more pixels is not decoded: a small file can claim a size that fills the memory."""
MAX_BYTES = 1_000_000_000
"""Nor a file in a zip with more bytes."""


@dataclass(frozen=True)
class Picture:
    """One picture file: `name` inside a folder, or inside the zip `archive`."""

    root: Path
    name: str
    archive: bool = False
    mark: str = ""
    """What identifies contents without reading them: size and checksum (zip), size and time (folder)."""

    def read(self) -> bytes:
        if self.archive:
            archive = _archive(self.root)
            size = archive.getinfo(self.name).file_size
            if size > MAX_BYTES:
                raise DataError(f"{size} bytes when unpacked are more than {MAX_BYTES}")
            return archive.read(self.name)
        return (self.root / self.name).read_bytes()


_open = threading.local()


def _archive(path: Path) -> zipfile.ZipFile:
    """One open handle a thread: zip handles are not to be shared."""
    handles: dict[Path, zipfile.ZipFile] = _open.__dict__.setdefault("handles", {})
    if path not in handles:
        handles[path] = zipfile.ZipFile(path)
    return handles[path]


def find_pictures(path: Path) -> list[Picture]:
    """All pictures under a folder (zips inside it included) or in one zip, in the order of their names.

    A link to a picture counts as the picture; a link to a folder is not followed, so that no circle of links is.
    """
    if path.is_dir():
        found: list[Picture] = []
        for folder, folders, files in os.walk(path, onerror=_unreadable):
            folders.sort()
            for file in sorted(files):
                full = Path(folder) / file
                if full.suffix.lower() == ".zip":
                    found += _members(full)
                elif _looks_like_picture(full):
                    found.append(Picture(path, full.relative_to(path).as_posix(), mark=_mark(full)))
        return found
    if not path.exists():
        raise DataError(f"there is no {path}")
    if zipfile.is_zipfile(path):
        return _members(path)
    raise DataError(f"{path} is neither a folder nor a zip of pictures")


def _unreadable(error: OSError) -> None:
    raise DataError(f"folder {error.filename} cannot be read: {error.strerror}")


def _mark(file: Path) -> str:
    try:
        about = file.stat()
    except OSError:  # a link that leads nowhere: found unreadable when it is decoded
        return "gone"
    return f"{about.st_size}:{about.st_mtime_ns}"


def _looks_like_picture(file: Path) -> bool:
    ending = file.suffix.lower()
    if ending in SUFFIXES or ending in DICOM_SUFFIXES:
        return True
    return ending not in OTHER_SUFFIXES and not file.name.startswith(".") and _has_dicom_mark(file)


def _has_dicom_mark(file: Path) -> bool:
    """Whether a file without a known ending says that it is DICOM: archives export them so."""
    try:
        if not file.is_file():
            return False
        with file.open("rb") as opened:
            return opened.read(132)[128:] == b"DICM"
    except OSError:
        return False


def is_dicom(picture: Picture) -> bool:
    """Whether a found picture is a DICOM file; every other one has an ending of its own."""
    return Path(picture.name).suffix.lower() not in SUFFIXES


def _members(path: Path) -> list[Picture]:
    try:
        with zipfile.ZipFile(path) as archive:
            return [
                Picture(path, info.filename, archive=True, mark=f"{info.file_size}:{info.CRC:08x}")
                for info in sorted(archive.infolist(), key=lambda info: info.filename)
                if not info.is_dir() and Path(info.filename).suffix.lower() in SUFFIXES | DICOM_SUFFIXES
            ]
    except (zipfile.BadZipFile, OSError) as error:
        raise DataError(f"{path} cannot be read as a zip: {error}") from None


def too_large(width: int, height: int) -> str:
    return f"{width} x {height} pixels are more than {MAX_PIXELS}: make it smaller"


def inside_reference(reference: str, root: Path) -> str | None:
    """A table's reference as a path inside the folder, or None when it leads out of it.

    Nothing outside the folder is ever read: the user gets this error, rather than a file of the same name inside.
    """
    text = reference.replace("\\", "/") if "/" not in reference else reference
    path = PurePosixPath(text)
    if path.is_absolute():
        for base in (root.absolute(), root.resolve()):
            if path.is_relative_to(base):
                return _within(path.relative_to(base))
        return None
    if len(text) > 1 and text[1] == ":":
        return None
    return _within(path)


def _within(path: PurePosixPath) -> str | None:
    parts: list[str] = []
    for part in path.parts:
        if part == "..":
            if not parts:
                return None
            parts.pop()
        else:
            parts.append(part)
    return "/".join(parts)


class PictureFinder:
    """Pictures by path, by file name, by file name without its ending, or by a DICOM attribute's value."""

    def __init__(self, pictures: Sequence[Picture], named: Mapping[str, Picture] | None = None) -> None:
        self._named = dict(named or {})
        self._by_path = {picture.name: picture for picture in pictures}
        self._by_name: dict[str, list[Picture]] = {}
        for picture in pictures:
            path = PurePosixPath(picture.name)
            for key in {path.name, path.stem}:
                self._by_name.setdefault(key, []).append(picture)

    def find(self, reference: str) -> Picture | None:
        """The picture that is meant, or None; a name that two pictures in different folders have is refused."""
        exact = self._named.get(reference) or self._by_path.get(reference)
        if exact is not None:
            return exact
        found = self._by_name.get(PurePosixPath(reference).name, [])
        if len(found) > 1:
            ends = [picture for picture in found if f"/{picture.name}".endswith(f"/{reference}")]
            found = ends or found
        if len(found) > 1:
            raise DataError(
                f"'{visible(reference)}' may mean '{visible(found[0].name)}' or '{visible(found[1].name)}': "
                "write the path inside the folder"
            )
        return found[0] if found else None
