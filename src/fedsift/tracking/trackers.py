"""The trackers: CSV, MLflow, TensorBoard, Weights & Biases and Trackio."""

from __future__ import annotations

import csv
import re
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from fedsift.core.files import write_atomically
from fedsift.core.text import csv_text
from fedsift.tracking.base import FINISHED, Tracker, trackers

STEP = "round"


@trackers.register("csv")
@dataclass
class CsvFile(Tracker):
    """`metrics.csv` and `params.csv`, by default in the run's folder under `track/csv`."""

    summary: ClassVar[str] = "metrics.csv (a line a round) and params.csv; needs nothing"

    folder: Path | None = None
    """A folder elsewhere, which gets a folder for each run."""

    @property
    def place(self) -> Path:
        return self.run.folder if self.folder is None else self.folder / self.run.name

    def start(self, params: Mapping[str, Any]) -> None:
        self._file = self.place / "metrics.csv"
        self._columns, self._rows = _read(self._file)
        table = [{"setting": key, "value": value} for key, value in params.items()]
        write_atomically(self.place / "params.csv", _text(("setting", "value"), table))

    def metrics(self, values: Mapping[str, float], step: int) -> None:
        row = {STEP: step, **values}
        known = len(self._columns)
        self._columns = list(dict.fromkeys([*self._columns, *row]))
        self._rows.append(row)
        if len(self._columns) > known:  # the head changes with a new figure: the whole file is written again
            write_atomically(self._file, _text(self._columns, self._rows))
            return
        with self._file.open("ab") as file:
            file.write(_text(self._columns, [row], head=False))

    def artifact(self, path: Path) -> None:
        if self.folder is not None:
            shutil.copyfile(path, self.place / path.name)


def _read(file: Path) -> tuple[list[str], list[dict[str, Any]]]:
    if not file.is_file():
        return [], []
    with file.open(newline="", encoding="utf-8") as text:
        reader = csv.DictReader(text)
        rows: list[dict[str, Any]] = [
            {key: value for key, value in row.items() if key and value not in (None, "")} for row in reader
        ]
        return list(reader.fieldnames or ()), rows


def _text(columns: Sequence[str], rows: Sequence[Mapping[str, Any]], *, head: bool = True) -> bytes:
    lines = csv_text(columns, ([row.get(name, "") for name in columns] for row in rows))
    return (lines if head else lines.partition("\n")[2]).encode("utf-8")


# MLflow
# ------------------------------------------------------------------------------


PARAMS_AT_ONCE, METRICS_AT_ONCE = 100, 1000
"""What MLflow takes in one call."""
LONGEST_PARAM, LONGEST_NAME = 500, 250
"""Characters that every MLflow store takes."""
NOT_IN_A_NAME = re.compile(r"[^\w\-. :/]")
STATES = {FINISHED: "FINISHED", "interrupted": "KILLED"}


@trackers.register("mlflow")
@dataclass
class MLflow(Tracker):
    """A run in an MLflow experiment. MLflow's own variables, such as MLFLOW_TRACKING_URI, hold where a key is empty."""

    summary: ClassVar[str] = "a run in an MLflow experiment: parameters, metrics, files"
    package: ClassVar[str] = "mlflow"
    extra: ClassVar[str] = "mlflow"

    uri: str = ""
    """The store, e.g. http://127.0.0.1:5000 or sqlite:////data/mlflow.db."""
    experiment: str = "fedsift"

    def start(self, params: Mapping[str, Any]) -> None:
        from mlflow.entities import Param
        from mlflow.tracking import MlflowClient

        # the client and not the fluent API: no state of the whole process, so that others' runs stay theirs
        self._client: Any = MlflowClient(tracking_uri=self.uri or None)
        if "id" in self.run.kept:
            self._client.update_run(self.run.kept["id"], status="RUNNING")
            return
        known = self._client.get_experiment_by_name(self.experiment)
        number = known.experiment_id if known else self._client.create_experiment(self.experiment)
        run = self._client.create_run(number, run_name=self.run.name, tags={"mlflow.source.name": "fedsift"})
        self.run.kept["id"] = run.info.run_id
        settings = [Param(_name(key), str(value)[:LONGEST_PARAM]) for key, value in params.items()]
        for some in _batches(settings, PARAMS_AT_ONCE):
            self._client.log_batch(run.info.run_id, params=list(some))

    def metrics(self, values: Mapping[str, float], step: int) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        figures = [Metric(_name(key), value, now, step) for key, value in values.items()]
        for some in _batches(figures, METRICS_AT_ONCE):
            self._client.log_batch(self.run.kept["id"], metrics=list(some))

    def artifact(self, path: Path) -> None:
        self._client.log_artifact(self.run.kept["id"], str(path))

    def end(self) -> None:
        self._client.set_terminated(self.run.kept["id"], STATES.get(self.run.state, "FAILED"))


def _name(key: str) -> str:
    return NOT_IN_A_NAME.sub("_", key)[:LONGEST_NAME]


def _batches(items: Sequence[Any], most: int) -> Iterator[Sequence[Any]]:
    return (items[start : start + most] for start in range(0, len(items), most))


# TensorBoard
# ------------------------------------------------------------------------------


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
        self._writer.flush()  # a viewer sees the round at once
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


# Weights & Biases
# ------------------------------------------------------------------------------


@trackers.register("wandb")
@dataclass
class WandB(Tracker):
    """A run of a project. It stays on this machine, under `track/wandb` in the run's folder, unless `mode` is "online";
    `wandb sync` sends it later. The key comes from `wandb login` or WANDB_API_KEY, never from a study."""

    summary: ClassVar[str] = "a Weights & Biases run, offline unless configured otherwise"
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


# Trackio
# ------------------------------------------------------------------------------


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
