"""The gateway's access log (a line of JSON a request, in rotated files) and the throttled log for its operator."""

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

# The operator's log: each message once, repetitions summarised
# ------------------------------------------------------------------------------

FIRST_FEW = 3
"""Different messages of one kind, from one client, that are logged at once."""
MAX_CLIENTS_OF_A_KIND = 64
"""Clients that are counted separately for one kind of message; further ones share the count of `ELSEWHERE`."""
ELSEWHERE = "other addresses"
SUMMED_UP_EVERY = 600.0
FORGOTTEN_AFTER = 86400.0
REMINDED = 10
"""Warnings of one problem: at once, a minute later, two minutes after that, then four; the last after eight and a half
hours."""


@dataclass
class LogCount:
    """What was logged for one client and one kind of message."""

    said: set[str] = field(default_factory=set)
    more: int = 0
    last: str = ""
    since: float = 0.0
    """When the first of the suppressed messages came."""
    seen: float = 0.0


class ThrottledLog:
    """Logs new messages at once; further ones of the same client and kind are summarised in a line every ten
    minutes."""

    def __init__(self, write: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._write, self._clock = write, clock
        self._heard: dict[str, dict[str, LogCount]] = {}

    def report(self, kind: str, caller: str, words: str) -> None:
        now = self._clock()
        heard = self._place(kind, caller, now)
        heard.seen = now
        if words in heard.said:
            return
        if len(heard.said) < FIRST_FEW:
            heard.said.add(words)
            self._write(words)
            return
        heard.since = heard.since if heard.more else now
        heard.more, heard.last = heard.more + 1, words

    def summarise(self) -> None:
        """Log a summary of suppressed messages where ten minutes are over."""
        now = self._clock()
        for callers in self._heard.values():
            for caller, heard in callers.items():
                if heard.more and now - heard.since >= SUMMED_UP_EVERY:
                    minutes = (now - heard.since) / 60
                    self._write(
                        f"{heard.more} more like that from {caller} in {minutes:.0f} minutes, the last: {heard.last}"
                    )
                    heard.more = 0

    def _place(self, kind: str, caller: str, now: float) -> LogCount:
        callers = self._heard.setdefault(kind, {})
        if caller not in callers and len(callers) >= MAX_CLIENTS_OF_A_KIND:
            kept = {name: heard for name, heard in callers.items() if heard.more or now - heard.seen < FORGOTTEN_AFTER}
            callers = self._heard[kind] = kept
            if len(callers) >= MAX_CLIENTS_OF_A_KIND:
                caller = ELSEWHERE
        return callers.setdefault(caller, LogCount())


class RepeatedWarning:
    """Decides when a lasting problem is reported again: ever more rarely, up to a number of times."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._trouble, self._times, self._due = "", 0, 0.0

    def is_due(self, trouble: str) -> bool:
        """Whether to report the present problem (empty: none); a change is reported at once."""
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
    """Writes the access log; never a header, a body or credentials. A full disk does not stop requests."""

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
