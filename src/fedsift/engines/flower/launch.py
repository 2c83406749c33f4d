"""What the `fedsift flower` commands start: Flower's own programs, offline, on this machine's own addresses."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import tomli_w

from fedsift.contract.errors import ConfigError, FedsiftError, RunError
from fedsift.engines.flower.addresses import host_of, refuse_the_network
from fedsift.engines.flower.offline import offline
from fedsift.engines.flower.simulation import FEDERATION_FILE, LOG_FILE, end_session, require_flower
from fedsift.engines.flower.sites import open_site
from fedsift.engines.loop import Listener
from fedsift.engines.runfolder import RunFolder
from fedsift.study.study import Study

CONNECTION = "fedsift"
POLL = 0.5
SUPERLINK_STARTS = 60.0
BRISK = {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2"}
"""Flower's parts on one machine ask each other for work this often (seconds); the other polls are built in."""


def program(name: str) -> str:
    """A Flower program, from this Python's own folder if it is there."""
    require_flower()
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.is_file() else shutil.which(name)
    if found is None:
        raise ConfigError(f"the program '{name}' is missing: pip install 'fedsift[flower]'")
    return found


def existing(path: Path | None, what: str) -> Path | None:
    if path is not None and not path.is_file():
        raise ConfigError(f"{what} '{path}' does not exist")
    return None if path is None else path.resolve()


def superlink_command(
    host: str,
    port: int,
    *,
    insecure: bool,
    ca: Path | None,
    certificate: Path | None,
    key: Path | None,
    database: Path | None = None,
) -> list[str]:
    """The meeting point. With TLS, only sites whose key was registered may join.

    `database`: a file that remembers nodes and registered keys; without it a restart forgets them.
    """
    refuse_the_network(host)
    command = [program("flower-superlink"), "--host", host, "--port", str(port)]
    command.append("--disable-runtime-dependency-installation")
    if database is not None:
        command += ["--database", str(database.resolve())]
    if insecure:
        return [*command, "--insecure"]
    if ca is None or certificate is None or key is None:
        raise ConfigError(
            "a SuperLink needs --ca, --certificate and --key, or --insecure for a trial on 127.0.0.1"
        )
    files = {
        "--ssl-ca-certfile": existing(ca, "the CA certificate"),
        "--ssl-certfile": existing(certificate, "the certificate"),
        "--ssl-keyfile": existing(key, "the certificate's key"),
    }
    return [
        *command,
        *(part for flag, path in files.items() for part in (flag, str(path))),
        "--enable-supernode-auth",
    ]


def site_command(
    site_file: Path,
    superlink: str,
    *,
    insecure: bool,
    ca: Path | None,
    key: Path | None,
    port: int = 0,
    worker: Path | None = None,
) -> list[str]:
    """A site's node. The site's file and data are read first, so that mistakes show before anything connects.

    `worker`: the socket of the process that answers for the site.
    """
    refuse_the_network(host_of(superlink))
    open_site(site_file)
    settings = _quoted("site", site_file.resolve())
    if worker is not None:
        settings += f" {_quoted('worker', worker)}"
    command = [program("flower-supernode"), "--superlink", superlink, "--host", "127.0.0.1"]
    command += ["--port", str(port or free_port()), "--node-config", settings]
    if insecure:
        return [*command, "--insecure"]
    if ca is None or key is None:
        raise ConfigError("a site needs --ca and --key, or --insecure for a trial on 127.0.0.1")
    command += ["--root-certificates", str(existing(ca, "the CA certificate"))]
    return [*command, "--auth-supernode-private-key", str(existing(key, "the site's private key"))]


def _quoted(key: str, path: Path) -> str:
    if '"' in str(path):
        raise ConfigError(f"{path}: Flower cannot carry a path with quotes; rename the folder")
    return f'{key}="{path}"'


