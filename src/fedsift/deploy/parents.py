"""Processes that must not outlive the one that started them."""

from __future__ import annotations

import ctypes
import signal
from contextlib import suppress


def end_with_parent() -> None:
    """Ask Linux to end this process when its parent is gone, however that ended; elsewhere nothing is asked."""
    parent_death_signal = 1
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(parent_death_signal, signal.SIGTERM)
