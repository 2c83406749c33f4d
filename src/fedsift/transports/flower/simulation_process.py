"""The process that runs Flower's simulation: `python -m fedsift.transports.flower.simulation_process PLAN`.

`launch` starts and ends it, and reads the events that it writes, one JSON line each.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

from fedsift.core.errors import FedsiftError
from fedsift.core.numbers import plain
from fedsift.core.process import when_parent_ends
from fedsift.data.dataset import FederatedDataset
from fedsift.runs.folder import RunFolder
from fedsift.runtime.federation import Engine
from fedsift.study.running import execute_run
from fedsift.study.study import Study
from fedsift.transports.flower.channel import FlowerChannel
from fedsift.transports.flower.simulation_client import app as client_app
from fedsift.transports.remote.simulated_sites import RemoteSimulation


class SimulationEvents:
    """Events for the starting process: one line of JSON each."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8")

    def send(self, **event: Any) -> None:
        self._file.write(json.dumps(plain(event)) + "\n")
        self._file.flush()


@dataclass(frozen=True)
class SimulationJob:
    """One study with its data, or with the reason why there are none."""

    number: int
    study: Study
    folder: RunFolder
    federated: FederatedDataset | FedsiftError

    def engine(self, grid: Any, root: Path) -> Engine:
        if isinstance(self.federated, FedsiftError):
            raise self.federated
        models = self.study.model.of_sites(self.federated.sites)
        return flower_simulation(grid, self.federated, str(self.number), root, models)


def main(plan_file: Path) -> None:
    plan = json.loads(plan_file.read_text("utf-8"))
    when_parent_ends(lambda: os.killpg(os.getpgid(0), signal.SIGKILL), int(plan["parent"]))
    torch.set_num_threads(1)
    events, root = SimulationEvents(Path(plan["events"])), Path(plan["sites"])
    jobs = []
    for number, path in enumerate(plan["folders"]):
        try:
            jobs.append(_loaded(number, RunFolder.open(Path(path))))
        except FedsiftError as error:
            events.send(job=number, error=type(error).__name__, text=str(error))

    def conduct_all(grid: Any) -> None:
        for job in jobs:
            _run_rounds(job, grid, root, events)

    nodes = max((len(job.federated.sites) for job in jobs if isinstance(job.federated, FederatedDataset)), default=0)
    if nodes:
        on_simulated_nodes(conduct_all, nodes, plan["backend"])
    else:
        conduct_all(None)  # nothing can run: each folder says why


def _loaded(number: int, folder: RunFolder) -> SimulationJob:
    """The nodes are counted before any run begins; what cannot be loaded fails in its own run."""
    study = Study.from_file(folder.study_file)
    try:
        return SimulationJob(number, study, folder, study.load_data())
    except FedsiftError as error:
        return SimulationJob(number, study, folder, error)


def _run_rounds(job: SimulationJob, grid: Any, root: Path, events: SimulationEvents) -> None:
    def listen(row: dict[str, Any]) -> None:
        events.send(job=job.number, round=row)

    try:
        summary = execute_run(job.study, job.folder, lambda: job.engine(grid, root), listen)
    except FedsiftError as error:
        events.send(job=job.number, error=type(error).__name__, text=str(error))
    except Exception as error:
        traceback.print_exc()
        events.send(job=job.number, error="RunError", text=f"{type(error).__name__}: {error}")
    else:
        events.send(job=job.number, summary=summary)


def on_simulated_nodes(run_rounds: Callable[[Grid], None], nodes: int, backend: Mapping[str, Any]) -> None:
    """Start Flower's simulation with so many nodes and let `run_rounds` use its grid."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        run_rounds(grid)

    run_simulation(server_app=app, client_app=client_app, num_supernodes=nodes, backend_config=dict(backend))


def flower_simulation(
    grid: Grid, federated: FederatedDataset, federation: str, root: Path, models: Mapping[str, str]
) -> RemoteSimulation:
    """The engine of a dataset's sites on simulated nodes.

    federation: the name under which the nodes find this federation's sites, in the folder `root`.
    """

    def channel(note: Mapping[str, str], places: Sequence[Path]) -> FlowerChannel:
        (root / federation).symlink_to(places[0].parent.resolve(), target_is_directory=True)
        return FlowerChannel(grid, note)

    return RemoteSimulation(federated, channel, models, {"federation": federation})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
