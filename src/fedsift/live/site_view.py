"""A site's own page: what it was asked, what left it, and its audit. It is shown to this machine alone."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from fedsift.core.text import short
from fedsift.live.page import site_page
from fedsift.runs.events import LineTail

POLL = 0.5
SHOWN = 300
"""Lines of the log on the page; all are in the file."""
LANE = 2000
"""Answers in the lane."""


class SiteView:
    """Reads the list of all that left the site, and says what is new in it."""

    def __init__(self, name: str, egress: Path, audit: Path) -> None:
        """`egress`: the list. `audit`: where `fedsift flower audit` writes the site's private page."""
        self.name, self.egress, self._audit = name, egress, audit
        self.tail = LineTail(egress)
        self.lines: deque[dict[str, Any]] = deque(maxlen=SHOWN)
        self.lane: deque[str] = deque(maxlen=LANE)
        self.answered = self.refused = self.bytes = self.strange = 0
        self.runs: list[str] = []

    def page(self, nonce: str) -> str:
        return site_page(self.name, nonce)

    def audit(self) -> bytes | None:
        """The site's audit page, None while there is none."""
        if not self._audit.is_file() or self._audit.is_symlink():
            return None
        return self._audit.read_bytes()

    def take(self) -> bool:
        """Read on; whether there was anything."""
        lines = self.tail.lines()
        for line in lines:
            try:
                self._note(json.loads(line))
            except (ValueError, TypeError, AttributeError):
                self.strange += 1
        return bool(lines)

    def _note(self, line: dict[str, Any]) -> None:
        size = line.get("bytes")
        if not isinstance(size, int) or isinstance(size, bool):
            raise ValueError("no line of ours")
        request = line.get("request")
        if request is None:  # the door's own note of what went through it: bytes on the wire
            entry = {"request": f"wire {short(line.get('route', ''), 80)}", "fields": [], "run": ""}
        else:
            refused = bool(line.get("refused"))
            self.answered += not refused
            self.refused += refused
            self.bytes += size
            self.lane.append("4" if refused else "1")
            run = short(line.get("run", ""), 80)
            if run and run not in self.runs:
                self.runs.append(run)
            fields = [short(item, 80) for item in line.get("fields", [])][:40]
            entry = {"request": short(request, 120), "fields": fields, "run": run}
            if refused:
                entry["refused"] = short(line["refused"], 300)
        self.lines.append(
            {"at": short(line.get("at", ""), 40), "bytes": size, "sha256": short(line.get("sha256", ""), 12)} | entry
        )

    def told(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "answered": self.answered,
            "refused": self.refused,
            "bytes": self.bytes,
            "runs": self.runs[-20:],
            "lane": "".join(self.lane),
            "lines": list(self.lines),
            "audit": self._audit.is_file(),
            "strange": self.strange,
        }

    async def messages(self) -> AsyncIterator[str]:
        said, quiet = "", 0
        while True:
            self.take()
            now = json.dumps(self.told())
            if now != said:
                said, quiet = now, 0
                yield now
            elif quiet > 30:
                quiet = 0
                yield ""
            await asyncio.sleep(POLL)
            quiet += 1
