"""`[track]`: feeds a run's figures to the trackers of `fedsift.tracking`, each in a thread, while it runs.

It computes nothing, so it is not part of the study.

A run's `study.toml` says all that its result follows from. Where the result is copied to is in `track.toml`: a run with
trackers has the same study, the same bytes and the same address as one without.
"""

from __future__ import annotations

import json
import math
import threading
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

import tomli_w

from fedsift.core.errors import ConfigError, FedsiftError, Stopped
from fedsift.core.files import safe_name, write_atomically
from fedsift.core.numbers import plain
from fedsift.core.text import visible
from fedsift.protocol.findings import Findings
from fedsift.runs.events import Warned
from fedsift.runs.folder import SUMMARY, TRACK, TRACKED, RunFolder
from fedsift.runtime.loop import Listener
from fedsift.study.toml_tables import BasePaths, as_table, build
from fedsift.tracking.base import FINISHED, TrackedRun, Tracker, absence, trackers

if TYPE_CHECKING:
    from fedsift.study.study import Study


def read_track(table: Mapping[str, Any], bases: BasePaths | None = None) -> dict[str, Tracker]:
    """The trackers that `[track]` names: `csv = true`, or a table of settings; `false` leaves one out again."""
    chosen: dict[str, Tracker] = {}
    for name, settings in table.items():
        if isinstance(settings, Tracker):
            chosen[name] = settings
        elif settings is True or isinstance(settings, Mapping):
            keys = {} if settings is True else settings
            chosen[name] = build(trackers.get(name), keys, f"track.{name}", bases=bases)
        elif settings is not False:
            raise ConfigError(f"'track.{name}' = {settings!r}: it must be true, false or a table of settings")
    return chosen


def need_packages(chosen: Mapping[str, Tracker]) -> None:
    """Refuse a tracker whose package is not installed; asked before a run begins, when nothing is lost yet."""
    for name, tracker in chosen.items():
        reason = absence(tracker)
        if reason:
            raise ConfigError(f"track.{name}: {reason}")


def track_toml(chosen: Mapping[str, Tracker]) -> str:
    """What `read_track` reads again."""
    return tomli_w.dumps({trackers.name_of(tracker): as_table(tracker) for tracker in chosen.values()})


def keep_track(study: Study, folder: RunFolder) -> None:
    """Note a study's trackers in a run's folder, so that a resumed run uses them too."""
    if study.track:
        folder.write_text(TRACK, track_toml(study.track))


class TrackedByStudy:
    """A run while its trackers listen: `with TrackedByStudy(...) as run: run_rounds(..., listen=run.listen)`."""

    def __init__(self, study: Study, folder: RunFolder, classes: tuple[str, ...], listen: Listener | None) -> None:
        self.folder, self._next = folder, listen
        self.warnings: list[str] = []
        keep_track(study, folder)
        chosen = dict(study.track) or self._kept()
        point = folder.checkpointed()
        past = folder.rounds()[: 0 if point is None else point.rounds_done] if chosen else []
        settings = settings_of(study.to_table()) if chosen else {}
        self._following = TrackerThreads(chosen, folder.path, settings, past, classes)
        self.listen = self._on_round if chosen else listen

    def _kept(self) -> dict[str, Tracker]:
        """The trackers of a run that goes on; what is wrong with them by now is a warning, not an end."""
        file = self.folder.path / TRACK
        if not file.is_file():
            return {}
        try:
            return read_track(tomllib.loads(file.read_text("utf-8")))
        except (FedsiftError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            self.warnings.append(f"{TRACK} cannot be used, this run is not tracked: {error}")
            return {}

    def _on_round(self, row: dict[str, Any]) -> None:
        self._following.round(row)
        news = self._following.news()
        self.warnings += news
        for text in news:
            self.folder.events()(Warned(row["round"], text))
        if self._next is not None:
            self._next({**row, "warnings": [*row["warnings"], *news]} if news else row)

    def __enter__(self) -> TrackedByStudy:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        stopped = kind is not None and issubclass(kind, KeyboardInterrupt | Stopped)
        self._following.close("finished" if kind is None else "interrupted" if stopped else "failed")
        self.warnings += self._following.news()

    def noted(self, summary: dict[str, Any]) -> dict[str, Any]:
        """The summary with a line for every tracker that stopped; written again if there is one."""
        if self.warnings:
            summary = {**summary, "warnings": [*summary["warnings"], *self.warnings]}
            self.folder.write_json(SUMMARY, summary)
        return summary


# A round's line as figures that every tracker takes; a study's tables as settings
# ------------------------------------------------------------------------------

NO_FIGURES = frozenset({"round", "of"})


def figures_of(row: Mapping[str, Any], classes: Sequence[str] = ()) -> dict[str, float]:
    """The numbers of a round's line: one a name, lists as `recall/cat`; how many sites look noisy and were refused.

    No site's name is among them: what a tracker gets may leave the machine.
    """
    found: dict[str, float] = {}
    for name, value in row.items():
        if name in NO_FIGURES:
            continue
        if isinstance(value, list):
            found.update(_of_classes(name, value, classes))
        elif (figure := _figure(value)) is not None:
            found[name] = figure
    refused = row.get("refused")
    if isinstance(refused, Mapping):
        found["refused"] = float(len(refused))
    said = Findings.last([dict(row)])
    if said is not None:
        found["noisy_sites"] = float(len(said.noisy))
    return found


def _of_classes(name: str, values: Sequence[Any], classes: Sequence[str]) -> dict[str, float]:
    if len(values) != len(classes):
        return {}
    figures = {f"{name}/{label}": _figure(value) for label, value in zip(classes, values)}
    return {label: figure for label, figure in figures.items() if figure is not None}


def _figure(value: Any) -> float | None:
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        return None
    return float(value)


def settings_of(table: Mapping[str, Any], above: str = "") -> dict[str, str | int | float | bool]:
    """A study's tables as `method.rounds = 40`; lists as text."""
    found: dict[str, str | int | float | bool] = {}
    for key, value in table.items():
        name = f"{above}.{key}" if above else str(key)
        if isinstance(value, Mapping):
            found.update(settings_of(value, name))
        else:
            found[name] = value if isinstance(value, str | int | float | bool) else str(value)
    return found


CLOSE_TIMEOUT = 60.0
"""Seconds that a finished run waits for its trackers."""
CLOSE_TIMEOUT_WHEN_STOPPED = 15.0

State = Literal["finished", "interrupted", "failed"]


class TrackerThreads:
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

    def close(self, state: State, timeout: float | None = None) -> None:
        """Give each its files, if the run came to its end, and let it go; wait no longer than `timeout` seconds."""
        seconds = timeout or (CLOSE_TIMEOUT if state == FINISHED else CLOSE_TIMEOUT_WHEN_STOPPED)
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
            return  # sent by an earlier process
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
            except BaseException as error:  # a library may even try to end the program: it ends its tracker alone
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
