"""Figures in Trackio, the local-first tracker with Weights & Biases' calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from fedsift.tracking.base import Tracker, trackers


@trackers.register("trackio")
@dataclass
class Trackio(Tracker):
    """A run of a project in Trackio's database on this machine (TRACKIO_DIR); `trackio show` draws it."""

    summary: ClassVar[str] = "a run in Trackio's database on this machine"
    package: ClassVar[str] = "trackio"
    extra: ClassVar[str] = "trackio"

    project: str = "fedsift"

    def start(self, params: Mapping[str, Any]) -> None:
        import trackio

        # by name: without "never" a new run would go on with an older one of the same name
        resume = "allow" if self.run.resumed else "never"
        self._run: Any = trackio.init(project=self.project, name=self.run.name, config=dict(params), resume=resume)

    def metrics(self, values: Mapping[str, float], step: int) -> None:
        self._run.log(dict(values), step=step)

    def artifact(self, path: Path) -> None:
        self._run.log_artifact(str(path), type="run file")

    def end(self) -> None:
        self._run.finish()
