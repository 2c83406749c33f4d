"""Writing files atomically and privately, and safe file names. Imports no torch."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

# Where things are kept that can be made again
# ------------------------------------------------------------------------------


def cache_root() -> Path:
    """FEDSIFT_CACHE, or `fedsift` in the user's cache folder."""
    chosen = os.environ.get("FEDSIFT_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "fedsift"


# Files and folders that only their owner can read: notebooks, sockets, keys, logs of what left
# ------------------------------------------------------------------------------


def private_folder(path: Path) -> Path:
    """The folder, made if it is not there, closed to others (0700)."""
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.chmod(0o700)
    return path


def append_private(path: Path, line: str) -> None:
    """One more line of a log that others cannot read (0600)."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    with os.fdopen(descriptor, "a", encoding="utf-8") as file:
        file.write(line + "\n")


def make_files_private() -> None:
    """From here on, whatever this process and those that it starts write is for this user alone."""
    os.umask(0o077)


def write_atomically(path: Path, data: bytes) -> None:
    """Either the old file or the new one, never a part: write beside, flush to disk, rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _put(path, data, 0o666)  # less what the user's mask takes away


def write_private(path: Path, data: bytes | str) -> Path:
    """The same, and never readable by others (0600), not even while it grows."""
    _put(path, data.encode("utf-8") if isinstance(data, str) else data, 0o600)
    return path


def rewrite(path: Path, data: bytes) -> None:
    """The same for a file that is there already, which keeps its rights: one that others cannot read stays so."""
    _put(path, data, 0o600, path.stat().st_mode & 0o777)


@contextmanager
def staged_private(path: Path, data: bytes) -> Iterator[None]:
    """The new private file lies beside `path` while the block runs, and takes its place only where that ends well.

    What fails on a disk (no folder, no rights, no space) fails before the block.
    """
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    with _staged(path, data, 0o600):
        yield


def _put(path: Path, data: bytes, rights: int, in_the_end: int | None = None) -> None:
    with _staged(path, data, rights, in_the_end):
        pass


@contextmanager
def _staged(path: Path, data: bytes, rights: int, in_the_end: int | None = None) -> Iterator[None]:
    """`in_the_end`: rights that the whole file gets, whatever the user's mask."""
    beside = path.with_name(f"{path.name}.{os.getpid()}-{threading.get_ident()}.tmp")
    try:
        with _named(path):
            beside.unlink(missing_ok=True)  # of a process that was killed, with whatever rights
            with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, rights), "wb") as file:
                file.write(data)
                file.flush()
                if in_the_end is not None:
                    beside.chmod(in_the_end)
                os.fsync(file.fileno())
        yield
        with _named(path):
            os.replace(beside, path)
    except BaseException:
        with suppress(OSError):  # the first error says what is wrong
            beside.unlink(missing_ok=True)
        raise


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """An error of the disk names the file that was asked for, not the one beside it."""
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


# Checksums: a disk or a copy can change a byte, and nothing may be computed from that
# ------------------------------------------------------------------------------


def checksum(data: bytes) -> str:
    """32 hexadecimal digits, other ones for other bytes."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


CHECK = re.compile(rb'^(?P<body>.*?),? ?"check": ?"(?P<check>[0-9a-f]{8})"}\s*$', re.DOTALL)


def line_with_check(values: Mapping[str, Any]) -> str:
    """One line of JSON, without its end, whose last key is a checksum of all before it."""
    body = json.dumps(values)[:-1]
    return f'{body}{", " if values else ""}"check": "{_short_checksum(body.encode())}"}}'


def read_checked_line(line: bytes) -> dict[str, Any]:
    """What `line_with_check` wrote, without the checksum; raises ValueError for any other line."""
    found = CHECK.match(line)
    if found is None:
        raise ValueError("a line without its checksum")
    if _short_checksum(found["body"]) != found["check"].decode():
        raise ValueError("its bytes are not those that were written")
    values = json.loads(found["body"] + b"}")
    return dict(values)


def _short_checksum(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=4).hexdigest()


# Names
# ------------------------------------------------------------------------------


def safe_name(site: str) -> str:
    """A file name for a site: readable, without separators, different for different sites."""
    readable = re.sub(r"[^A-Za-z0-9._-]", "_", site)[:60].lstrip(".") or "site"
    if readable == site:
        return readable
    digest = hashlib.blake2b(json.dumps(site).encode(), digest_size=16).hexdigest()
    return f"{readable}-{digest[:8]}"
