"""Processes of a test, ended by their ids whatever happens, with everything that they started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType

CLI = "import sys; sys.argv[0] = 'fedsift'; from fedsift.cli import main; main()"


def family(pid: int) -> list[int]:
    """The process and its descendants, by their own records in /proc."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                fields = (entry / "stat").read_text("utf-8", errors="replace").rpartition(")")[2].split()
                children.setdefault(int(fields[1]), []).append(int(entry.name))
    found, waiting = [], [pid]
    while waiting:
        found.append(waiting.pop())
        waiting += children.get(found[-1], [])
    return found


def kill_family(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL to all of them at once, as when a machine loses power."""
    members = family(process.pid) if process.poll() is None else []
    for pid in members:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()


class Processes:
    """Starts `fedsift` commands with their output in files, and ends them all on the way out."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.started: list[subprocess.Popen[bytes]] = []

    def fedsift(self, log: str, *arguments: str | Path, module: Path | None = None) -> subprocess.Popen[bytes]:
        """`module`: a file to import first, e.g. one with a method of its own."""
        before = ""
        if module is not None:
            before = f"import sys; sys.path.insert(0, {str(module.parent)!r}); import {module.stem}; "
        with (self.folder / f"{log}.log").open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-c", before + CLI, *map(str, arguments)],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.started.append(process)
        return process

    def logs(self) -> str:
        """The ends of all logs, to read after a failure."""
        return "\n".join(
            f"== {file.name}\n{file.read_text('utf-8', errors='replace')[-2000:]}"
            for file in sorted(self.folder.glob("**/*.log"))
        )

    def __enter__(self) -> Processes:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in reversed(self.started):
            kill_family(process)


def wait_until(condition: Callable[[], object], seconds: float, what: str) -> None:
    """Wait for a condition, or fail with its name."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"waited {seconds:.0f} s for {what}")
        time.sleep(0.05)
