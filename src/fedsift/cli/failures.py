"""One-line messages and exit codes for failures outside fedsift: disks, folders, signals."""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from fedsift.core.errors import FedsiftError

INTERRUPTED = 130
TERMINATED = 143
BROKEN_PIPE = 141
STORAGE = 8
"""Exit code: a folder or a disk does not take or give a file."""

FIXES = {
    errno.ENOSPC: "the disk is full: make room, or write elsewhere (--out, FEDSIFT_CACHE)",
    errno.EDQUOT: "your share of the disk is used up: make room, or write elsewhere (--out, FEDSIFT_CACHE)",
    errno.EROFS: "the disk is read-only: write elsewhere (--out, FEDSIFT_CACHE)",
    errno.EACCES: "no permission: choose a folder that you may use (--out, FEDSIFT_CACHE), or change its rights",
    errno.EPERM: "no permission: choose a folder that you may use (--out, FEDSIFT_CACHE), or change its rights",
    errno.ENAMETOOLONG: "the path is too long: use a shorter folder (--out, TMPDIR)",
    errno.ENOTDIR: "a part of the path is a file, not a folder",
    errno.EISDIR: "it is a folder, not a file",
    errno.EEXIST: "it exists already, and is not a folder",
    errno.EMFILE: "too many open files: raise `ulimit -n`",
    errno.ENOMEM: "not enough memory: use fewer workers or a smaller `size`",
}


class Terminated(KeyboardInterrupt):
    """SIGTERM: stop as on Ctrl-C, so that the run says how to go on."""


@contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
    """While a command runs, `kill` and a job scheduler's end of time stop it as Ctrl-C does, with their own code."""
    came: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        came.append(number)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a second one ends it at once
        raise Terminated

    try:
        before: Any = signal.signal(signal.SIGTERM, stop)
    except ValueError:  # not in the main thread
        yield
        return
    try:
        yield
    except SystemExit as end:
        if came and end.code == INTERRUPTED:  # what reads the command line takes every interrupt for Ctrl-C
            raise SystemExit(TERMINATED) from None
        raise
    finally:
        signal.signal(signal.SIGTERM, before)


def line_of(error: Exception) -> str:
    """The one line about an error; empty when nobody listens any more."""
    if isinstance(error, BrokenPipeError):
        _silence()
        return ""
    if not isinstance(error, OSError):
        return str(error)
    where = f"{error.filename}: " if error.filename else ""
    fix = FIXES.get(error.errno or 0, "")
    if not fix:
        return f"{where}{error.strerror or error}"
    return f"{where}{fix}"


def exit_code_of(error: BaseException) -> int:
    if isinstance(error, FedsiftError):
        return error.exit_code
    if isinstance(error, Terminated):
        return TERMINATED
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    return BROKEN_PIPE if isinstance(error, BrokenPipeError) else STORAGE


def _silence() -> None:
    """The reader of a pipe has left: what is still buffered must not fail when Python ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
