"""The process in which Flower's simulation runs: `python -m fedsift.engines.flower.simulated PLAN`.

It is started and ended by `simulation.py`, which reads the events that this process writes, one JSON line each.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

from fedsift.contract.errors import FedsiftError
from fedsift.data.dataset import Spread
from fedsift.data.ledger import ledger
from fedsift.engines.flower.client import app as client_app
from fedsift.engines.flower.server import SIMULATED, FederationFile, run_on_grid
from fedsift.engines.flower.sites import export_sites
from fedsift.engines.runfolder import RunFolder, plain
from fedsift.study.study import Study

JOIN_SECONDS = 240.0
"""Ray's actors can take long to start on a busy machine."""


class Events:
    """What the starting process is told: one line of JSON each."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8")

    def tell(self, **event: Any) -> None:
        self._file.write(json.dumps(plain(event)) + "\n")
        self._file.flush()


def main(plan_file: Path) -> None:
    plan = json.loads(plan_file.read_text("utf-8"))
    _end_with_parent(int(plan["parent"]))
    torch.set_num_threads(1)
    events = Events(Path(plan["events"]))
    jobs = _prepared([Path(path) for path in plan["folders"]], Path(plan["sites"]), events)
    app = ServerApp()

    @app.main()
    def conduct_all(grid: Grid, context: Context) -> None:
        for job in jobs:
            _conduct(job, grid, events)

    if jobs:
        run_simulation(
            server_app=app,
            client_app=client_app,
            num_supernodes=max(len(job.spread.sites) for job in jobs),
            backend_config=plan["backend"],
        )


@dataclass(frozen=True)
class SimulatedJob:
    """One study that is ready to run."""

    number: int
    study: Study
    folder: RunFolder
    spread: Spread
    site_files: list[Path]


def _prepared(folders: list[Path], sites: Path, events: Events) -> list[SimulatedJob]:
    """The studies whose data could be loaded; the others' errors are told."""
    jobs = []
    for number, path in enumerate(folders):
        try:
            jobs.append(_prepare(number, path, sites))
        except FedsiftError as error:
            events.tell(job=number, error=type(error).__name__, text=str(error))
    return jobs


def _prepare(number: int, path: Path, sites: Path) -> SimulatedJob:
    """A study with its data written out as site folders in its run folder, where their notebooks lie too."""
    folder = RunFolder.open(path)
    study = Study.from_file(folder.study_file)
    spread = study.spread()
    files = export_sites(spread, study.model.of_sites(spread.sites), path / "sites")
    if spread.truth is not None:
        ledger(spread).save(path / "truth.csv")
    (sites / str(number)).symlink_to((path / "sites").resolve(), target_is_directory=True)
    return SimulatedJob(number, study, folder, spread, files)


def _conduct(job: SimulatedJob, grid: Grid, events: Events) -> None:
    def listen(row: dict[str, Any]) -> None:
        events.tell(job=job.number, round=row)

    sites = FederationFile(job.spread.sites, at_least=len(job.spread.sites), wait=JOIN_SECONDS)
    note = {"federation": str(job.number)}
    try:
        summary = run_on_grid(
            grid,
            job.study,
            job.folder,
            sites,
            note=note,
            pace=SIMULATED,
            spread=job.spread,
            site_files=job.site_files,
            listen=listen,
        )
    except FedsiftError as error:
        events.tell(job=job.number, error=type(error).__name__, text=str(error))
    except Exception as error:
        traceback.print_exc()
        events.tell(job=job.number, error="RunError", text=f"{type(error).__name__}: {error}")
    else:
        events.tell(job=job.number, summary=summary)


def _end_with_parent(parent: int) -> None:
    """A simulation whose starter was killed must not live on."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os.killpg(os.getpgid(0), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
