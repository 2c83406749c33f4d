"""Flower's own programs as our commands start them: offline, checked first, on this machine's own addresses."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NoReturn

from fedsift.contract.errors import ConfigError, RunError
from fedsift.deploy.addresses import host_of, refuse_the_network
from fedsift.deploy.sites import open_site
from fedsift.engines.flower.processes import offline, require_flower

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
    command = [sys.executable, "-m", "fedsift.deploy.worker", str(site_file.resolve()), str(place)]
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
