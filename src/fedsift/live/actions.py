"""Actions of the live page: stop a run (by a file in its folder) and resume it (in a process of its own)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from fedsift.core.errors import RunError
from fedsift.core.text import short
from fedsift.runs.events import FAILED, Ended, Started, read_events
from fedsift.runs.folder import RunFolder
from fedsift.runs.reading import STARTING, RunState, state_of

LOG = "resume.log"
"""In a run's folder: what the processes said that went on with it from the page."""
_resumed: dict[Path, subprocess.Popen[bytes]] = {}


def present_state(folder: RunFolder) -> RunState:
    """Read anew: the page that asks may be old."""
    moments = read_events(folder.path)
    started = next((m for m in reversed(moments) if isinstance(m.event, Started)), None)
    ended = next((m for m in reversed(moments) if isinstance(m.event, Ended)), None)
    if started is not None and ended is not None and moments.index(started) > moments.index(ended):
        ended = None
    found = state_of(
        folder,
        started.event if started and isinstance(started.event, Started) else None,
        ended.event if ended and isinstance(ended.event, Ended) else None,
        moments[-1].at if moments else 0.0,
    )
    return with_resumed(folder, found)


def with_resumed(folder: RunFolder, state: RunState) -> RunState:
    """A run that was resumed here is starting before it can say so itself; if it could not, its last line says why."""
    process = _resumed.get(folder.path)
    if process is None or not state.resumable:
        return state
    if process.poll() is None:
        return RunState(STARTING, "data are read")
    if process.returncode and state.word != FAILED:
        return RunState(state.word, f"it could not go on: {_last_line(folder.path / LOG)}")
    return state


def _last_line(path: Path) -> str:
    try:
        lines = path.read_text("utf-8", errors="replace")[-4000:].strip().splitlines()
    except OSError:
        return ""
    return short(lines[-1], 300) if lines else ""


def stop(folder: RunFolder) -> None:
    """Ask the run to stop at its next safe point."""
    state = present_state(folder)
    if not state.active:
        raise RunError(f"this run is {state.word}: there is nothing to stop")
    folder.ask_to_stop()


def resume(folder: RunFolder) -> int:
    """Go on with a run in a process of its own, which keeps running when the page's server ends; returns its id."""
    state = present_state(folder)
    if folder.deployed:
        raise RunError("this run is across real sites: go on with the `fedsift flower start` that began it")
    if not state.resumable:
        raise RunError(f"this run is {state.word}: it cannot be gone on with")
    with (folder.path / LOG).open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "fedsift", "resume", str(folder.path)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment(),
            start_new_session=True,
        )
    _resumed[folder.path] = process
    return process.pid


def environment() -> dict[str, str]:
    """This program's own place comes first, so that the same version goes on."""
    home = str(Path(__file__).resolve().parents[2])
    known = os.environ.get("PYTHONPATH", "")
    return {**os.environ, "PYTHONPATH": f"{home}{os.pathsep}{known}" if known else home}
