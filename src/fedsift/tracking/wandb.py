"""Figures in a Weights & Biases run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from fedsift.tracking.base import FINISHED, Tracker, trackers


@trackers.register("wandb")
@dataclass
class WandB(Tracker):
    """A run of a project. It stays on this machine, under `track/wandb` in the run's folder, unless `mode` is "online";
    `wandb sync` sends it later. The key comes from `wandb login` or WANDB_API_KEY, never from a study."""

    summary: ClassVar[str] = "a Weights & Biases run, offline unless told otherwise"
    package: ClassVar[str] = "wandb"
    extra: ClassVar[str] = "wandb"

    project: str = "fedsift"
    entity: str = ""
    group: str = ""
    """Runs that belong together, e.g. the seeds of one study."""
    mode: Literal["offline", "online"] = "offline"

    def start(self, params: Mapping[str, Any]) -> None:
        import wandb

        self.run.folder.mkdir(parents=True, exist_ok=True)
        self._run: Any = wandb.init(
            project=self.project,
            entity=self.entity or None,
            group=self.group or None,
            name=self.run.name,
            config=dict(params),
            dir=str(self.run.folder),
            mode=self.mode,
            id=self.run.kept.get("id"),
            resume="allow",
            # the terminal, the program and the machine are nobody's business
            settings=wandb.Settings(silent=True, console="off", disable_code=True, disable_git=True),
        )
        self.run.kept["id"] = self._run.id

    def metrics(self, values: Mapping[str, float], step: int) -> None:
        self._run.log(dict(values), step=step)

    def artifact(self, path: Path) -> None:
        self._run.save(str(path), base_path=str(path.parent), policy="now")

    def end(self) -> None:
        self._run.finish(exit_code=0 if self.run.state == FINISHED else 1)
