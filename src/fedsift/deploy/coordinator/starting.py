"""The coordinator's commands: serve a SuperLink behind its gateway, prepare a run, start it, follow it to its end, and
list who took part."""

from __future__ import annotations

import json
import os
import re
import secrets
import socket
import subprocess
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx
import tomli_w

from fedsift.core import codec
from fedsift.core.errors import ConfigError, FedsiftError, RunError, Stopped
from fedsift.core.files import make_files_private, private_folder, read_checked_line, safe_name, write_private
from fedsift.core.loopback import host_of, refuse_the_network
from fedsift.core.version import __version__
from fedsift.deploy.certificates import CertificatePair, client_context, server_context, temporary_certificate
from fedsift.deploy.coordinator.roster import NODES_FILE, NodeKeys, Roster, read_entries
from fedsift.deploy.flower_commands import (
    companion,
    ended,
    error_of,
    existing,
    free_port,
    listens,
    program,
    superlink_command,
    with_forks,
)
from fedsift.deploy.gateway.listener import GatewayServer, bind
from fedsift.deploy.gateway.proxy import Gateway
from fedsift.deploy.temporary import new_socket, removed
from fedsift.deploy.waiting import Say, Starting, StatusLine, meanwhile
from fedsift.protocol.messages import moment_words
from fedsift.runs.folder import (
    CHECKPOINT,
    DEPLOYED,
    FAILURE,
    FEDERATION,
    STOP,
    SUMMARY,
    TRACK,
    WAITING,
    RunFolder,
    damaged,
    read_checkpoint,
)
from fedsift.runtime.loop import Listener, RunProgress
from fedsift.study.running import change_settings, is_changeable
from fedsift.study.study import Study
from fedsift.study.toml_tables import differences
from fedsift.transports.flower.processes import LOG_FILE, begin_session, end_session, offline

CONNECTION = "fedsift"
SUPERLINK_STARTS = 60.0
DIED_AFTER = 2.0
"""Seconds without the run's lock after which its program is taken to be dead; it writes its results under the lock."""
ENDS_WITHIN = 10.0
"""Seconds in which a run that was asked to end has ended."""
ENDING = "ending the run; what its finished rounds found is kept"


def write_connection(home: Path, superlink: str, *, insecure: bool, ca: Path | None) -> None:
    """Flower's own configuration, in a home of ours, so that nobody's settings are touched."""
    refuse_the_network(host_of(superlink))
    connection: dict[str, Any] = {"address": superlink}
    if insecure:
        connection["insecure"] = True
    elif ca is not None:
        connection["root-certificates"] = str(existing(ca, "the CA certificate"))
    else:
        raise ConfigError("a SuperLink behind a gateway is needed, or --insecure for a trial on 127.0.0.1")
    private_folder(home)
    table = {"superlink": {"default": CONNECTION, CONNECTION: connection}}
    (home / "config.toml").write_text(tomli_w.dumps(table), "utf-8")


def prepare_run(
    app: Path,
    run_folder: Path,
    superlink: str,
    link: SuperLinkAddress | None = None,
    changes: Mapping[str, Any] | None = None,
) -> RunFolder:
    """The run's folder: a new one takes the app's study and a random id; one that exists is gone on with.

    `link`: the gateway that the sites come through; without it, a trial. `changes`: settings from now on
    (`CHANGEABLE`); the app, which the sites have pinned, stays as it is.
    """
    refuse_the_network(host_of(superlink))
    for name in ("pyproject.toml", "study.toml", FEDERATION):
        if not (app / name).is_file():
            raise ConfigError(f"'{app}' is no app of ours: it has no {name}. Make one with `fedsift deploy`")
    _check_version(app)
    text = (app / "study.toml").read_text("utf-8")
    if not run_folder.exists():
        folder = RunFolder.create(run_folder.parent, run_folder.name)
        folder.write_text("study.toml", text)
        if (app / TRACK).is_file():
            folder.write_text(TRACK, (app / TRACK).read_text("utf-8"))
    folder = RunFolder.open(run_folder)
    if folder.finished:
        raise RunError(f"{run_folder} is finished: name another run folder")
    _note_deployment(folder, link, text)
    folder.write_text(FEDERATION, (app / FEDERATION).read_text("utf-8"))
    change_settings(folder, changes or {})
    Study.from_file(folder.study_file)
    return folder


