"""Runs a study under Flower's simulation, in a process that is started, followed and ended from here."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

from fedsift.core import errors
from fedsift.core.errors import ConfigError, FedsiftError, RunError
from fedsift.data.dataset import FederatedDataset
from fedsift.runs.folder import RunFolder
from fedsift.runtime.loop import Listener
from fedsift.study.running import ending
from fedsift.study.study import Study
from fedsift.study.tracking import keep_track
from fedsift.study.transport import Transport
from fedsift.transports.flower.processes import (
    LOG_FILE,
    POLL,
    SIMULATED_SITES,
    begin_session,
    end_session,
    offline,
    require_flower,
)

ACTORS = 2
OBJECT_STORE = 128 * 2**20

Outcome = dict[str, Any] | FedsiftError
"""A run's summary, or why it has none."""


class FlowerTransport(Transport):
    """Flower's simulation: a node for each site, in a process of its own."""

    summary: ClassVar[str] = "Flower's simulation, in a process of its own"

    def run(
        self,
        study: Study,
        folder: RunFolder,
        listen: Listener | None = None,
        data: FederatedDataset | None = None,
    ) -> dict[str, Any]:
        """Run or go on with a study under Flower's simulation; its process loads the data itself."""
        if folder.deployed:
            raise RunError(f"{folder.path} is a run across real sites: go on with `fedsift flower start`")

        def heard(number: int, row: dict[str, Any]) -> None:
            if listen is not None:
                listen(row)

        [outcome] = simulate_many([(study, folder)], heard)
        if isinstance(outcome, FedsiftError):
            raise outcome
        return outcome


def simulate_many(
    jobs: Sequence[tuple[Study, RunFolder]], listen: Callable[[int, dict[str, Any]], None] | None = None
) -> list[Outcome]:
    """Run several studies one after the other under one start of Flower; a summary or an error for each.

    `listen` is called with the number of the study and each finished round's line.
    """
    try:
        _check(jobs)
    except FedsiftError:
        for _, folder in jobs:
            if not folder.checkpoint_file.is_file():
                folder.discard()
        raise
    place = Path(tempfile.mkdtemp(prefix="fedsift-"))
    try:
        (place / "sites").mkdir()
        plan = _plan(jobs, place)
        (place / "plan.json").write_text(json.dumps(plan), "utf-8")
        for study, folder in jobs:
            if not folder.study_file.is_file():
                folder.write_text("study.toml", study.to_toml())
            keep_track(study, folder)
        return _run(place, plan, jobs, listen)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _check(jobs: Sequence[tuple[Study, RunFolder]]) -> None:
    require_flower()
    for study, _ in jobs:
        if study.engine.device != "cpu":
            raise ConfigError(
                f"engine.device = '{study.engine.device}': Flower's simulation trains on the CPU; "
                'use engine.name = "inprocess", or deploy (a real site names its device in site.toml)'
            )


def _plan(jobs: Sequence[tuple[Study, RunFolder]], place: Path) -> dict[str, Any]:
    actors = max((study.engine.workers for study, _ in jobs), default=0) or min(ACTORS, os.cpu_count() or 1)
    return {
        "parent": os.getpid(),
        "events": str(place / "events.jsonl"),
        "sites": str(place / "sites"),
        "folders": [str(folder.path.resolve()) for _, folder in jobs],
        "backend": {
            "init_args": {
                "num_cpus": actors,
                "num_gpus": 0,
                "object_store_memory": OBJECT_STORE,
                "include_dashboard": False,
                "log_to_driver": False,
                "_temp_dir": str(place / "ray"),
            },
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    }


def _run(
    place: Path,
    plan: dict[str, Any],
    jobs: Sequence[tuple[Study, RunFolder]],
    listen: Callable[[int, dict[str, Any]], None] | None,
) -> list[Outcome]:
    log_file = jobs[0][1].path / LOG_FILE
    environment = offline({"FLWR_HOME": str(place / "flwr"), SIMULATED_SITES: plan["sites"]})
    outcomes: dict[int, Outcome] = {}
    with log_file.open("ab") as log:
        command = [
            sys.executable,
            "-m",
            "fedsift.transports.flower.simulation_process",
            str(place / "plan.json"),
        ]
        process = begin_session(command, environment, log)
        try:
            for event in _events(Path(plan["events"]), process):
                number = event["job"]
                if "round" in event and listen is not None:
                    listen(number, event["round"])
                elif "summary" in event:
                    outcomes[number] = event["summary"]
                elif "error" in event:
                    outcomes[number] = _error(event)
                if len(outcomes) == len(jobs):
                    break  # Ray takes seconds to say goodbye
        except BaseException as error:
            # the process that carries the runs out is ended at once and cannot say so itself
            end_session(process, grace=0.0)
            for number, (_, folder) in enumerate(jobs):
                if number not in outcomes and folder.path.is_dir():
                    folder.events()(ending(error))
            raise
        finally:
            end_session(process, grace=0.0)
    unknown = RunError(f"Flower's simulation ended with code {process.returncode} before the run did; see {log_file}")
    return [outcomes.get(number, unknown) for number in range(len(jobs))]


def _events(path: Path, process: subprocess.Popen[bytes]) -> Iterator[dict[str, Any]]:
    """Whole lines as they are written, until the process has ended and all are read."""
    position = 0
    while True:
        ended = process.poll() is not None
        if path.is_file():
            with path.open("rb") as file:
                file.seek(position)
                for line in file:
                    if not line.endswith(b"\n"):
                        break
                    position += len(line)
                    yield json.loads(line)
        if ended:
            return
        time.sleep(POLL)


def _error(event: dict[str, Any]) -> FedsiftError:
    kind = getattr(errors, event["error"], RunError)
    error: FedsiftError = kind(event["text"])
    return error
