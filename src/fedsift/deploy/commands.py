"""Flower's own programs as our commands start them: offline, checked first, on this machine's own addresses.

Flower's programs listen and call on loopback alone. What leads to the network is our door (`hosting.py` at the
coordinator, `attending.py` at a site), which starts them and ends with them.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import NoReturn

from fedsift.contract.errors import ConfigError, RunError
from fedsift.deploy.addresses import host_of, refuse_the_network
from fedsift.deploy.certificates import Pair
from fedsift.deploy.private import keep_to_oneself, private_folder
from fedsift.engines.flower.processes import offline, require_flower

BRISK = {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2"}
"""Flower's parts on one machine ask each other for work this often (seconds); the other polls are built in."""

TESTED = ("1.41.",)
"""Versions of Flower that were attacked and held; the door knows their routes and no others."""

Say = Callable[[str], None]
"""Tells the operator one line."""


def program(name: str) -> str:
    """A Flower program, from this Python's own folder if it is there."""
    require_flower()
    found_version = version("flwr")
    if not found_version.startswith(TESTED):
        raise ConfigError(
            f"flwr {found_version} was not tested across sites: pip install 'flwr[simulation]=={TESTED[0]}0'"
        )
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.is_file() else shutil.which(name)
    if found is None:
        raise ConfigError(f"the program '{name}' is missing: pip install 'fedsift[flower]'")
    return found


def existing(path: Path | None, what: str) -> Path | None:
    if path is not None and not path.is_file():
        raise ConfigError(f"{what} '{path}' does not exist")
    return None if path is None else path.resolve()


def superlink_command(host: str, port: int, *, own: Pair | None, database: Path | None = None) -> list[str]:
    """Flower's meeting point, on this machine's own address always: its port leads to the control calls too.

    `own`: the certificate of the line to our door; only keys that the door registers may then join. None: a trial
    without encryption. `database`: a file that remembers nodes; without it a restart forgets them.
    """
    refuse_the_network(host)
    command = [program("flower-superlink"), "--host", host, "--port", str(port)]
    command.append("--disable-runtime-dependency-installation")
    if database is not None:
        command += ["--database", str(database.resolve())]
    if own is None:
        return [*command, "--insecure"]
    certificate = str(own.certificate.resolve())
    command += ["--ssl-ca-certfile", certificate, "--ssl-certfile", certificate]
    return [*command, "--ssl-keyfile", str(own.key.resolve()), "--enable-supernode-auth"]


def site_command(
    site_file: Path,
    superlink: str,
    *,
    insecure: bool,
    ca: Path | None,
    key: Path | None,
    worker: Path,
    port: int = 0,
) -> list[str]:
    """A site's node. The site's file and data are read first, so that mistakes show before anything connects.

    `worker`: the socket of the process that answers for the site.
    """
    from fedsift.deploy.sites import open_site  # torch: the coordinator's door does without

    refuse_the_network(host_of(superlink))
    open_site(site_file)
    settings = _quoted("worker", worker)  # of the site's file and data Flower's processes learn nothing
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


class Worker:
    """The process that holds the site's data and alone answers for it; it ends with this one, and is started again."""

    def __init__(self, site_file: Path, place: Path) -> None:
        self.site_file, self.place = site_file, place
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, unless it runs, and wait until it takes calls."""
        if self._process is not None and self._process.poll() is None:
            return
        self.place.unlink(missing_ok=True)
        process = self._launch()
        while not self.place.exists():
            if process.poll() is not None:
                raise RunError(
                    f"the site's process ended with code {process.returncode} before it could answer"
                )
            time.sleep(0.1)

    def keep(self, say: Say) -> None:
        """Start it again if it has ended; what it answered is on disk, so nothing is lost but time."""
        if self._process is not None and (code := self._process.poll()) is not None:
            say(f"the site's own process ended with code {code}; it is started again")
            self._launch()

    def _launch(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "fedsift.deploy.worker", str(self.site_file.resolve())]
        self._process = subprocess.Popen([*command, str(self.place)], stdin=subprocess.DEVNULL, env=offline())
        return self._process


def attend_trial(command: list[str], worker: Worker, home: Path, say: Say) -> int:
    """A trial's node beside the site's own process, without a door; returns the node's exit code."""
    keep_to_oneself()
    private_folder(home)
    worker.start()
    with companion(command, home) as node:
        while node.poll() is None:
            worker.keep(say)
            time.sleep(0.2)
        return ended(node, "the SuperNode", say)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def become(command: list[str], home: Path) -> NoReturn:
    """Replace this process by the program: its signals and its end are then the program's own."""
    keep_to_oneself()
    private_folder(home)
    os.execve(command[0], command, _environment(home))


def _environment(home: Path) -> dict[str, str]:
    return offline({"FLWR_HOME": str(home.resolve()), **BRISK})


@contextmanager
def companion(command: list[str], home: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A program that runs beside a door: it is ended when the block is left, and when this process is killed."""
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, env=_environment(home), preexec_fn=_end_with_parent
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(10.0)
        if process.poll() is None:
            process.kill()
            process.wait()


def _end_with_parent() -> None:
    """Ask Linux to end this process when its parent is gone, however that ended; elsewhere nothing is asked."""
    parent_death_signal = 1
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(parent_death_signal, signal.SIGTERM)


def ended(process: subprocess.Popen[bytes], what: str, say: Say) -> int:
    """The exit code of a program that ended by itself, said aloud; 0 if it was the door that ended."""
    code = process.poll()
    if code is None:
        return 0
    say(f"{what} ended with code {code}")
    return 5 if code else 0
