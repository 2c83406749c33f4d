"""Files that are never half written, and names that are safe for them. This module imports no torch."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def write_atomically(path: Path, data: bytes) -> None:
    """Either the old file or the new one, never a part: write beside, flush to disk, rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _put(path, data, 0o666)  # less what the user's mask takes away


def write_private(path: Path, data: bytes | str) -> Path:
    """The same, and never readable by others (0600), not even while it grows."""
    _put(path, data.encode("utf-8") if isinstance(data, str) else data, 0o600)
    return path


@contextmanager
def staged_private(path: Path, data: bytes) -> Iterator[None]:
    """The new private file lies beside `path` while the block runs, and takes its place only where that ends well.

    What fails on a disk (no folder, no rights, no room) fails before the block.
    """
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    with _staged(path, data, 0o600):
        yield


def _put(path: Path, data: bytes, rights: int) -> None:
    with _staged(path, data, rights):
        pass


@contextmanager
def _staged(path: Path, data: bytes, rights: int) -> Iterator[None]:
    beside = path.with_name(f"{path.name}.{os.getpid()}-{threading.get_ident()}.tmp")
    try:
        with _named(path):
            beside.unlink(missing_ok=True)  # of a process that was killed, with whatever rights
            with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, rights), "wb") as file:
                file.write(data)
                file.flush()
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


def safe_name(site: str) -> str:
    """A file name for a site: readable, without separators, different for different sites."""
    readable = re.sub(r"[^A-Za-z0-9._-]", "_", site)[:60].lstrip(".") or "site"
    if readable == site:
        return readable
    digest = hashlib.blake2b(json.dumps(site).encode(), digest_size=16).hexdigest()
    return f"{readable}-{digest[:8]}"
