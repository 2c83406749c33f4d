"""Opens files that others wrote, and finds the pictures among them.

Whatever reads data goes through `open_regular`, which opens nothing but regular files, and through `read_file` or
`read_arrays`, which know a size before they reserve memory for it.
"""

from __future__ import annotations

import math
import os
import stat
import threading
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from fedsift.core.errors import DataError
from fedsift.core.numbers import size as size_words
from fedsift.core.text import visible

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp"})
DICOM_SUFFIXES = frozenset({".dcm", ".dicom", ".dic", ".ima"})
OTHER_SUFFIXES = frozenset({".csv", ".txt", ".toml", ".json", ".md", ".npz", ".npy", ".html", ".py", ".xlsx", ".pdf"})
"""Never a DICOM file without an ending, so not opened to see."""
MAX_PIXELS = 100_000_000
"""A picture with more pixels is not decoded: a small file can claim a size that fills the memory."""
MAX_BYTES = 1_000_000_000
"""Nor a picture file with more bytes, packed or not."""
MAX_UNPACKED, MAX_RATIO = 1_000_000_000, 50
"""Arrays that unpack to more bytes than the first, and to more than so many times what is packed, are refused."""
MEMORY_SHARE = 0.5
"""Share of the machine's memory that one file may need."""

# Opening files that others wrote
# ------------------------------------------------------------------------------


def open_regular(path: Path, root: Path | None = None) -> BinaryIO:
    """A regular file, for reading. A fifo, a device, a socket, or a link that leads out of `root` is not opened."""
    real = path.resolve()
    info = real.stat()
    if root is not None and not real.is_relative_to(root.resolve()):
        raise DataError("a link that leads out of the folder: copy the file into it")
    if stat.S_ISDIR(info.st_mode):
        raise IsADirectoryError(21, "Is a directory", str(path))
    if not stat.S_ISREG(info.st_mode):
        raise DataError(f"{kind_of(info.st_mode)}, not a file")
    # nothing waits and nothing is followed, should another file have taken the name in the meantime
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    file = os.fdopen(os.open(real, flags), "rb")
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise DataError("not a file")
    return file


def kind_of(mode: int) -> str:
    for test, words in ((stat.S_ISFIFO, "a fifo"), (stat.S_ISSOCK, "a socket")):
        if test(mode):
            return words
    return "a device"


def read_file(path: Path, root: Path | None = None, most: int | None = None) -> bytes:
    """A regular file's content, if it has at most `most` bytes (default: half of the memory)."""
    most = memory_limit() if most is None else most
    with open_regular(path, root) as file:
        has = os.fstat(file.fileno()).st_size
        if has > most:
            raise DataError(f"{size_words(has)} are more than {size_words(most)}")
        return file.read(most + 1)


def memory_limit() -> int:
    """Bytes that one file may need."""
    try:
        return int(MEMORY_SHARE * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):  # not on this system
        return 8_000_000_000


# Arrays
# ------------------------------------------------------------------------------


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """All arrays of an .npz file; pickled objects, and arrays that would not fit, are refused before they are read."""
    try:
        with open_regular(path) as file:
            _check_archive(file)
            with np.load(file, allow_pickle=False) as archive:
                if not hasattr(archive, "files"):
                    raise ValueError("one array alone")
                return {name: archive[name] for name in archive.files}
    except FileNotFoundError:
        raise DataError(f"there is no file {path}") from None
    except IsADirectoryError:
        raise DataError(f"{path} is a folder, not an .npz file") from None
    except DataError as error:
        raise DataError(f"{path} cannot be read as .npz: {error}") from None
    except Exception as error:  # zip, zlib, header and pickle errors: the file's, whatever their class
        if path.is_file() and path.stat().st_size == 0:
            raise DataError(f"{path} is empty: save the arrays again") from None
        raise DataError(f"{path} cannot be read as .npz: {_why(path, error)}") from error


def read_array(path: Path) -> NDArray[Any]:
    """The one array of an .npy file."""
    try:
        with open_regular(path) as file:
            _check_array(file, os.fstat(file.fileno()).st_size, "the array")
            file.seek(0)
            values: NDArray[Any] = np.load(file, allow_pickle=False)
            return values
    except FileNotFoundError:
        raise DataError(f"there is no file {path}") from None
    except (ValueError, OSError, EOFError, DataError) as error:
        raise DataError(f"{path} cannot be read as .npy: {error}") from None


