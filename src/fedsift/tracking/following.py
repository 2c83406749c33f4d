"""A run's trackers, each in a thread of its own: none can stop the run, slow it down or change a bit of it."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Literal

from fedsift.contract.files import safe_name, write_atomically
from fedsift.contract.plain import plain
from fedsift.contract.plaintext import visible
from fedsift.runs.folder import TRACKED
from fedsift.tracking.base import FINISHED, TrackedRun, Tracker, absence
from fedsift.tracking.values import figures_of

PATIENCE = 60.0
"""Seconds that a finished run waits for its trackers."""
PATIENCE_WHEN_STOPPED = 15.0

State = Literal["finished", "interrupted", "failed"]


class Following:
    """All trackers of one run. `classes` names the figures that come one a class."""

    def __init__(
        self,
        trackers: Mapping[str, Tracker],
        folder: Path,
        params: Mapping[str, Any],
        past: Sequence[Mapping[str, Any]] = (),
        classes: Sequence[str] = (),
    ) -> None:
        """past: the rounds that are done already; a tracker that missed some of them gets these first."""
        self.folder, self.classes = folder, tuple(classes)
        self._writers = [_Writer(name, tracker, folder) for name, tracker in trackers.items()]
        for writer in self._writers:
            writer.begin(params)
            for row in past:
                writer.round(figures_of(row, self.classes), int(row["round"]))

    def round(self, row: Mapping[str, Any]) -> None:
        if self._writers:
            values = figures_of(plain(row), self.classes)
            for writer in self._writers:
                writer.round(values, int(row["round"]))

    def news(self) -> list[str]:
        """A line for each tracker that has stopped since the last call."""
        return [line for writer in self._writers if (line := writer.news())]

    def close(self, state: State, patience: float | None = None) -> None:
        """Give each its files, if the run came to its end, and let it go; wait no longer than `patience` seconds."""
        seconds = patience or (PATIENCE if state == FINISHED else PATIENCE_WHEN_STOPPED)
        until = time.monotonic() + seconds
        for writer in self._writers:
            writer.finish(state)
        for writer in self._writers:
            writer.join(max(0.0, until - time.monotonic()))
            if writer.is_alive():
                writer.give_up(f"it did not answer for {seconds:.0f} s")


class _Writer(threading.Thread):
    """Calls one tracker, in order; what it raises ends it and nothing else."""

    def __init__(self, name: str, tracker: Tracker, folder: Path) -> None:
        super().__init__(name=f"tracker {name}", daemon=True)
        self.label, self.tracker, self.run_folder = name, tracker, folder
        self._file = folder / TRACKED / f"{safe_name(name)}.json"
        self._done, kept = _memory(self._file)
        place = folder / TRACKED / safe_name(name)
        tracker.run = TrackedRun(folder.name, place, kept, resumed=self._file.is_file())
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._problem, self._said = "", False
        self.start()

    def begin(self, params: Mapping[str, Any]) -> None:
        self._jobs.put(lambda: self._begin(params))

    def _begin(self, params: Mapping[str, Any]) -> None:
        reason = absence(self.tracker)
        if reason:
            raise RuntimeError(reason)
        self.tracker.start(params)
        self._remember()

    def round(self, values: Mapping[str, float], step: int) -> None:
        self._jobs.put(lambda: self._round(values, step))

    def _round(self, values: Mapping[str, float], step: int) -> None:
        if step <= self._done:
            return  # told by an earlier process
        self.tracker.metrics(values, step)
        self._done = step
        self._remember()

    def finish(self, state: State) -> None:
        self._jobs.put(lambda: self._finish(state))
        self._jobs.put(None)

    def _finish(self, state: State) -> None:
        self.tracker.run.state = state
        if state == FINISHED:
            for name in self.tracker.artifacts:
                file = self.run_folder / name
                if file.is_file():
                    self.tracker.artifact(file)
        self.tracker.end()

    def run(self) -> None:
        while (job := self._jobs.get()) is not None:
            if self._problem:
                continue
            try:
                job()
            except (
                BaseException
            ) as error:  # a library may even try to end the program: it ends its tracker alone
                words = " ".join(str(error).split()) or "no reason was given"
                self.give_up(f"{type(error).__name__}: {words}")

    def give_up(self, reason: str) -> None:
        self._problem = self._problem or reason

    def news(self) -> str:
        if not self._problem or self._said:
            return ""
        self._said = True
        return visible(f"tracker '{self.label}' has stopped, the run goes on without it: {self._problem}")

    def _remember(self) -> None:
        if self._problem:
            return  # it was given up while it worked: another process may follow this run by now
        memory = {"rounds": self._done, "kept": plain(self.tracker.run.kept)}
        write_atomically(self._file, (json.dumps(memory) + "\n").encode())


def _memory(file: Path) -> tuple[int, dict[str, Any]]:
    """Rounds that the tracker knows, and what it kept; of a damaged file nothing."""
    try:
        memory = json.loads(file.read_text("utf-8"))
        return int(memory["rounds"]), dict(memory["kept"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0, {}
