"""Starts and ends sessions of processes for Flower's programs, with the environment that keeps them on this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import BinaryIO

from fedsift.core.errors import ConfigError

SIMULATED_SITES = "FEDSIFT_SIMULATED_SITES"
"""In a simulation, set for its nodes: the folder that holds one folder of sites for each federation."""
LOG_FILE = "flower.log"
"""In a run's folder: what Flower's programs said."""
POLL = 0.05

SWITCHES = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}
"""No telemetry, no look for updates, no installation of packages at run time, no usage statistics."""


def offline(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment with the four switches set.

    Flower's programs start one another by name, so the folder of this Python's programs comes first in the path.
    Ray would give its workers the lowest priority; beside other work a simulation would then hardly move.
    """
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    return {"RAY_worker_niceness": "0", **os.environ, "PATH": path, **SWITCHES, **(more or {})}


def require_flower(extra: str = "flower") -> None:
    """Real sites need no Ray; the extra `flower`, whose sites are simulated, does."""
    for package in ("flwr", "ray") if extra == "flower" else ("flwr",):
        if find_spec(package) is None:
            raise ConfigError(f"the Flower engine needs '{package}': pip install 'fedsift[{extra}]'")


def begin_session(command: Sequence[str], environment: Mapping[str, str], log: BinaryIO) -> subprocess.Popen[bytes]:
    """Start a program that leads a session of its own, asks nobody anything, and says all it says into a log."""
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        env=environment,
        start_new_session=True,
    )


def end_session(process: subprocess.Popen[bytes], grace: float = 10.0) -> None:
    """End a process that leads a session, and everything it started that has stayed in that session."""
    if process.poll() is None and grace > 0:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(grace)
    while members := session_members(process.pid):  # again, until nothing was started in the meantime
        for pid in members:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if process.poll() is None:
            process.wait()
        time.sleep(POLL)


def session_members(session: int) -> list[int]:
    """Processes of a session, by their own record in /proc (fields after the command's closing bracket)."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text("utf-8", errors="replace").rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            found.append(int(entry.name))
    return found