def unreported(run_folder: Path) -> bool:
    """Whether the run finished while nobody followed it, so that its report is missing."""
    return (run_folder / SUMMARY).is_file() and not (run_folder / "report.html").is_file()


def _check_version(app: Path) -> None:
    """An app says which fedsift made it; the sites have the same one."""
    project = tomllib.loads((app / "pyproject.toml").read_text("utf-8")).get("project", {})
    wanted = [each.partition("==")[2] for each in project.get("dependencies", ()) if each.startswith("fedsift")]
    if wanted and wanted[0] and wanted[0] != __version__:
        raise ConfigError(
            f"'{app}' was made by fedsift {wanted[0]}, this is {__version__}: make it anew with `fedsift deploy` and "
            "let the sites pin it, or install that version here"
        )


def _note_deployment(folder: RunFolder, link: SuperLinkAddress | None, study: str) -> None:
    """What sites know this run by: two coordinators may give one name to two runs, and a site keeps notes of both.

    A run that began with another study or another fedsift is not gone on with: its rounds would not fit together. An
    app whose study differs in settings that may change is gone on with by these.
    """
    known = folder.read_json(DEPLOYED) or {}
    if "roster" in known and link is None:
        raise ConfigError(f"{folder.path} began behind a gateway: go on behind it, without --insecure")
    changes = _changes(folder, known.get("study", study), study)
    if known.get("fedsift", __version__) != __version__:
        raise ConfigError(
            f"{folder.path} began with fedsift {known['fedsift']}, this is {__version__}: install that version to go "
            "on, or name a new --run-folder"
        )
    run = known.get("run") or f"{safe_name(folder.id)}-{secrets.token_hex(8)}"
    gateway = {} if link is None else {"roster": link.roster, "nodes": link.nodes}
    change_settings(folder, changes)
    folder.write_json(DEPLOYED, {"run": run, "fedsift": __version__, "study": study, **gateway})


def _changes(folder: RunFolder, before: str, after: str) -> dict[str, Any]:
    """What an app's study changes in the run that another one began, if it may."""
    found = differences(tomllib.loads(before), tomllib.loads(after))
    for key, (old, new) in found.items():
        if not is_changeable(key):
            was, now = ("not set" if old is None else old), ("nothing" if new is None else new)
            raise ConfigError(
                f"{folder.path} began with another study ({key} was {was}, the app says {now}): name a new "
                "--run-folder, or start the app that it began with"
            )
    return {key: new for key, (_, new) in found.items()}


def start(
    app: Path,
    folder: RunFolder,
    superlink: str,
    *,
    insecure: bool,
    ca: Path | None = None,
    listen: Listener | None = None,
    say: Say = lambda words: None,
    stop: bool = True,
) -> dict[str, Any]:
    """Start the app on a running SuperLink, or attach to the run if it is under way, and follow it to its end.

    Returns the summary. `say` reports at least every five seconds what is waited for. `stop`: on Ctrl-C ask the
    SuperLink to end the run; a caller that ends the SuperLink itself need not.
    """
    status = StatusLine(say)
    home = folder.path / ".flower"
    write_connection(home, superlink, insecure=insecure, ca=ca)
    environment = offline({"FLWR_HOME": str(home.resolve())})
    log_file = folder.path / LOG_FILE
    if _busy(folder):
        say("this run is under way already: attached to it")
        _attached(folder, listen, status, environment, say)
        return _outcome(folder, log_file)
    status.now(f"waiting for the SuperLink at {superlink}")
    wait_for(superlink, say=status.now)
    for old in (FAILURE, STOP, WAITING):
        folder.forget(old)
    from_here = log_file.stat().st_size if log_file.is_file() else 0
    program = CoordinatorProcess(folder)
    with _launched(app, folder, environment, log_file, say) as process:
        try:
            follow(
                folder,
                lambda: process.poll() is None and not program.died(),
                lambda: _start_words(log_file, from_here, folder),
                listen,
                status,
            )
            if process.poll() is not None and _busy(folder):
                # another start was first, or Flower's own client ended before the run did
                _attached(folder, listen, status, environment, say)
            elif stop and process.poll() is None and program.died():
                with meanwhile("the coordinator's program has died; ending the run at the SuperLink", say):
                    _stop(folder, environment)
        except KeyboardInterrupt:
            if stop:
                with meanwhile(ENDING, say):
                    _stop(folder, environment)
            raise
    return _outcome(folder, log_file)


