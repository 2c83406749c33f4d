"""Figures as TensorBoard event files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from fedsift.tracking.base import FINISHED, Tracker, trackers

LONGEST_TEXT = 200_000


@trackers.register("tensorboard")
@dataclass
class TensorBoard(Tracker):
    """Event files, by default in the run's folder under `track/tensorboard`: `tensorboard --logdir runs` shows all."""

    summary: ClassVar[str] = "event files for TensorBoard: curves, settings as text and as hyper-parameters"
    package: ClassVar[str] = "tensorboard"
    extra: ClassVar[str] = "tensorboard"

    folder: Path | None = None
    """A log folder elsewhere, which gets a folder for each run."""

    def start(self, params: Mapping[str, Any]) -> None:
        from torch.utils.tensorboard import SummaryWriter  # brings torch, which the coordinator has anyway

        place = self.run.folder if self.folder is None else self.folder / self.run.name
        self._writer: Any = SummaryWriter(str(place))
        self._params, self._last, self._step = dict(params), dict[str, float](), 0
        lines = [f"| {_cell(key)} | {_cell(value)} |" for key, value in params.items()]
        self._writer.add_text("study", "\n".join(["| setting | value |", "|---|---|", *lines]))

    def metrics(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()  # whoever looks on sees the round at once
        self._last.update(values)
        self._step = step

    def artifact(self, path: Path) -> None:
        """TensorBoard keeps no files: what is text is shown as text."""
        try:
            text = path.read_text("utf-8")[:LONGEST_TEXT]
        except UnicodeDecodeError:
            return
        self._writer.add_text(path.name, "\n".join(f"    {line}" for line in text.splitlines()))

    def end(self) -> None:
        if self.run.state == FINISHED and self._last:
            scores = {f"final/{name}": value for name, value in self._last.items() if "/" not in name}
            self._writer.add_hparams(self._params, scores, run_name=".", global_step=self._step)
        self._writer.close()


def _cell(value: Any) -> str:
    return str(value).replace("|", "\\|").replace("\n", " ")
