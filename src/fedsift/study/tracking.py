"""`[track]`: a table for each tracker. It computes nothing, so it stands beside the study and not in it.

A run's `study.toml` says all that its result follows from. Who is told of the result is in `track.toml`: a run with
trackers has the same study, the same bytes and the same address as one without.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

import tomli_w

from fedsift.core.errors import ConfigError, FedsiftError, Stopped
from fedsift.runs.events import Warned
from fedsift.runs.folder import SUMMARY, TRACK, RunFolder
from fedsift.runtime.loop import Listener
from fedsift.study.toml_tables import BasePaths, as_table, build
from fedsift.tracking.base import Tracker, absence, trackers
from fedsift.tracking.threads import TrackerThreads, settings_of

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
    """Note a study's trackers in a run's folder, so that a resumed run tells them too."""
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
        self.listen = self._tell if chosen else listen

    def _kept(self) -> dict[str, Tracker]:
        """The trackers of a run that goes on; what is wrong with them by now is a warning, not an end."""
        file = self.folder.path / TRACK
        if not file.is_file():
            return {}
        try:
            return read_track(tomllib.loads(file.read_text("utf-8")))
        except (FedsiftError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            self.warnings.append(f"{TRACK} cannot be used, nobody is told of this run: {error}")
            return {}

    def _tell(self, row: dict[str, Any]) -> None:
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
