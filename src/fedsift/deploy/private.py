"""Files and folders that only their owner can read: notebooks, sockets, keys, logs of what left."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedsift.contract.errors import ConfigError


def private_folder(path: Path) -> Path:
    """The folder, made if it is not there, closed to others (0700)."""
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.chmod(0o700)
    return path


@contextmanager
def alone(file: Path, otherwise: str) -> Iterator[None]:
    """A lock that nobody else has, in a private folder; it goes with this process, however it ends. `otherwise`: what
    is said where somebody has it."""
    with (private_folder(file.parent) / file.name).open("w") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigError(otherwise) from None
        yield


def append_private(path: Path, line: str) -> None:
    """One more line of a log that others cannot read (0600)."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    with os.fdopen(descriptor, "a", encoding="utf-8") as file:
        file.write(line + "\n")


def keep_to_oneself() -> None:
    """From here on, whatever this process and those that it starts write is for this user alone."""
    os.umask(0o077)
