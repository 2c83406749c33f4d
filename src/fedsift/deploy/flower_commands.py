"""Starts Flower's programs: offline, with checked versions, on loopback addresses.

Flower's programs listen and call on loopback alone. Only our gateway is reachable from the network (`starting.py` at
the coordinator, `attending.py` at a site), which starts them and ends with them.
"""

from __future__ import annotations

import os
import random
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import NoReturn

from fedsift.core.errors import ConfigError, FedsiftError, RunError
from fedsift.core.files import make_files_private, private_folder
from fedsift.core.loopback import host_of, refuse_the_network
from fedsift.core.process import end_with_parent
from fedsift.deploy import resident
from fedsift.deploy.certificates import CertificatePair
from fedsift.deploy.site import confinement
from fedsift.deploy.site.confinement import Confinement
from fedsift.deploy.site.site_file_head import read_head
from fedsift.deploy.waiting import Say, meanwhile
from fedsift.transports.flower.processes import offline, require_flower

LOWEST_PORT = 12_000
"""Below it live well-known services."""
BRISK = {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1"}
"""Flower's parts on one machine ask each other for work this often (seconds); the other polls are built in."""

TESTED = ("1.41.",)
"""Versions of Flower that were attacked and held; the gateway knows their routes and no others."""


def program(name: str) -> str:
    """A Flower program, from this Python's own folder if it is there."""
    require_flower("deploy")
    found_version = version("flwr")
    if not found_version.startswith(TESTED):
        raise ConfigError(f"flwr {found_version} was not tested across sites: pip install 'flwr=={TESTED[0]}0'")
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.is_file() else shutil.which(name)
    if found is None:
        raise ConfigError(f"the program '{name}' is missing: pip install 'fedsift[deploy]'")
    return found


def existing(path: Path | None, what: str) -> Path | None:
    if path is not None and not path.is_file():
        raise ConfigError(f"{what} '{path}' does not exist")
    return None if path is None else path.resolve()


def superlink_command(host: str, port: int, *, own: CertificatePair | None, database: Path | None = None) -> list[str]:
    """Flower's meeting point, on this machine's own address always: its port leads to the control calls too.

    `own`: the certificate of the line to our gateway; only keys that the gateway registers may then join. None: a trial
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
    superlink: str,
    *,
    insecure: bool,
    ca: Path | None,
    key: Path | None,
    worker: Path,
    port: int = 0,
) -> list[str]:
    """A site's node. `worker`: the socket of the process that answers for the site."""
    refuse_the_network(host_of(superlink))
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


def failure_file(place: Path) -> Path:
    """Where a site's process that cannot start says why: beside its socket."""
    return place.with_name("trouble")


def error_of(exit_code: int) -> type[FedsiftError]:
    """The kind of error that ends with this code."""
    kinds = [kind for kind in FedsiftError.__subclasses__() if kind.exit_code == exit_code]
    return kinds[0] if kinds else RunError


class SiteProcess:
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
            if (code := process.poll()) is not None:
                raise self._trouble(code)
            time.sleep(0.05)

    def _trouble(self, code: int) -> FedsiftError:
        """Why it ended before it could answer: its own words, when the file or the data are wrong."""
        try:
            words = failure_file(self.place).read_text("utf-8")
        except OSError:
            return RunError(f"the site's process ended with code {code} before it could answer")
        return error_of(code)(words)

    def keep(self, say: Say) -> None:
        """Start it again if it has ended; what it answered is on disk, so nothing is lost but time."""
        if self._process is not None and (code := self._process.poll()) is not None:
            say(f"the site's own process ended with code {code}; it is started again")
            self._launch()

    def stop(self) -> None:
        """End it, and remove its folder."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            self._process.wait()
        shutil.rmtree(self.place.parent, ignore_errors=True)

    def _launch(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "fedsift.deploy.site.worker", str(self.site_file.resolve())]
        # one arena: a process of one thread gains nothing from more, and they never shrink
        small = {"MALLOC_ARENA_MAX": "1", "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen([*command, str(self.place)], stdin=subprocess.DEVNULL, env=offline(small))
        return self._process


def run_trial_site(command: list[str], worker: SiteProcess, home: Path, say: Say) -> int:
    """A trial's node beside the site's own process, without a gateway; returns the node's exit code."""
    make_files_private()
    private_folder(home)
    try:
        with meanwhile("reading this site's data", say):
            worker.start()
        rules = confinement.of_node(home, worker.place, [], read_head(worker.site_file).guarded)
        with node_of(command, home, worker.place, rules) as node:
            while node.poll() is None:
                worker.keep(say)
                time.sleep(0.2)
            return ended(node, "the SuperNode", say)
    finally:
        worker.stop()


def free_port() -> int:
    """A port that nobody listens on, below those that the kernel gives to outgoing connections: until its program
    listens, no such line can take it."""
    with suppress(OSError, ValueError, IndexError):
        first_given = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text("ascii").split()[0])
        for port in random.SystemRandom().sample(range(LOWEST_PORT, first_given), 50):
            with suppress(OSError), socket.socket() as probe:
                probe.bind(("127.0.0.1", port))
                return port
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def listens(port: int) -> bool:
    """Whether a program on this machine takes lines at the port."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=0.2).close()
    except OSError:
        return False
    return True


def become(command: list[str], home: Path) -> NoReturn:
    """Replace this process by the program: its signals and its end are then the program's own."""
    make_files_private()
    private_folder(home)
    os.execve(command[0], command, _environment(home))


def _environment(home: Path) -> dict[str, str]:
    return offline({"FLWR_HOME": str(home.resolve()), **BRISK})


@contextmanager
def node_of(command: list[str], home: Path, worker: Path, rules: Confinement) -> Iterator[subprocess.Popen[bytes]]:
    """A site's SuperNode, with a process of its own that takes the place of a new Python for each message."""
    command, first = with_forks("site", command, home, worker.with_name("forks"))
    try:
        with companion(command, home, rules, first) as node:
            yield node
    finally:
        rules.close()


def with_forks(side: str, command: list[str], home: Path, forks: Path) -> tuple[list[str], dict[str, str]]:
    """A program of Flower's beside the process that forks for it: the command, and what its environment needs."""
    path = resident.resident_program(side, home.resolve() / "bin", forks)
    if path is None:
        return command, {}
    ready = [sys.executable, "-m", "fedsift.deploy.resident", side, str(forks), *command]
    return ready, {"PATH": os.pathsep.join([str(path), offline()["PATH"]])}


@contextmanager
def companion(
    command: list[str],
    home: Path,
    rules: Confinement | None = None,
    settings: Mapping[str, str] | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """A program that runs beside a gateway: it is ended when the block is left, and when this process is killed.

    `rules`: what it and its children may open; its temporary files are then in its home. `settings`: more of its
    environment.
    """
    environment = _environment(home) | dict(settings or {})
    if rules is not None and rules.holds:
        environment["TMPDIR"] = str(private_folder(home.resolve() / "tmp"))

    def settle() -> None:
        end_with_parent()
        if rules is not None:
            rules.apply()

    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, env=environment, preexec_fn=settle, cwd=home.resolve()
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


def ended(process: subprocess.Popen[bytes], what: str, say: Say) -> int:
    """The exit code of a program that ended by itself, which is reported; 0 if the gateway ended first."""
    code = process.poll()
    if code is None:
        return 0
    say(f"{what} ended with code {code}")
    return 5 if code else 0