@contextmanager
def _launched(
    app: Path, folder: RunFolder, environment: dict[str, str], log_file: Path, say: Say
) -> Iterator[subprocess.Popen[bytes]]:
    """Flower's client, which hands the app to the SuperLink and stays while the run is under way."""
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
    with log_file.open("ab") as log:
        process = begin_session(command, environment, log)
        try:
            yield process
        finally:
            with meanwhile("ending Flower's client", say):
                end_session(process)


def _attached(
    folder: RunFolder, listen: Listener | None, status: StatusLine, environment: dict[str, str], say: Say
) -> None:
    """Follow a run that another process started; Ctrl-C ends it as it would there."""
    try:
        follow(
            folder,
            lambda: _busy(folder),
            lambda: "attached; the run has not said anything yet",
            listen,
            status,
        )
    except KeyboardInterrupt:
        with meanwhile(ENDING, say):
            _stop(folder, environment)
        raise


class CoordinatorProcess:
    """The coordinator's program as the run's lock shows it. Flower itself misses it only after a minute or more."""

    def __init__(self, folder: RunFolder, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder, self._clock = folder, clock
        self._seen: float | None = None

    def died(self) -> bool:
        """Whether it was at work and has not been for a moment, without having said how the run ended."""
        now = self._clock()
        if _busy(self._folder):
            self._seen = now
        ended = self._folder.finished or (self._folder.path / FAILURE).is_file()
        return self._seen is not None and now - self._seen > DIED_AFTER and not ended


def _busy(folder: RunFolder) -> bool:
    """Whether a process works on this run now."""
    return bool(folder.in_use)


def _start_words(log_file: Path, from_here: int, folder: RunFolder) -> str:
    """Where the start stands, before the run's own program speaks."""
    if _run_id(log_file, from_here) is None:
        return "packing the app and handing it to the SuperLink"
    if not _busy(folder):
        return "the SuperLink has the app, and starts the coordinator's program"
    return "the coordinator's program reads the study and looks for sites"


def _run_id(log_file: Path, from_here: int = 0) -> str | None:
    """The number that Flower gave the last run of this log."""
    try:
        text = log_file.read_bytes()[from_here:].decode("utf-8", errors="replace")
    except FileNotFoundError:
        return None
    found = re.findall(r"run (\d{6,})", text)
    return found[-1] if found else None


def wait_for(superlink: str, seconds: float = SUPERLINK_STARTS, say: Say = lambda words: None) -> None:
    """A SuperLink that was started a moment ago needs some seconds before it listens."""
    host, port = host_of(superlink), int(superlink.rpartition(":")[2])
    refuse_the_network(host)
    end = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection((host.strip("[]"), port), timeout=4.0).close()
            return
        except OSError as error:
            if time.monotonic() >= end:
                raise RunError(f"no SuperLink answers at {superlink} ({error}): start it first") from None
            say(f"waiting for the SuperLink at {superlink}: it does not answer yet")
        time.sleep(POLL)


def _outcome(folder: RunFolder, log_file: Path) -> dict[str, Any]:
    summary = folder.read_json(SUMMARY)
    if summary is not None:
        return dict(summary)
    trouble = folder.read_json(FAILURE)
    if trouble is not None:
        raise error_of(int(trouble["exit_code"]))(trouble["error"])
    if folder.asked_to_stop:
        raise Stopped("stopped on request; nothing is lost, the run can be resumed")
    disk = _disk_words(folder)
    if disk:
        raise RunError(
            f"the run ended because {folder.path} cannot be written ({disk}). Mend that, then start it again"
        )
    raise RunError(f"the run ended before it was finished; {log_file} says more. Start it again to go on")


def _disk_words(folder: RunFolder) -> str:
    """Why nothing can be written into the run's folder now, in the system's words; a full disk holds no log either."""
    probe = folder.path / ".probe"
    try:
        probe.write_bytes(bytes(1 << 16))
    except OSError as error:
        return error.strerror or str(error)
    finally:
        with suppress(OSError):
            probe.unlink(missing_ok=True)
    return ""


def _stop(folder: RunFolder, environment: dict[str, str]) -> None:
    """End the run: it would go on without us, and write into a folder that nobody follows."""
    end = time.monotonic() + ENDS_WITHIN
    while (run := _run_id(folder.path / LOG_FILE)) is None and time.monotonic() < end - ENDS_WITHIN / 2:
        time.sleep(POLL)  # Flower's client may be about to hand it over
    if run is None:
        return
    with suppress(subprocess.TimeoutExpired):
        subprocess.run(
            [program("flwr"), "stop", run, CONNECTION],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=30,
            check=False,
        )
    while _busy(folder) and time.monotonic() < end + ENDS_WITHIN:
        time.sleep(POLL)


# Following a run by its folder
# ------------------------------------------------------------------------------


POLL = 0.25


class NewRounds:
    """The lines of rounds.jsonl that were not reported yet; the file is read on from the last position."""

    def __init__(self, file: Path, reported: int = 0) -> None:
        self._file, self._reported, self._at = file, reported, 0

    def new(self) -> list[dict[str, Any]]:
        try:
            if self._file.stat().st_size < self._at:
                self._at = 0  # a run that goes on has dropped the lines after its checkpoint
            with self._file.open("rb") as file:
                file.seek(self._at)
                content = file.read()
        except FileNotFoundError:
            return []
        whole = content[: content.rfind(b"\n") + 1]
        self._at += len(whole)
        try:
            rows = [read_checked_line(line) for line in whole.splitlines()]
        except ValueError:
            raise damaged(self._file) from None
        fresh = [row for row in rows if row["round"] > self._reported]
        self._reported = max([self._reported, *(row["round"] for row in fresh)])
        return fresh


def waiting_words(folder: RunFolder) -> str:
    """Whom the run's own program waits for; "" before it has said anything."""
    try:
        now = folder.read_json(WAITING)
    except ValueError:
        return ""
    if not now:
        return ""
    who = ", ".join(f"{site} ({words})" for site, words in list(now["waiting"].items())[:8])
    more = len(now["waiting"]) - 8
    tail = f" and {more} more" if more > 0 else ""
    here = f"; here: {', '.join(now['here'])}" if now.get("here") else ""
    others = "".join(f"; {name}: {why}" for name, why in now.get("refused", {}).items() if name not in now["waiting"])
    return f"{now['what']}, waiting for {who}{tail}{here}{others}" if who else str(now["what"])


def follow(
    folder: RunFolder,
    alive: Callable[[], bool],
    before: Callable[[], str],
    listen: Listener | None,
    status: StatusLine,
    rest: Callable[[float], None] = time.sleep,
) -> None:
    """Tell of rounds and of waiting until the run has ended, one way or the other.

    `alive`: whether anybody works on it. `before`: where the start stands, while the program has not said anything.
    """
    header = folder.checkpointed()
    rounds = NewRounds(folder.rounds_file, 0 if header is None else header.rounds_done)
    while True:
        ended = not alive()
        for row in rounds.new():
            if listen is not None:
                listen(row)
        stopped = folder.asked_to_stop and not folder.in_use
        if ended or stopped or folder.finished or (folder.path / FAILURE).is_file():
            return
        status.now(waiting_words(folder) or before())
        rest(POLL)


# SuperLink and gateway
# ------------------------------------------------------------------------------


LINK_FILE = "link.json"
ACCESS_LOG = "access.jsonl"
HOME = Path(".flower-superlink")


@dataclass(frozen=True)
class SuperLinkAddress:
    """Where the SuperLink behind a gateway is: readable by this user on this machine only."""

    address: str
    ca: str
    roster: str
    nodes: str
    pid: int


def read_link(home: Path) -> SuperLinkAddress:
    """The link of a running meeting point, from its home folder."""
    file = home / LINK_FILE
    try:
        link = SuperLinkAddress(**json.loads(file.read_text("utf-8")))
        os.kill(link.pid, 0)
    except (OSError, ValueError, TypeError):
        raise RunError(
            f"no superlink of yours runs with its files in '{home}': start `fedsift flower superlink` first, or name "
            "its --home"
        ) from None
    return link


def host(
    address: str,
    port: int,
    pair: CertificatePair,
    roster_file: Path,
    *,
    home: Path,
    say: Say,
    database: Path | None = None,
) -> int:
    """Run both until one of them ends or a signal comes; returns the SuperLink's exit code."""
    make_files_private()
    context = server_context(pair)
    if not roster_file.is_file():
        raise ConfigError(
            f"the roster '{roster_file}' does not exist: make it with `fedsift flower roster add NAME node.pub "
            f"--samples N --roster {roster_file}`"
        )
    roster = Roster(roster_file)
    private_folder(home)
    # one left by a killed process could be taken for this one's
    (home / LINK_FILE).unlink(missing_ok=True)
    own = temporary_certificate(home / "own")
    nodes = home / NODES_FILE
    if database is None:
        nodes.unlink(missing_ok=True)  # the SuperLink has forgotten these numbers too
    inside = free_port()
    command = superlink_command("127.0.0.1", inside, own=own, database=database)
    forks = new_socket().with_name("forks")
    command, first = with_forks("coordinator", command, home, forks)
    with bind(address, port) as listener, removed(forks.parent):
        reached = listener.getsockname()[1]
        with companion(command, home, settings=first) as superlink:
            link = SuperLinkAddress(
                f"127.0.0.1:{inside}",
                str(own.certificate.resolve()),
                str(roster_file.resolve()),
                str(nodes.resolve()),
                os.getpid(),
            )
            write_private(home / LINK_FILE, json.dumps(asdict(link)).encode())
            try:
                gateway = Gateway(
                    f"https://127.0.0.1:{inside}",
                    httpx.AsyncClient(verify=client_context(own.certificate), timeout=60.0, trust_env=False),
                    roster=roster,
                    log=home / ACCESS_LOG,
                    nodes=NodeKeys(nodes),
                    notify=say,
                )
                listed = sum(not entry.revoked for entry in read_entries(roster_file))
                say(
                    f"the gateway listens on {address}:{reached} (TLS); {listed} sites are on the roster; who comes is "
                    f"written to {home / ACCESS_LOG}"
                )
                starts = Starting("Flower's SuperLink starts", "the SuperLink is ready", say)

                def alive() -> bool:
                    starts.look(lambda: listens(inside))
                    return superlink.poll() is None

                GatewayServer(gateway, listener, context, alive=alive, notify=say).run()
            finally:
                (home / LINK_FILE).unlink(missing_ok=True)
            return ended(superlink, "the SuperLink", say)


# Participation of a site in runs
# ------------------------------------------------------------------------------


MODEL = "model.safetensors"


@dataclass(frozen=True)
class Participation:
    """One run in which a site's answers were used."""

    run: Path
    until: str
    """The last of its answers that was used."""
    state: str
    model: Path | None
    """The file of the model that it helped to train; None while there is none."""


def participations(site: str, places: Iterable[Path]) -> list[Participation]:
    """Runs in these folders, or in folders of theirs, that used an answer of the site."""
    files = {
        file.resolve(): file
        for place in places
        for depth in ("", "*/", "*/*/")
        for file in place.glob(depth + CHECKPOINT)
    }
    looked = (_participation(site, file) for file in sorted(files.values()))
    return [found for found in looked if found is not None]


def _participation(site: str, file: Path) -> Participation | None:
    """The site's part in the run of this checkpoint. A run that cannot be read may be one of them, and is listed."""
    folder = file.parent
    model = folder / MODEL
    its_model = model if model.is_file() else None
    try:
        Study.from_file(RunFolder.open(folder).study_file)  # its method brings the classes of its state
        header, state = read_checkpoint(file)
        progress = codec.decoded(state, file)
        if not isinstance(progress, RunProgress):
            raise RunError(f"{file} is no checkpoint of a run")
    except FedsiftError as error:
        return Participation(folder, "not known", f"cannot be read: {error}", its_model)
    if site not in progress.accepted:
        return None
    finished = (folder / SUMMARY).is_file()
    state_words = "finished" if finished else f"stopped after round {header.rounds_done}"
    return Participation(folder, moment_words(progress.accepted[site]), state_words, its_model)
