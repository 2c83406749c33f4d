"""Figures in an MLflow store: a server, a database or a folder."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from fedsift.tracking.base import FINISHED, Tracker, trackers

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
