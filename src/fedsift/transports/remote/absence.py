"""Who is waited for, and since when: the coordinator gives up on sites that are gone, and says whom it waits for."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

AT_MOST_EVERY = 1.0
"""Seconds between two reports."""

Report = Callable[[Mapping[str, Any]], object]
"""Is told whom the coordinator waits for; for a person's eyes, nothing follows from it."""


class Absences:
    """Sites whose node is gone, and since when. The time counts on over rounds: it is waited for once."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._since: dict[str, float] = {}

    def left(self, sites: Iterable[str]) -> None:
        """These have no node, or the transport could not reach it."""
        for site in sites:
            self._since.setdefault(site, self._clock())

    def returned(self, site: str) -> None:
        self._since.pop(site, None)

    def seconds(self, site: str) -> float | None:
        """For how long it has been gone; None if it is here."""
        since = self._since.get(site)
        return None if since is None else self._clock() - since

    def given_up(self, site: str, grace: float) -> bool:
        gone = self.seconds(site)
        return gone is not None and gone >= grace


@dataclass
class WaitingReport:
    """Reports at most once a second, and at once when somebody else is waited for."""

    report: Report | None = None
    clock: Callable[[], float] = time.time
    _last: float = -math.inf
    _who: tuple[str, ...] = ()
    _began: float = field(default=0.0)

    def update(self, what: str, waiting: Mapping[str, str], **more: Any) -> None:
        """`waiting`: whom for, with a word on each."""
        if self.report is None:
            return
        now, who = self.clock(), (what, *waiting)
        if who[:1] != self._who[:1] or not self._who:
            self._began = now
        if who == self._who and now - self._last < AT_MOST_EVERY:
            return
        self._last, self._who = now, who
        self.report({"what": what, "since": self._began, "at": now, "waiting": dict(waiting), **more})

    def done(self, what: str) -> None:
        self._who = ()
        if self.report is not None:
            self.report({"what": what, "since": self.clock(), "at": self.clock(), "waiting": {}})
