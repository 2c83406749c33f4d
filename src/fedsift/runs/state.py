"""What a run is doing, from its folder alone: told truthfully for one that was killed, is elsewhere or is no run."""

from __future__ import annotations

import platform
import time
from dataclasses import dataclass

from fedsift.runs.events import FAILED, FINISHED, STOPPED, Ended, Started
from fedsift.runs.folder import FAILURE, RunFolder

RUNNING, STARTING, STOPPING = "running", "starting", "stopping"
INTERRUPTED, SILENT, NEW = "interrupted", "silent", "new"
SILENCE = 600.0
"""Seconds without an event after which a run on another machine is called silent."""


@dataclass(frozen=True)
class RunState:
    """A word, and a sentence where there is more to say."""

    word: str
    why: str = ""

    @property
    def active(self) -> bool:
        return self.word in (RUNNING, STARTING, STOPPING)

    @property
    def resumable(self) -> bool:
        return self.word in (STOPPED, FAILED, INTERRUPTED, NEW)


def state_of(
    folder: RunFolder,
    started: Started | None,
    ended: Ended | None,
    last_at: float,
    clock: float | None = None,
) -> RunState:
    """`started` and `ended`: the last of each in the events, `ended` None when a start came after it."""
    if folder.in_use:
        if folder.asked_to_stop:
            return RunState(STOPPING, "it stops at the next safe point")
        if started is None or ended is not None:
            return RunState(STARTING, "data are read, sites are waited for")
        return RunState(RUNNING)
    if folder.finished:
        return RunState(FINISHED)
    if ended is not None:
        if ended.state == FINISHED:
            return RunState(FAILED, "it ended, but summary.json is missing")
        return RunState(ended.state if ended.state in (FAILED, STOPPED) else FAILED, ended.error)
    failure = _failure(folder)
    if failure:
        return RunState(FAILED, failure)
    if started is None:
        return RunState(INTERRUPTED, "it has no events") if folder.rounds_file.is_file() else RunState(NEW)
    if started.host and started.host != platform.node():  # a lock on another machine may not be seen here
        quiet = (time.time() if clock is None else clock) - last_at
        if quiet < SILENCE:
            return RunState(RUNNING, f"on {started.host}")
        return RunState(SILENT, f"no sign of life from {started.host} for {quiet / 60:.0f} minutes")
    return RunState(INTERRUPTED, "its process ended without a word; nothing up to the last checkpoint is lost")


def _failure(folder: RunFolder) -> str:
    try:
        value = folder.read_json(FAILURE)
    except (OSError, ValueError):
        return ""
    return str(value.get("error", "")) if isinstance(value, dict) else ""
