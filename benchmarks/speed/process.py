"""Sides as child processes that train a round on command; their memory is read from outside."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.speed.workload import Workload

AGAINST = "the other source"
OFFLINE = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "0",
}


class Side:
    """A running side. Other frameworks' are ready only with their first round, so nobody waits for that there."""

    def __init__(self, name: str, work: Workload, source: Path | None = None) -> None:
        """`source`: another source tree (its `src` folder), for a side that compares two states of fedsift."""
        self.name = name if source is None else f"{name}, {AGAINST}"
        self._born = time.perf_counter()
        read, write = os.pipe()
        first = [] if source is None else [str(source.absolute())]
        path = os.pathsep.join([*first, str(Path.cwd()), *(entry for entry in sys.path if entry)])
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START, name, work.to_json()],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, **OFFLINE, "PYTHONPATH": path, "SIDE_PIPE": str(write)},
            pass_fds=[write],
        )
        os.close(write)
        self._answers = os.fdopen(read)
        if not name.startswith(("flower", "pfl")):
            self._answer()

    def pause(self) -> None:
        """Keep the whole tree of processes from running: some sides have daemons that never rest."""
        self._signal(signal.SIGSTOP)

    def wake(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, what: signal.Signals) -> None:
        for pid in _tree(self._process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, what)

    def round(self, again: bool = False) -> float:
        """Seconds of one round, of the next sites or of those of the last round again."""
        assert self._process.stdin is not None
        self._process.stdin.write("again\n" if again else "go\n")
        self._process.stdin.flush()
        return float(self._answer()["seconds"])

    @property
    def age(self) -> float:
        """Seconds since the process was started."""
        return time.perf_counter() - self._born

    def memory(self) -> float:
        """Megabytes of the whole tree of processes, shared pages counted once."""
        return memory_of_tree(self._process.pid)

    def end(self) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write("end\n")
            self._process.stdin.close()
        except OSError:
            pass
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _answer(self) -> dict[str, Any]:
        line = self._answers.readline()
        if not line:
            raise RuntimeError(f"the side '{self.name}' stopped (exit code {self._process.wait()})")
        facts: dict[str, Any] = json.loads(line)
        return facts


# the pipe has another number in the child; it is known there as 3
_START = """
import os, sys
pipe = int(os.environ["SIDE_PIPE"])
if pipe != 3:
    os.dup2(pipe, 3)
os.set_inheritable(3, False)
from benchmarks.speed.side_main import main
main()
"""


def memory_of_tree(root: int) -> float:
    """Megabytes of a process and all its descendants, shared pages counted once."""
    total = 0
    for pid in _tree(root):
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total / 1024


def _tree(root: int) -> list[int]:
    """The process and all its descendants."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, IndexError, ValueError):
                continue
            children.setdefault(parent, []).append(int(entry.name))
    found, waiting = [], [root]
    while waiting:
        pid = waiting.pop()
        found.append(pid)
        waiting += children.get(pid, [])
    return found