def _check_archive(file: BinaryIO) -> None:
    """Raises DataError for arrays that declare another size than they have, or that the memory could not hold."""
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        unpacked, packed = sum(m.file_size for m in members), sum(m.compress_size for m in members)
        if unpacked > memory_limit():
            raise DataError(f"its arrays need {size_words(unpacked)}, more than half of this machine's memory")
        if unpacked > MAX_UNPACKED and unpacked > MAX_RATIO * packed:
            raise DataError(
                f"its arrays unpack from {size_words(packed)} to {size_words(unpacked)}: "
                "save them with numpy.savez, unpacked, if that is right"
            )
        for member in members:
            if member.filename.endswith(".npy"):
                with archive.open(member) as content:
                    _check_array(content, member.file_size, f"'{visible(member.filename[:-4])}'")
    file.seek(0)


def _check_array(content: IO[bytes], has: int, name: str) -> None:
    """`has`: bytes of the header and of what follows."""
    version = np.lib.format.read_magic(content)
    if version not in ((1, 0), (2, 0)):
        raise DataError(f"{name} is of numpy's format {'.'.join(map(str, version))}")
    reader = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, kind = reader(content)
    if kind.hasobject:
        return  # refused when it is read
    declared = math.prod(shape) * kind.itemsize
    if declared != has - content.tell():
        raise DataError(f"{name} declares {size_words(declared)} and has {size_words(has - content.tell())}")
    if declared > memory_limit():
        raise DataError(f"{name} needs {size_words(declared)}, more than half of this machine's memory")


def _why(path: Path, error: Exception) -> str:
    with open_regular(path) as file:
        start = file.read(6)
    if isinstance(error, zipfile.BadZipFile | zlib.error | EOFError) and start.startswith(b"PK"):
        return "it is cut short or damaged; copy or save it again"
    if start.startswith(b"\x93NUMPY"):
        return "it is a single .npy array; save images and labels together with numpy.savez"
    return str(error)


# Pictures
# ------------------------------------------------------------------------------


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
            has = archive.getinfo(self.name).file_size
            if has > MAX_BYTES:
                raise DataError(f"{size_words(has)} when unpacked are more than {size_words(MAX_BYTES)}")
            return archive.read(self.name)
        return read_file(self.root / self.name, self.root, MAX_BYTES)


_open = threading.local()


def _archive(path: Path) -> zipfile.ZipFile:
    """One open handle a thread: zip handles are not to be shared."""
    handles: dict[Path, zipfile.ZipFile] = _open.__dict__.setdefault("handles", {})
    if path not in handles:
        handles[path] = zipfile.ZipFile(open_regular(path))
    return handles[path]


def find_pictures(path: Path) -> list[Picture]:
    """All pictures under a folder (zips inside it included) or in one zip, in the order of their names.

    A link to a picture in the folder counts as the picture, one that leads out of it is broken. A link to a folder is
    not followed, so that no circle of links is.
    """
    if path.is_dir():
        found: list[Picture] = []
        for folder, folders, files in os.walk(path, onerror=_unreadable):
            folders.sort()
            for file in sorted(files):
                full = Path(folder) / file
                if full.suffix.lower() == ".zip":
                    found += _members(full, path)
                elif _looks_like_picture(full, path):
                    found.append(Picture(path, full.relative_to(path).as_posix(), mark=_mark(full)))
        return found
    if not path.exists():
        raise DataError(f"there is no {path}")
    if path.is_file() and zipfile.is_zipfile(path):
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


def _looks_like_picture(file: Path, root: Path) -> bool:
    ending = file.suffix.lower()
    if ending in SUFFIXES or ending in DICOM_SUFFIXES:
        return True
    return ending not in OTHER_SUFFIXES and not file.name.startswith(".") and _has_dicom_mark(file, root)


def _has_dicom_mark(file: Path, root: Path) -> bool:
    """Whether a file without a known ending says that it is DICOM: archives export them so."""
    try:
        with open_regular(file, root) as opened:
            return opened.read(132)[128:] == b"DICM"
    except (OSError, DataError, RuntimeError):
        return False


def is_dicom(picture: Picture) -> bool:
    """Whether a found picture is a DICOM file; every other one has an ending of its own."""
    return Path(picture.name).suffix.lower() not in SUFFIXES


def _members(path: Path, root: Path | None = None) -> list[Picture]:
    try:
        with open_regular(path, root) as file, zipfile.ZipFile(file) as archive:
            return [
                Picture(path, info.filename, archive=True, mark=f"{info.file_size}:{info.CRC:08x}")
                for info in sorted(archive.infolist(), key=lambda info: info.filename)
                if not info.is_dir() and Path(info.filename).suffix.lower() in SUFFIXES | DICOM_SUFFIXES
            ]
    except (zipfile.BadZipFile, OSError, DataError) as error:
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
