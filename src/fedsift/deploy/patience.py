"""A word every few seconds while something takes its time: libraries load, data are read."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

EVERY = 3.0
"""Nothing is silent for more than five seconds."""


@contextmanager
def meanwhile(words: str, say: Callable[[str], object], every: float = EVERY) -> Iterator[None]:
    """Say what is going on at once, and again with its seconds until the block has ended."""
    over, began = threading.Event(), time.monotonic()

    def remind() -> None:
        while not over.wait(every):
            say(f"{words} ({time.monotonic() - began:.0f} s)")

    say(words)
    thread = threading.Thread(target=remind, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
