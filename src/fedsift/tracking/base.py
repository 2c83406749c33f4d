"""The interface of a tracker: four calls, made by the coordinator alone, none of which can stop or change a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Literal

from fedsift.core.registry import Registry

FINISHED: Literal["finished"] = "finished"


@dataclass
class TrackedRun:
    """The run that a tracker follows: what its calls cannot say."""

    name: str
    """The run folder's name."""
    folder: Path
    """A folder of the tracker's own inside the run's."""
    kept: dict[str, Any] = field(default_factory=dict)
    """What the tracker wants to know again when the run is resumed, e.g. an id; plain values, written by the caller."""
    resumed: bool = False
    """Whether this tracker has followed this run before."""
    state: Literal["running", "finished", "interrupted", "failed"] = "running"
    """How the run ended, when `end` is called."""


@dataclass
class Tracker:
    """Base of all trackers: fields are the keys of its table in `[track]`.

    A tracker is called in a thread of its own, in order. Whatever it raises switches it off for the rest of the run,
    with one warning; so it needs no error handling.
    """

    summary: ClassVar[str] = ""
    package: ClassVar[str] = ""
    """The Python package that it writes with; empty: none."""
    extra: ClassVar[str] = ""
    """The extra of fedsift that installs the package."""

    artifacts: tuple[str, ...] = ("study.toml", "summary.json")
    """Files of the run's folder that it is given when the run has ended."""

    run: TrackedRun = field(init=False, repr=False, compare=False)
    """Set before `start`."""

    def start(self, params: Mapping[str, Any]) -> None:
        """The run begins, or goes on. params: the study's settings, `method.rounds` and so on, as plain values."""

    def metrics(self, values: Mapping[str, float], step: int) -> None:
        """A round is done. step: its number, from 1; each comes once, in order, whatever was stopped and resumed."""

    def artifact(self, path: Path) -> None:
        """A file of a run that has come to its end."""

    def end(self) -> None:
        """Nothing more will come from this process; `self.run.state` says why."""


def absence(tracker: type[Tracker] | Tracker) -> str:
    """Why a tracker cannot work here: its package is not installed; empty when it is."""
    if not tracker.package or find_spec(tracker.package) is not None:
        return ""
    what = f"'fedsift[{tracker.extra}]'" if tracker.extra else tracker.package
    return f"it writes with {tracker.package}, which is not installed: pip install {what}"


trackers: Registry[type[Tracker]] = Registry("tracker", base=Tracker, group="fedsift.trackers")
