"""Processes and locks between them: file locks, an end with the parent, which processes are alive.

Locks go with the process that holds them, however it ends. This module imports no torch, and nothing that only some
systems have: on Windows locks work, and a process whose parent was killed is not ended.
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from filelock import BaseFileLock

PRIVATE = 0o600
PARENT_POLL = 1.0
"""Seconds between two looks at whether the parent is still there."""
LOOKS = 5
"""Looks at a lock before it counts as held: another process that only looks holds it for an instant."""
LOOK_PAUSE = 0.02

# File locks
# ------------------------------------------------------------------------------


class LockHeld(OSError):
    """Another process has the lock."""


def file_lock(file: Path, timeout: float = -1.0) -> BaseFileLock:
    """A lock that one process holds at a time, as a context manager; threads of one process exclude each other too.

    timeout: seconds to wait for it, -1 without end, 0 not at all; `filelock.Timeout` is raised then.
    """
    from filelock import FileLock  # takes 50 ms

    return FileLock(str(file), timeout=timeout, mode=PRIVATE, thread_local=False)


def acquire(file: Path) -> BaseFileLock:
    """Take the lock now and keep it until `release()`; raises `LockHeld`."""
    from filelock import Timeout

    lock = file_lock(file, LOOKS * LOOK_PAUSE)
    try:
        lock.acquire(poll_interval=LOOK_PAUSE)
    except Timeout:
        raise LockHeld(f"{file} is locked by another process") from None
    return lock


@contextmanager
def exclusive(file: Path, refusal: Exception) -> Iterator[None]:
    """Hold the lock while the block runs; raises `refusal` where another process has it."""
    try:
        lock = acquire(file)
    except LockHeld:
        raise refusal from None
    try:
        yield
    finally:
        lock.release()


def shared(file: Path) -> AbstractContextManager[None]:
    """Hold the lock together with others that call this, and against those that call `exclusive` (POSIX)."""
    import fcntl

    @contextmanager
    def hold() -> Iterator[None]:
        with file.open("w") as held:
            fcntl.flock(held, fcntl.LOCK_SH)
            yield

    return hold()


def is_locked(file: Path) -> bool | None:
    """Whether a process holds the lock, without changing anything on the disk; None where that cannot be told."""
    try:
        import fcntl
    except ImportError:
        return _is_locked_by_trying(file)
    try:
        with file.open("r") as held:
            fcntl.flock(held, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    except OSError:
        return None
    return False


def _is_locked_by_trying(file: Path) -> bool | None:
    if not file.exists():
        return False
    try:
        acquire(file).release()
    except LockHeld:
        return True
    except OSError:
        return None
    return False


# Parents and children
# ------------------------------------------------------------------------------


def end_with_parent() -> None:
    """Ask Linux to end this process when its parent is gone, however that ended; elsewhere nothing is asked.

    Safe between fork and exec; `when_parent_ends` is for a program that has something to clean up.
    """
    parent_death_signal = 1
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(parent_death_signal, signal.SIGTERM)


def when_parent_ends(action: Callable[[], None], parent: int | None = None) -> None:
    """Call `action`, in a thread of its own, once this process has another parent than now (or than `parent`)."""
    known = os.getppid() if parent is None else parent

    def watch() -> None:
        while os.getppid() == known:
            time.sleep(PARENT_POLL)
        action()

    threading.Thread(target=watch, daemon=True).start()


def is_alive(pid: int) -> bool:
    """Whether there is a process with this number (POSIX)."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
