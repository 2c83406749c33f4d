"""What a site takes of a machine that it has for itself: its processes' own pages, and each mapped file once."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

HEAD = re.compile(r"^[0-9a-f]+-[0-9a-f]+ \S+ \S+ \S+ \d+\s*(.*)$")


def megabytes(pids: Iterable[int]) -> float:
    """Proportional anonymous memory, and for every file the most that one of the processes has of it."""
    own = 0
    files: dict[str, int] = defaultdict(int)
    for pid in pids:
        try:
            text = Path(f"/proc/{pid}/smaps").read_text("utf-8", errors="replace")
        except OSError:
            continue
        path, resident = "", 0
        mapped: dict[str, int] = defaultdict(int)
        for line in text.splitlines():
            found = HEAD.match(line)
            if found:
                path = found[1]
            elif line.startswith("Rss:"):
                resident = int(line.split()[1])
            elif line.startswith("Anonymous:"):
                if path.startswith("/"):
                    mapped[path] += resident - int(line.split()[1])
            elif line.startswith("Private_Dirty:" if path.startswith("/") else "Pss:"):
                own += int(line.split()[1])
        for name, size in mapped.items():
            files[name] = max(files[name], size)
    return (own + sum(files.values())) / 1024


def proportional(pids: Iterable[int]) -> float:
    """Proportional memory (PSS): pages that several processes share are divided among them."""
    total = 0
    for pid in pids:
        try:
            text = Path(f"/proc/{pid}/smaps_rollup").read_text("utf-8")
        except OSError:
            continue
        total += next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:"))
    return total / 1024
