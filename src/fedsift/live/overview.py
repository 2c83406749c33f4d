"""A one-line overview of a run for the list of all runs; reads little, however long the run."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedsift.core.errors import RunError
from fedsift.core.numbers import percent
from fedsift.runs.events import EVENTS, FAILED, Ended, RoundDone, StampedEvent, Started, stamped
from fedsift.runs.folder import FAILURE, PLAN, STOP, SUMMARY, RunFolder
from fedsift.runs.reading import CURVES, RunState, state_of

HEAD, TAIL = 200_000, 100_000
"""Bytes of the events that are read from either end."""
MOST_RUNS = 2000


@dataclass(frozen=True)
class RunOverview:
    name: str
    method: str
    state: str
    why: str
    active: bool
    round: int
    of: int
    sites: int
    score: str
    """The last score, in words."""
    at: float
    """When something happened last."""


class RunList:
    """The run folders of a place, by name: what is not listed here is not served."""

    def __init__(self, place: Path) -> None:
        """`place`: a folder of runs, or one run's folder."""
        self.place = Path(place).resolve()
        if not self.place.is_dir():
            raise RunError(f"'{place}' is no folder: name a run's folder, or one that holds runs")
        self.single = _is_run(self.place)
        self._known: dict[str, tuple[tuple[Any, ...], RunOverview]] = {}

    def names(self) -> list[str]:
        """Newest first. A folder that a link leads out to is none of ours."""
        if self.single:
            return [self.place.name]
        found: list[tuple[float, str]] = []
        with os.scandir(self.place) as entries:
            for entry in entries:
                hidden = entry.name.startswith(".") or not _is_text(entry.name)
                if not hidden and entry.is_dir(follow_symlinks=False) and _is_run(Path(entry.path)):
                    found.append((entry.stat().st_mtime, entry.name))
        return [name for _, name in sorted(found, reverse=True)[:MOST_RUNS]]

    def folder(self, name: str) -> RunFolder | None:
        """A run by its name, None for anything else that a caller may ask for."""
        if name not in self.names():
            return None
        path = self.place if self.single else self.place / name
        return RunFolder(path)

    def glances(self) -> list[dict[str, Any]]:
        return [asdict(self._glance(name)) for name in self.names()]

    def _glance(self, name: str) -> RunOverview:
        folder = RunFolder(self.place if self.single else self.place / name)
        stamp: tuple[Any, ...] = tuple(_stamp(folder.path / file) for file in (EVENTS, SUMMARY, PLAN, FAILURE, STOP))
        stamp += (folder.in_use,)
        known = self._known.get(name)
        if known is not None and known[0] == stamp:
            return known[1]
        made = glance(folder)
        self._known[name] = (stamp, made)
        return made


def glance(folder: RunFolder) -> RunOverview:
    moments = _ends(folder.path / EVENTS)
    started = _last(moments, Started)
    done = _last(moments, RoundDone)
    ended = _last(moments, Ended)
    if started is not None and ended is not None and started[0] > ended[0]:
        ended = None
    last_at = moments[-1].at if moments else _stamp(folder.study_file)[0] / 1e9
    state: RunState = state_of(folder, started[1] if started else None, ended[1] if ended else None, last_at)
    event = done[1] if done else None
    try:
        plan, score = _table(folder, PLAN), _score(event, folder)
    except RunError as error:
        plan, score, state = {}, "", RunState(FAILED, str(error))
    return RunOverview(
        name=folder.id,
        method=str(plan.get("method") or (started[1].method if started else "")),
        state=state.word,
        why=state.why,
        active=state.active,
        round=event.round if event else _rounds_in(folder),
        of=int(plan.get("rounds") or 0) if isinstance(plan.get("rounds"), int) else 0,
        sites=len(started[1].sites) if started else 0,
        score=score,
        at=last_at,
    )


def _score(event: RoundDone | None, folder: RunFolder) -> str:
    if event is not None:
        for name in CURVES:
            if name in event.values:
                return f"{name.replace('_', ' ')} {percent(event.values[name])}"
    summary = _table(folder, SUMMARY)
    for name in CURVES:
        scores = summary.get(name)
        if isinstance(scores, dict) and scores.get("final") is not None:
            return f"{name.replace('_', ' ')} {percent(scores['final'])}"
    return ""


def _rounds_in(folder: RunFolder) -> int:
    """For a run from before there were events."""
    header = folder.checkpointed()
    return 0 if header is None else header.rounds_done


def _table(folder: RunFolder, name: str) -> dict[str, Any]:
    try:
        value = folder.read_json(name)
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _last(moments: list[StampedEvent], kind: type) -> tuple[int, Any] | None:
    for place in range(len(moments) - 1, -1, -1):
        if isinstance(moments[place].event, kind):
            return place, moments[place].event
    return None


def _ends(path: Path) -> list[StampedEvent]:
    """Events of the file's beginning and end."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(0)
            lines = file.read(HEAD).split(b"\n")
            if size > HEAD:
                lines.pop()
                file.seek(max(HEAD, size - TAIL))
                lines += file.read().split(b"\n")[1:]
    except OSError:
        return []
    found = [stamped(line) for line in lines if line.strip()]
    return [moment for moment in found if moment is not None]


def _stamp(path: Path) -> tuple[int, int]:
    try:
        info = path.stat()
    except OSError:
        return (0, 0)
    return (info.st_mtime_ns, info.st_size)


def _is_run(path: Path) -> bool:
    return (path / "study.toml").is_file()


def _is_text(name: str) -> bool:
    """Whether a browser can ask for it."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
