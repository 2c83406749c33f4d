"""Where the time of a run goes: seconds under a few plain names, cheap enough to be always on."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Stopwatch:
    """Adds up seconds by name; names may nest only where one is not counted inside another."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.whole = 0.0

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - started

    def table(self) -> list[dict[str, float | str]]:
        """Name, seconds and share of the whole, largest first; what no name covers is the method's own work."""
        rest = max(0.0, self.whole - sum(self.seconds.values()))
        parts = {**self.seconds, "method: choosing, mixtures, aggregation": rest}
        return [
            {
                "part": name,
                "seconds": round(spent, 4),
                "share": round(spent / self.whole, 4) if self.whole else 0.0,
            }
            for name, spent in sorted(parts.items(), key=lambda item: -item[1])
        ]
