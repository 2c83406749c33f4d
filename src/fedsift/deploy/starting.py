"""A run on a running SuperLink: prepare the run's folder, start the app and follow it to its end."""

from __future__ import annotations

import re
import secrets
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import tomli_w

from fedsift.contract.errors import ConfigError, FedsiftError, RunError, Stopped
from fedsift.contract.files import safe_name
from fedsift.deploy.addresses import host_of, refuse_the_network
from fedsift.deploy.commands import existing, program
from fedsift.deploy.hosting import Link
from fedsift.deploy.private import private_folder
from fedsift.engines.flower.processes import LOG_FILE, end_session, offline
from fedsift.engines.loop import Listener
from fedsift.runs import RunFolder
from fedsift.runs.folder import DEPLOYED, FAILURE, FEDERATION, STOP, SUMMARY, TRACK
from fedsift.study.study import Study

CONNECTION = "fedsift"
POLL = 0.5
SUPERLINK_STARTS = 60.0


def write_connection(home: Path, superlink: str, *, insecure: bool, ca: Path | None) -> None:
    """Flower's own configuration, in a home of ours, so that nobody's settings are touched."""
    refuse_the_network(host_of(superlink))
    connection: dict[str, Any] = {"address": superlink}
    if insecure:
        connection["insecure"] = True
    elif ca is not None:
        connection["root-certificates"] = str(existing(ca, "the CA certificate"))
    else:
        raise ConfigError("a SuperLink behind a door is needed, or --insecure for a trial on 127.0.0.1")
    private_folder(home)
    table = {"superlink": {"default": CONNECTION, CONNECTION: connection}}
    (home / "config.toml").write_text(tomli_w.dumps(table), "utf-8")


def prepare_run(app: Path, run_folder: Path, superlink: str, link: Link | None = None) -> RunFolder:
    """The run's folder: a new one takes the app's study and a random id; one that exists is gone on with.

    `link`: the door that the sites come through; without it, a trial.
    """
    refuse_the_network(host_of(superlink))
    for name in ("pyproject.toml", "study.toml", FEDERATION):
        if not (app / name).is_file():
            raise ConfigError(f"'{app}' is no app of ours: it has no {name}. Make one with `fedsift deploy`")
    if not run_folder.exists():
        folder = RunFolder.create(run_folder.parent, run_folder.name)
        folder.write_text("study.toml", (app / "study.toml").read_text("utf-8"))
        if (app / TRACK).is_file():
            folder.write_text(TRACK, (app / TRACK).read_text("utf-8"))
    folder = RunFolder.open(run_folder)
    if folder.finished:
        raise RunError(f"{run_folder} is finished: name another run folder")
    folder.write_text(FEDERATION, (app / FEDERATION).read_text("utf-8"))
    _note_deployment(folder, link)
    Study.from_file(folder.study_file)
    return folder


def _note_deployment(folder: RunFolder, link: Link | None) -> None:
    """What sites know this run by: two coordinators may give one name to two runs, and a site keeps notes of both."""
    known = folder.read_json(DEPLOYED) or {}
    if "roster" in known and link is None:
        raise ConfigError(f"{folder.path} began behind a door: go on behind it, without --insecure")
    run = known.get("run") or f"{safe_name(folder.id)}-{secrets.token_hex(8)}"
    door = {} if link is None else {"roster": link.roster, "nodes": link.nodes}
    folder.write_json(DEPLOYED, {"run": run, **door})


def start(
    app: Path,
    folder: RunFolder,
    superlink: str,
    *,
    insecure: bool,
    ca: Path | None = None,
    listen: Listener | None = None,
) -> dict[str, Any]:
    """Start the app on a running SuperLink and follow it to its end; returns the summary."""
    home = folder.path / ".flower"
    write_connection(home, superlink, insecure=insecure, ca=ca)
    wait_for(superlink)
    environment = offline({"FLWR_HOME": str(home.resolve())})
    place = str(folder.path.resolve())
    command = [
        program("flwr"),
        "run",
        str(app.resolve()),
        CONNECTION,
        "--stream",
        "-c",
        f'run-folder="{place}"',
    ]
    folder.forget(FAILURE)
    folder.forget(STOP)
    log_file = folder.path / LOG_FILE
    from_here = log_file.stat().st_size if log_file.is_file() else 0
    with log_file.open("ab") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
        try:
            _follow(folder, process, listen)
        except KeyboardInterrupt:
            _stop(log_file, from_here, environment)
            raise
        finally:
            end_session(process)
    return _outcome(folder, log_file)


def wait_for(superlink: str, seconds: float = SUPERLINK_STARTS) -> None:
    """A SuperLink that was started a moment ago needs some seconds before it listens."""
    host, port = host_of(superlink), int(superlink.rpartition(":")[2])
    refuse_the_network(host)
    end = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection((host.strip("[]"), port), timeout=5.0).close()
            return
        except OSError as error:
            if time.monotonic() >= end:
                raise RunError(f"no SuperLink answers at {superlink} ({error}): start it first") from None
        time.sleep(POLL)


def _follow(folder: RunFolder, process: subprocess.Popen[bytes], listen: Listener | None) -> None:
    """Tell of finished rounds until the run has ended."""
    told = _rounds_done(folder)
    while True:
        ended = process.poll() is not None
        for row in folder.rounds():
            if row["round"] > told:
                told = row["round"]
                if listen is not None:
                    listen(row)
        stopped = folder.asked_to_stop and not folder.in_use
        if ended or stopped or folder.finished or (folder.path / FAILURE).is_file():
            return
        time.sleep(POLL)


def _rounds_done(folder: RunFolder) -> int:
    """Rounds that a checkpoint counts; later lines belong to a round that is asked again."""
    header = folder.checkpointed()
    return 0 if header is None else header.rounds_done


def _outcome(folder: RunFolder, log_file: Path) -> dict[str, Any]:
    summary = folder.read_json(SUMMARY)
    if summary is not None:
        return dict(summary)
    trouble = folder.read_json(FAILURE)
    if trouble is not None:
        raise _of_code(int(trouble["exit_code"]))(trouble["error"])
    if folder.asked_to_stop:
        raise Stopped("stopped on request; nothing is lost, the run can be resumed")
    raise RunError(f"the run ended before it was finished; {log_file} says more. Start it again to go on")


def _of_code(exit_code: int) -> type[FedsiftError]:
    """The kind of error that ends with this code."""
    kinds = [kind for kind in FedsiftError.__subclasses__() if kind.exit_code == exit_code]
    return kinds[0] if kinds else RunError


def _stop(log_file: Path, from_here: int, environment: dict[str, str]) -> None:
    """Ask the SuperLink to end the run that was just started: it would go on without us."""
    text = log_file.read_bytes()[from_here:].decode("utf-8", errors="replace")
    found = re.search(r"run (\d{6,})", text)
    if found is None:
        return
    with suppress(subprocess.TimeoutExpired):
        subprocess.run(
            [program("flwr"), "stop", found[1], CONNECTION],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=30,
            check=False,
        )
