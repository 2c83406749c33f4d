"""A trial deployment on one machine: SuperLink, sites and run as processes of one command."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fedsift.core.errors import ConfigError, RunError
from fedsift.core.files import private_folder, safe_name, write_private
from fedsift.core.process import end_with_parent
from fedsift.deploy.app import write_app
from fedsift.deploy.certificates import temporary_certificate
from fedsift.deploy.coordinator import starting
from fedsift.deploy.coordinator.roster import RosterEntry, add_entry, fingerprint
from fedsift.deploy.coordinator.starting import LINK_FILE, POLL, SuperLinkAddress, read_link
from fedsift.deploy.flower_commands import free_port
from fedsift.deploy.site.consent import app_fingerprint, pin
from fedsift.deploy.site.site_file_head import read_head
from fedsift.deploy.waiting import Say, StatusLine, meanwhile
from fedsift.runs.folder import FEDERATION, WAITING, RunFolder
from fedsift.runtime.loop import Listener
from fedsift.study.study import Study
from fedsift.transports.flower.processes import end_session, session_members

MOST_SITES = 20
"""Each is a handful of processes: more belong into a simulation."""


@dataclass
class TrialProcess:
    """One program of the consortium."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    began: float = field(default_factory=time.monotonic)

    @property
    def last_words(self) -> str:
        """The last line that it printed."""
        try:
            with self.log.open("rb") as file:
                file.seek(max(0, self.log.stat().st_size - 4096))
                lines = file.read().decode("utf-8", errors="replace").strip().splitlines()
        except OSError:
            return ""
        return re.sub(r"\x1b\[[0-9;]*m", "", lines[-1]).strip() if lines else ""


@dataclass
class ConsortiumTrial:
    """Where everything of a trial is, and what runs."""

    out: Path
    study: Study
    sites: dict[str, Path]
    """Site files by name, in the federation's order."""
    port: int = field(default_factory=free_port)
    members: list[TrialProcess] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)
    row: dict[str, Any] = field(default_factory=dict)
    """The last finished round."""

    @property
    def gateways(self) -> bool:
        """Whether sites come through gateways, with keys, as they would across a network."""
        return self.certificate.is_file()

    @property
    def certificate(self) -> Path:
        return self.out / "keys" / "own.crt"

    @property
    def hub(self) -> Path:
        return self.out / "superlink"

    @property
    def roster(self) -> Path:
        return self.out / "app" / FEDERATION

    def key_of(self, site: str) -> Path:
        return self.out / "keys" / f"node-{safe_name(site)}"

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def run(self) -> Path:
        return self.out / "run"

    def launch(self, name: str, *arguments: str | Path) -> TrialProcess:
        """Start one `fedsift` command in a session of its own; it ends when this process does, however that ends."""
        log = private_folder(self.out / "logs") / f"{name}.log"
        with log.open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "fedsift", "flower", *map(str, arguments)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=end_with_parent,
            )
        member = TrialProcess(name, process, log)
        self.members.append(member)
        return member

    def check(self) -> None:
        """Raise when a program that must run has ended."""
        for member in self.members:
            code = member.process.poll()
            if code is not None:
                raise RunError(f"{member.name} ended with code {code}: {member.last_words} (all of it: {member.log})")

    def states(self) -> list[tuple[str, str, str]]:
        """Name, state and a few words for each program and for the run."""
        waiting = _waiting(self.run)
        rows = []
        for member in self.members:
            code = member.process.poll()
            state = "runs" if code is None else f"ended with code {code}"
            words = member.last_words
            if member.name in self.sites and code is None:
                state, words = _site_state(member.name, waiting), words
            rows.append((member.name, state, words))
        done = f"round {self.row['round']} of {self.row.get('of', '?')}" if self.row else "not begun"
        rows.append(("run", done, str(waiting.get("what", "starting"))))
        return rows


def _waiting(run: Path) -> dict[str, Any]:
    try:
        return dict(RunFolder(run).read_json(WAITING) or {})
    except ValueError:
        return {}


def _site_state(site: str, waiting: dict[str, Any]) -> str:
    if site in waiting.get("waiting", {}):
        return str(waiting["waiting"][site])
    if not waiting:
        return "starts"
    return "has joined" if site in waiting.get("here", ()) else "has answered"


def prepare_trial(study: Study, out: Path | None = None, *, gateways: bool = True) -> ConsortiumTrial:
    """The app and the sites' folders, written where nothing else is; with `gateways`, keys, roster and pins too."""
    slug = re.sub(r"[^a-z0-9]+", "-", study.name.lower()).strip("-") or "study"
    place = out or Path("trials") / f"{datetime.now():%Y-%m-%d-%H%M%S}-{slug}"
    if place.exists() and any(place.iterdir()):
        raise ConfigError(f"'{place}' is not empty: name a new folder with --out")
    count = getattr(study.partition, "sites", None)
    if isinstance(count, int) and count > MOST_SITES:
        raise ConfigError(
            f"a trial of {count} sites would be hundreds of processes on one machine: try partition.sites=3, or "
            "simulate them all with `fedsift run`"
        )
    private_folder(place)
    files = write_app(study, place / "app", trial=place / "trial")
    trial = ConsortiumTrial(place.resolve(), study, {read_head(file).name: file for file in files})
    if gateways:
        _issue_keys(trial)
    return trial


