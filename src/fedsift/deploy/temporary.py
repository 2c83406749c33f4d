"""Temporary folders for local sockets: short paths, private, removed when they are stale."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fedsift.core.errors import ConfigError
from fedsift.core.process import is_alive

PREFIX = "fedsift-site-"
OWNER = "pid"
LONGEST_SOCKET = 100
"""Bytes of a socket's path that every system takes; Linux takes 107."""


def places() -> list[Path]:
    """Where temporary folders may be, best first."""
    wanted = [tempfile.gettempdir(), os.environ.get("XDG_RUNTIME_DIR", ""), "/tmp", "/var/tmp"]
    found = [Path(place) for place in dict.fromkeys(wanted) if place]
    return [place for place in found if place.is_dir() and os.access(place, os.W_OK)]


def new_socket(candidates: Iterable[Path] | None = None) -> Path:
    """A place for a socket in a folder of its own that only this user can enter."""
    looked = list(places() if candidates is None else candidates)
    for place in looked:
        remove_stale(place)
        if len(str(place / f"{PREFIX}12345678" / "sock.new").encode()) <= LONGEST_SOCKET:
            folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=place))
            (folder / OWNER).write_text(str(os.getpid()), "ascii")
            return folder / "sock"
    raise ConfigError(
        f"no temporary folder has a path short enough for a socket ({', '.join(map(str, looked))}): set TMPDIR to a "
        f"folder whose path has at most {LONGEST_SOCKET - 30} characters"
    )


@contextmanager
def removed(folder: Path) -> Iterator[None]:
    """A temporary folder that goes when the block is left."""
    try:
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def remove_stale(place: Path) -> list[Path]:
    """Remove folders of processes that are gone, this user's own; returns them."""
    removed = []
    for folder in place.glob(f"{PREFIX}*"):
        try:
            if folder.stat().st_uid == os.getuid() and not is_alive(int((folder / OWNER).read_text("ascii"))):
                shutil.rmtree(folder, ignore_errors=True)
                removed.append(folder)
        except (OSError, ValueError):
            continue  # being made, another's, or another program's
    return removed