def new_socket() -> Path:
    """A place for the site's socket in a folder that only this user can enter."""
    return Path(tempfile.mkdtemp(prefix="fedsift-site-")) / "door"


def start_worker(site_file: Path, place: Path) -> None:
    """Start the process that holds the site's data; it ends with this one, whatever program this one becomes."""
    command = [sys.executable, "-m", "fedsift.engines.flower.worker", str(site_file.resolve()), str(place)]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, env=offline())
    while not place.exists():
        if process.poll() is not None:
            raise RunError(f"the site's process ended with code {process.returncode} before it could answer")
        time.sleep(0.1)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def become(command: list[str], home: Path) -> NoReturn:
    """Replace this process by the program: its signals and its end are then the program's own."""
    home.mkdir(parents=True, exist_ok=True)
    os.execve(command[0], command, offline({"FLWR_HOME": str(home.resolve()), **BRISK}))


def write_connection(home: Path, superlink: str, *, insecure: bool, ca: Path | None) -> None:
    """Flower's own configuration, in a home of ours, so that nobody's settings are touched."""
    refuse_the_network(host_of(superlink))
    connection: dict[str, Any] = {"address": superlink}
    if insecure:
        connection["insecure"] = True
    elif ca is not None:
        connection["root-certificates"] = str(existing(ca, "the CA certificate"))
    else:
        raise ConfigError("--ca is needed, or --insecure for a trial on 127.0.0.1")
    home.mkdir(parents=True, exist_ok=True)
    table = {"superlink": {"default": CONNECTION, CONNECTION: connection}}
    (home / "config.toml").write_text(tomli_w.dumps(table), "utf-8")


def register(public_key: Path, superlink: str, *, ca: Path | None, home: Path) -> None:
    """Let the holder of this key join (TLS only)."""
    write_connection(home, superlink, insecure=False, ca=ca)
    key = existing(public_key, "the site's public key")
    command = [program("flwr"), "supernode", "register", str(key), CONNECTION]
    done = subprocess.run(command, env=offline({"FLWR_HOME": str(home.resolve())}), check=False)
    if done.returncode:
        raise RunError(f"the SuperLink at {superlink} did not register {public_key}")


def prepare_run(app: Path, run_folder: Path) -> RunFolder:
    """The run's folder: a new one takes the app's study; one that exists is gone on with."""
    for name in ("pyproject.toml", "study.toml", FEDERATION_FILE):
        if not (app / name).is_file():
            raise ConfigError(f"'{app}' is no app of ours: it has no {name}. Make one with `fedsift deploy`")
    if not run_folder.exists():
        folder = RunFolder.create(run_folder.parent, run_folder.name)
        folder.write_text("study.toml", (app / "study.toml").read_text("utf-8"))
    folder = RunFolder.open(run_folder)
    if folder.finished:
        raise RunError(f"{run_folder} is finished: name another run folder")
    folder.write_text(FEDERATION_FILE, (app / FEDERATION_FILE).read_text("utf-8"))
    Study.from_file(folder.study_file)
    return folder


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
    folder.forget("failure.json")
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
        if ended or folder.finished or (folder.path / "failure.json").is_file():
            return
        time.sleep(POLL)


def _rounds_done(folder: RunFolder) -> int:
    """Rounds that a checkpoint counts; later lines belong to a round that is asked again."""
    if not folder.checkpoint_file.is_file():
        return 0
    from fedsift.contract import codec

    return int(codec.load(folder.checkpoint_file).rounds_done)


def _outcome(folder: RunFolder, log_file: Path) -> dict[str, Any]:
    summary = folder.read_json("summary.json")
    if summary is not None:
        return dict(summary)
    trouble = folder.read_json("failure.json")
    if trouble is not None:
        raise _of_code(int(trouble["exit_code"]))(trouble["error"])
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


__all__ = ["LOG_FILE", "become", "prepare_run", "register", "site_command", "start", "superlink_command"]
