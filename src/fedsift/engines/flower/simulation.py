"""Start Flower's simulation in a process of our own, hear of its rounds, and leave nothing running."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fedsift.contract import errors
from fedsift.contract.errors import ConfigError, FedsiftError, RunError
from fedsift.engines.flower.offline import offline
from fedsift.engines.loop import Listener
from fedsift.engines.runfolder import RunFolder
from fedsift.study.study import Study

ACTORS = 2
OBJECT_STORE = 128 * 2**20
LOG_FILE = "flower.log"
FEDERATION_FILE = "federation.toml"
"""In the folder of a deployed run: whom its coordinator waits for."""
POLL = 0.05


def simulate(study: Study, folder: RunFolder, listen: Listener | None = None) -> dict[str, Any]:
    """Run or go on with a study under Flower's simulation; returns the summary."""

    def told(number: int, row: dict[str, Any]) -> None:
        if listen is not None:
            listen(row)

    if (folder.path / FEDERATION_FILE).is_file():
        raise RunError(f"{folder.path} is a run across real sites: go on with `fedsift flower start`")
    folder.lock()
    try:
        [outcome] = simulate_many([(study, folder)], told)
    finally:
        folder.unlock()
    if isinstance(outcome, FedsiftError):
        raise outcome
    return outcome


def simulate_many(
    jobs: Sequence[tuple[Study, RunFolder]], listen: Callable[[int, dict[str, Any]], None] | None = None
) -> list[dict[str, Any] | FedsiftError]:
    """Run several studies one after the other under one start of Flower; a summary or an error for each.

    `listen` is told the number of the study and each finished round's line.
    """
    require_flower()
    for study, _ in jobs:
        if study.engine.device != "cpu":
            raise ConfigError(
                f"engine.device = '{study.engine.device}': Flower's simulation trains on the CPU; "
                'use engine.name = "inprocess", or deploy (a real site names its device in site.toml)'
            )
    place = Path(tempfile.mkdtemp(prefix="fedsift-"))
    try:
        (place / "sites").mkdir()
        plan = _plan(jobs, place)
        (place / "plan.json").write_text(json.dumps(plan), "utf-8")
        for study, folder in jobs:
            folder.forget("failure.json")
            if not folder.study_file.is_file():
                folder.write_text("study.toml", study.to_toml())
        return _run(place, plan, jobs, listen)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def require_flower() -> None:
    for package in ("flwr", "ray"):
        if find_spec(package) is None:
            raise ConfigError(f"the Flower engine needs '{package}': pip install 'fedsift[flower]'")


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
) -> list[dict[str, Any] | FedsiftError]:
    log_file = jobs[0][1].path / LOG_FILE
    environment = offline({"FLWR_HOME": str(place / "flwr"), "FEDSIFT_SIMULATED_SITES": plan["sites"]})
    outcomes: dict[int, dict[str, Any] | FedsiftError] = {}
    with log_file.open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "fedsift.engines.flower.simulated", str(place / "plan.json")],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
        try:
            for event in _events(Path(plan["events"]), process):
                number = event["job"]
                if "round" in event and listen is not None:
                    listen(number, event["round"])
                elif "summary" in event:
                    outcomes[number] = event["summary"]
                elif "error" in event:
                    outcomes[number] = failure = _error(event)
                    said = {"error": str(failure), "exit_code": failure.exit_code}
                    jobs[number][1].write_json("failure.json", said)
                if len(outcomes) == len(jobs):
                    break  # Ray takes seconds to say goodbye
        finally:
            end_session(process, grace=0.0)
    unknown = RunError(
        f"Flower's simulation ended with code {process.returncode} before the run did; see {log_file}"
    )
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


def end_session(process: subprocess.Popen[bytes], grace: float = 10.0) -> None:
    """End a process that leads a session, and everything it started that has stayed in that session."""
    if process.poll() is None and grace > 0:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(grace)
    while members := session_members(process.pid):  # again, until nothing was started in the meantime
        for pid in members:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if process.poll() is None:
            process.wait()
        time.sleep(POLL)


def session_members(session: int) -> list[int]:
    """Processes of a session, by their own record in /proc (fields after the command's closing bracket)."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text("utf-8", errors="replace").rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            found.append(int(entry.name))
    return found