def make_key(place: Path) -> bytes:
    """A site's key pair as ssh-keygen makes it: the private half is written, the public one returned."""
    key = ec.generate_private_key(ec.SECP384R1())
    form = serialization.PrivateFormat.OpenSSH
    write_private(place, key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
    return key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)


def _issue_keys(trial: ConsortiumTrial) -> None:
    """What operators do by hand: a certificate, a key for each site, the roster, the pin of the app."""
    temporary_certificate(trial.out / "keys")
    mark = app_fingerprint(trial.out / "app")
    for site, file in trial.sites.items():
        public = make_key(trial.key_of(site))
        with np.load(file.parent / "data.npz") as arrays:
            samples = len(arrays["labels"])
        add_entry(trial.roster, RosterEntry(site, fingerprint(public), samples))
        pin(mark, file)


def try_consortium(
    trial: ConsortiumTrial, listen: Listener | None = None, say: Say = lambda words: None
) -> dict[str, Any]:
    """Start everything, run the study to its end, end everything; returns the summary."""
    with _running(trial, say):
        say(f"starting the SuperLink on {trial.address} and {len(trial.sites)} sites")
        link = _launched(trial, say)
        address, ca = (trial.address, None) if link is None else (link.address, Path(link.ca))
        folder = starting.prepare_run(trial.out / "app", trial.run, address, link)

        def heard(row: dict[str, Any]) -> None:
            trial.row = row
            if listen is not None:
                listen(row)

        def said(words: str) -> None:
            trial.check()
            say(words)

        app = trial.out / "app"
        return starting.start(app, folder, address, insecure=link is None, ca=ca, listen=heard, say=said, stop=False)


def _launched(trial: ConsortiumTrial, say: Say) -> SuperLinkAddress | None:
    """All programs on their way, and the coordinator's link to its SuperLink once that is known."""
    safe: tuple[str | Path, ...] = ("--insecure",)
    if trial.gateways:
        own = trial.certificate
        safe = ("--certificate", own, "--key", own.with_suffix(".key"), "--roster", trial.roster)
    trial.launch("superlink", "superlink", "--port", str(trial.port), "--home", trial.hub, *safe)
    for site, file in trial.sites.items():
        how: tuple[str | Path, ...] = ("--insecure",)
        if trial.gateways:
            how = ("--ca", trial.certificate, "--key", trial.key_of(site))
        trial.launch(site, "site", file, "--superlink", trial.address, *how)
    if not trial.gateways:
        return None
    status = StatusLine(say)
    while not (trial.hub / LINK_FILE).is_file():
        trial.check()
        status.now("waiting for the coordinator's gateway")
        time.sleep(POLL)
    return read_link(trial.hub)


@contextmanager
def _running(trial: ConsortiumTrial, say: Say) -> Iterator[None]:
    """End every program that the trial started, and whatever these started, by their process ids.

    All sites are asked to end at a time, and then waited for one after the other: each takes some seconds.
    """
    try:
        yield
    finally:
        with meanwhile("ending the programs of the trial", say):
            families = {member.name: family(member.process.pid) for member in trial.members}
            for member in trial.members:
                if member.name in trial.sites and member.process.poll() is None:
                    member.process.terminate()
            for member in reversed(trial.members):
                end_family(member.process, families[member.name])


def end_family(process: subprocess.Popen[bytes], known: Sequence[int] = ()) -> None:
    """A process that leads a session, its session, and descendants that have left it; `known`: some of these."""
    descendants = [*known, *(family(process.pid) if process.poll() is None else [])]
    end_session(process)
    for pid in descendants:
        for member in {pid, *session_members(pid)}:
            with suppress(ProcessLookupError):
                os.kill(member, signal.SIGKILL)


def family(pid: int, parents: Callable[[], dict[int, int]] | None = None) -> list[int]:
    """Descendants of a process, by their own records in /proc."""
    parent_of = (parents or _parents)()
    found: list[int] = []
    waiting = [pid]
    while waiting:
        above = waiting.pop()
        below = [child for child, parent in parent_of.items() if parent == above]
        found += below
        waiting += below
    return found


def _parents() -> dict[int, int]:
    table = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError, IndexError, ValueError):
                fields = (entry / "stat").read_text("utf-8", errors="replace").rpartition(")")[2].split()
                table[int(entry.name)] = int(fields[1])
    return table
