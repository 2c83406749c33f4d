"""The list of who came to a door: one line of JSON a request, in files whose size is bounded."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedsift.core.files import append_private

# What a door tells the person who runs it: each thing once, a flood in one line, and never nothing
# ------------------------------------------------------------------------------

FIRST_FEW = 3
"""Different sentences of one kind, from one caller, that are told as they come."""
CALLERS_TOLD_APART = 64
"""Of one kind; those beyond share the place of `ELSEWHERE`."""
ELSEWHERE = "other addresses"
SUMMED_UP_EVERY = 600.0
FORGOTTEN_AFTER = 86400.0
REMINDED = 10
"""Times that one trouble is told of: at once, a minute later, two minutes after that, then four; the last after eight
hours and a half."""


@dataclass
class LogCount:
    """What one caller has been told of, in one kind of things."""

    said: set[str] = field(default_factory=set)
    more: int = 0
    last: str = ""
    since: float = 0.0
    """When the first of those that were not told came."""
    seen: float = 0.0


class ThrottledLog:
    """Tells what is new. What one caller says too much of is counted, and told in one line every ten minutes."""

    def __init__(self, aloud: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._aloud, self._clock = aloud, clock
        self._heard: dict[str, dict[str, LogCount]] = {}

    def tell(self, kind: str, caller: str, words: str) -> None:
        now = self._clock()
        heard = self._place(kind, caller, now)
        heard.seen = now
        if words in heard.said:
            return
        if len(heard.said) < FIRST_FEW:
            heard.said.add(words)
            self._aloud(words)
            return
        heard.since = heard.since if heard.more else now
        heard.more, heard.last = heard.more + 1, words

    def sum_up(self) -> None:
        """Tell what was only counted, when its time has come."""
        now = self._clock()
        for callers in self._heard.values():
            for caller, heard in callers.items():
                if heard.more and now - heard.since >= SUMMED_UP_EVERY:
                    minutes = (now - heard.since) / 60
                    self._aloud(
                        f"{heard.more} more like that from {caller} in {minutes:.0f} minutes, the last: {heard.last}"
                    )
                    heard.more = 0

    def _place(self, kind: str, caller: str, now: float) -> LogCount:
        callers = self._heard.setdefault(kind, {})
        if caller not in callers and len(callers) >= CALLERS_TOLD_APART:
            kept = {name: heard for name, heard in callers.items() if heard.more or now - heard.seen < FORGOTTEN_AFTER}
            callers = self._heard[kind] = kept
            if len(callers) >= CALLERS_TOLD_APART:
                caller = ELSEWHERE
        return callers.setdefault(caller, LogCount())


class RepeatedWarning:
    """Tells of a trouble again, ever more rarely, until it is over or has been told often enough."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._trouble, self._times, self._due = "", 0, 0.0

    def is_due(self, trouble: str) -> bool:
        """Whether to tell of the trouble that there is now; for another one, or none after one, at once."""
        now = self._clock()
        if trouble != self._trouble:
            self._trouble, self._times, self._due = trouble, 0, now
        elif not trouble:
            return False
        if now < self._due or self._times >= REMINDED:
            return False
        self._due = now + 60.0 * 2**self._times
        self._times += 1
        return True


LARGEST = 32 * 2**20
"""Bytes of one file; then it becomes `access.jsonl.1`, that one `.2`, and so on."""
KEPT = 4
"""Older files beside the one that is written."""


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


class AccessLog:
    """Never a header, a body or an address's credentials. A disk that is full keeps nobody out."""

    def __init__(self, path: Path | None, largest: int = LARGEST) -> None:
        self.path, self._largest = path, largest

    def write(self, **line: Any) -> None:
        if self.path is None:
            return
        with contextlib.suppress(OSError):
            append_private(self.path, json.dumps({"at": now(), **line}))
            if self.path.stat().st_size >= self._largest:
                self._turn()

    def request(self, **line: Any) -> None:
        """One request, in the order that readers of the file know."""
        reason = line.pop("reason")
        self.write(**line, **({"reason": reason[:300]} if line["status"] >= 400 else {}))

    def _turn(self) -> None:
        assert self.path is not None
        older = [self.path.with_name(f"{self.path.name}.{number}") for number in range(KEPT, 0, -1)]
        for to, source in zip(older, [*older[1:], self.path], strict=True):
            if source.exists():
                source.replace(to)
