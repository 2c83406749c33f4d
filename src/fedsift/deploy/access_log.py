"""The list of who came to a door: one line of JSON a request, in files whose size is bounded."""

from __future__ import annotations

import contextlib
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedsift.deploy.private import append_private

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
