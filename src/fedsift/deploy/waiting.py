"""Status lines for operators: while something takes long, and where a run or a trial stands."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

EVERY = 3.0
"""Nothing is silent for more than five seconds."""
SILENT = 4.0
"""Seconds without a word after which the last one is said again, with how long it has been so."""

Say = Callable[[str], None]
"""Tells the operator one line."""


@contextmanager
def meanwhile(
    words: str, say: Callable[[str], object], every: float = EVERY, *, at_once: bool = True
) -> Iterator[None]:
    """Say what is going on at once, and again with its seconds until the block has ended.

    `at_once`: False for what mostly takes a moment: then nothing is said unless it takes longer.
    """
    over, began = threading.Event(), time.monotonic()

    def remind() -> None:
        while not over.wait(every):
            say(f"{words} ({time.monotonic() - began:.0f} s)")

    if at_once:
        say(words)
    thread = threading.Thread(target=remind, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


class StatusLine:
    """Says where a run stands: at once when that changes, and again every few seconds when it does not."""

    def __init__(self, say: Say, clock: Callable[[], float] = time.monotonic) -> None:
        self._say, self._clock = say, clock
        self._words, self._since, self._said = "", clock(), -SILENT

    def now(self, words: str) -> None:
        """`words`: what is waited for; a change of the figures in it alone is no news."""
        at = self._clock()
        key = _without_figures(words)
        if key != _without_figures(self._words):
            self._since = at
        elif at - self._said < SILENT:
            return
        self._words, self._said = words, at
        lasted = at - self._since
        self._say(words if lasted < 1 else f"{words} ({lasted:.0f} s)")


class Starting:
    """Says that something starts, every few seconds, and once that it is there; then no more."""

    def __init__(self, words: str, there: str, say: Say) -> None:
        self._words, self._there, self._say = words, there, say
        self._status = StatusLine(say)
        self._over = False

    def look(self, ready: Callable[[], bool]) -> None:
        if self._over:
            return
        self._over = ready()
        if self._over:
            self._say(self._there)
        else:
            self._status.now(self._words)


def _without_figures(words: str) -> str:
    return re.sub(r"\d+", "#", words)
