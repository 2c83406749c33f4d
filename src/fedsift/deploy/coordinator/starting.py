"""A run on a running SuperLink: prepare the run's folder, start the app and follow it to its end."""

from __future__ import annotations

import re
import secrets
import socket
import subprocess
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import tomli_w

from fedsift.core.errors import ConfigError, RunError, Stopped
from fedsift.core.files import private_folder, safe_name
from fedsift.core.version import __version__
from fedsift.deploy.addresses import host_of, refuse_the_network
from fedsift.deploy.coordinator.following import POLL, follow
from fedsift.deploy.coordinator.hosting import SuperLinkAddress
from fedsift.deploy.flower_commands import error_of, existing, program
from fedsift.deploy.waiting import Say, StatusLine, meanwhile
from fedsift.runs.folder import DEPLOYED, FAILURE, FEDERATION, STOP, SUMMARY, TRACK, WAITING, RunFolder
from fedsift.runtime.loop import Listener
from fedsift.study.study import Study
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
        raise ConfigError("a SuperLink behind a door is needed, or --insecure for a trial on 127.0.0.1")
    private_folder(home)
    table = {"superlink": {"default": CONNECTION, CONNECTION: connection}}
    (home / "config.toml").write_text(tomli_w.dumps(table), "utf-8")


def prepare_run(app: Path, run_folder: Path, superlink: str, link: SuperLinkAddress | None = None) -> RunFolder:
    """The run's folder: a new one takes the app's study and a random id; one that exists is gone on with.

    `link`: the door that the sites come through; without it, a trial.
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
    Study.from_file(folder.study_file)
    return folder


def unreported(run_folder: Path) -> bool:
    """Whether the run finished while nobody followed it, so that its report is missing."""
    return (run_folder / SUMMARY).is_file() and not (run_folder / "report.html").is_file()


def _check_version(app: Path) -> None:
    """An app says which fedsift made it; the sites were told that one."""
    project = tomllib.loads((app / "pyproject.toml").read_text("utf-8")).get("project", {})
    wanted = [each.partition("==")[2] for each in project.get("dependencies", ()) if each.startswith("fedsift")]
    if wanted and wanted[0] and wanted[0] != __version__:
        raise ConfigError(
            f"'{app}' was made by fedsift {wanted[0]}, this is {__version__}: make it anew with `fedsift deploy` and "
            "let the sites pin it, or install that version here"
        )


def _note_deployment(folder: RunFolder, link: SuperLinkAddress | None, study: str) -> None:
    """What sites know this run by: two coordinators may give one name to two runs, and a site keeps notes of both.

    A run that began with another study or another fedsift is not gone on with: its rounds would not fit together.
    """
    known = folder.read_json(DEPLOYED) or {}
    if "roster" in known and link is None:
        raise ConfigError(f"{folder.path} began behind a door: go on behind it, without --insecure")
    if known.get("study", study) != study:
        raise ConfigError(
            f"{folder.path} began with another study ({_difference(known['study'], study)}): name a new --run-folder, "
            "or start the app that it began with"
        )
    if known.get("fedsift", __version__) != __version__:
        raise ConfigError(
            f"{folder.path} began with fedsift {known['fedsift']}, this is {__version__}: install that version to go "
            "on, or name a new --run-folder"
        )
    run = known.get("run") or f"{safe_name(folder.id)}-{secrets.token_hex(8)}"
    door = {} if link is None else {"roster": link.roster, "nodes": link.nodes}
    folder.write_json(DEPLOYED, {"run": run, "fedsift": __version__, "study": study, **door})


def _difference(before: str, after: str) -> str:
    """The first key in which two studies differ, in words."""
    old, new = (dict(_leaves(tomllib.loads(text))) for text in (before, after))
    for key in sorted(old | new):
        if old.get(key) != new.get(key):
            return f"{key} was {old.get(key, 'not set')}, the app says {new.get(key, 'nothing')}"
    return "in its words alone"


def _leaves(table: dict[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


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

    Returns the summary. `say` is told at least every five seconds what is waited for. `stop`: on Ctrl-C ask the
    SuperLink to end the run; whoever ends the SuperLink itself need not.
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
                with meanwhile("the coordinator's program has died; the SuperLink is told so", say):
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
