"""A standing consortium of real processes on this machine, whose programs can be killed and started again."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import tomli_w

from fedsift.deploy.app import write_app
from fedsift.deploy.coordinator.roster import NODES_FILE
from fedsift.deploy.coordinator.starting import LINK_FILE
from fedsift.deploy.site.consent import app_fingerprint, pin
from fedsift.deploy.site.site_file_head import read_head
from fedsift.deploy.trial import ConsortiumTrial, TrialProcess, end_family, family, prepare_trial
from fedsift.runs.folder import FEDERATION, WAITING, RunFolder
from fedsift.study.study import Study
from fedsift.transports.remote.notebooks import RUNS

LOOK = 0.004
TIMEOUT = 1200.0
"""Seconds for what takes a minute on a quiet machine."""
COORDINATOR = "flwr-serverapp"
WORKER = "fedsift.deploy.site.worker"


class NotSeen(Exception):
    """What a fault waits for did not come."""


def wait_until(condition: Callable[[], object], seconds: float, what: str, look: float = 0.05) -> None:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise NotSeen(f"waited {seconds:.0f} s for {what}")
        time.sleep(look)


def command_of(pid: int) -> str:
    """A process's command, and the name that it gave itself; nothing for one that has ended and still has a name."""
    place = Path(f"/proc/{pid}")
    try:
        command = (place / "cmdline").read_bytes().replace(b"\0", b" ")
        return (command + (place / "comm").read_bytes()).decode(errors="replace").strip() if command else ""
    except OSError:
        return ""


@dataclass
class Running:
    """A `fedsift flower start` on its way."""

    member: TrialProcess
    folder: RunFolder
    began: float = field(default_factory=time.time)

    @property
    def over(self) -> bool:
        return self.member.process.poll() is not None

    def waiting(self) -> dict[str, Any]:
        try:
            return dict(self.folder.read_json(WAITING) or {})
        except ValueError:
            return {}

    def _said_since(self) -> bool:
        """Whether the file that says who is awaited was written after this start."""
        try:
            return (self.folder.path / WAITING).stat().st_mtime >= self.began
        except OSError:
            return False

    @property
    def asking(self) -> int:
        """The round whose answers are awaited now; 0 for none, or what an earlier start awaited."""
        if not self._said_since():
            return 0
        found = re.match(r"round (\d+) \(.*answers to", str(self.waiting().get("what", "")))
        return int(found[1]) if found else 0

    def end(self, seconds: float = TIMEOUT) -> int:
        wait_until(lambda: self.over, seconds, f"the end of {self.folder.id}")
        return int(self.member.process.returncode)

    def finish(self, number: int, seconds: float = TIMEOUT) -> None:
        """Wait until so many rounds are done, or the run is over."""
        wait_until(lambda: self.over or len(self.folder.rounds()) >= number, seconds, f"round {number}", LOOK)

    def ask(self, number: int, seconds: float = TIMEOUT) -> None:
        """Wait until this round's answers are awaited, or the run is over."""
        wait_until(lambda: self.over or self.asking >= number, seconds, f"round {number} to be asked", LOOK)

    @property
    def words(self) -> str:
        text = self.member.log.read_text("utf-8", errors="replace") if self.member.log.is_file() else ""
        return re.sub(r"\x1b\[[0-9;]*m", "", text)


class Stand:
    """SuperLink, sites and whatever runs are started; everything ends with the block."""

    def __init__(self, folder: Path, study: Study) -> None:
        self.trial: ConsortiumTrial = prepare_trial(study, folder)
        self.members: dict[str, TrialProcess] = {}
        self.runs = 0
        self.references: dict[str, Any] = {}
        """Runs of this consortium that nothing disturbed, by method."""

    @property
    def sites(self) -> list[str]:
        return list(self.trial.sites)

    # Programs -------------------------------------------------------------------------------------------------------

    def start_superlink(self) -> None:
        own = self.trial.certificate
        safe = ("--certificate", own, "--key", own.with_suffix(".key"), "--roster", self.trial.roster)
        database = self.trial.out / "sites.db"
        place = ("--port", str(self.trial.port), "--home", self.trial.hub, "--database", database)
        self.members["superlink"] = self.trial.launch("superlink", "superlink", *place, *safe)
        wait_until(lambda: (self.trial.hub / LINK_FILE).is_file(), 120, "the coordinator's gateway")

    def start_site(self, site: str, *more: str | Path) -> TrialProcess:
        how = ("--ca", self.trial.certificate, "--key", self.trial.key_of(site))
        line = ("--superlink", self.trial.address, *how, *more)
        self.members[site] = self.trial.launch(site, "site", self.trial.sites[site], *line)
        return self.members[site]

    def open(self) -> None:
        self.start_superlink()
        for site in self.sites:
            self.start_site(site)
        wait_until(lambda: len(self.nodes()) >= len(self.sites), 240, "the sites' nodes")

    def nodes(self) -> dict[str, Any]:
        try:
            return dict(json.loads((self.trial.hub / NODES_FILE).read_text("utf-8")))
        except (OSError, ValueError):
            return {}

    def close(self) -> None:
        for member in reversed(self.trial.members):
            end_family(member.process)

    def log(self, name: str) -> str:
        file = self.trial.out / "logs" / f"{name}.log"
        text = file.read_text("utf-8", errors="replace") if file.is_file() else ""
        return re.sub(r"\x1b\[[0-9;]*m", "", text)

    def kill(self, name: str) -> None:
        """SIGKILL to a program and all it started, as when its machine loses power."""
        process = self.members[name].process
        for pid in [process.pid, *family(process.pid)]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()
        if name == "superlink":
            (self.trial.hub / LINK_FILE).unlink(missing_ok=True)  # so that the next start can be waited for

    def pids_of(self, name: str, program: str) -> list[int]:
        """Programs that another one started, by a word of their command or their name."""
        return [pid for pid in family(self.members[name].process.pid) if program in command_of(pid)]

    def kill_program(self, name: str, program: str) -> None:
        """SIGKILL to the program, and to what stands in for it."""
        wait_until(lambda: self.pids_of(name, program), 60, program)
        for pid in self.pids_of(name, program):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    # Apps and runs --------------------------------------------------------------------------------------------------

    def app(self, study: Study, name: str, pinned: bool = True, **federation: Any) -> Path:
        """The study as an app for these sites; `federation`: other words for whom the coordinator waits."""
        place = self.trial.out / "apps" / name
        if not place.is_dir():
            write_app(study, place)
            table = tomllib.loads(self.trial.roster.read_text("utf-8")) | federation
            (place / FEDERATION).write_text(tomli_w.dumps(table), "utf-8")
            if pinned:
                for file in self.trial.sites.values():
                    pin(app_fingerprint(place), file)
        return place

    def start(self, app: Path, name: str = "") -> Running:
        """`name`: a run folder that is gone on with; a new one otherwise."""
        self.runs += not name
        name = name or f"{app.name}-{self.runs}"
        folder = self.trial.out / "runs" / name
        place = ("--run-folder", folder, "--home", self.trial.hub)
        log = f"start-{name.replace('/', '-')}"
        return Running(self.trial.launch(log, "start", app, *place), RunFolder(folder))

    def stop_runs(self) -> None:
        """Ctrl-C for whatever run a fault has left on its way: it would be in the way of the next."""
        going = [each for each in self.trial.members if each.name.startswith("start-") and each.process.poll() is None]
        for member in going:
            member.process.send_signal(signal.SIGINT)
        for member in going:
            wait_until(lambda each=member: each.process.poll() is not None, 120, f"the end of {member.name}")

    # What a site does -----------------------------------------------------------------------------------------------

    def notes_of(self, site: str, run: Running) -> Path:
        """Where a site keeps what it noted in a run."""
        known = (run.folder.read_json("deployed.json") or {}).get("run", "")
        return read_head(self.trial.sites[site]).notebook / RUNS / str(known)

    def computes(self, site: str, run: Running) -> bool:
        """Whether the site is at work on a request: it holds its notes' lock for as long."""
        try:
            with (self.notes_of(site, run) / ".lock").open("r") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def work(self, site: str, run: Running, seconds: float = TIMEOUT) -> None:
        """Wait until the site is at work on a request, or the run is over."""
        wait_until(lambda: run.over or self.computes(site, run), seconds, f"{site} to compute", LOOK)


@contextmanager
def standing(folder: Path, study: Study) -> Iterator[Stand]:
    stand = Stand(folder, study)
    try:
        stand.open()
        yield stand
    except NotSeen:
        for file in sorted((stand.trial.out / "logs").glob("*.log")):
            print(f"== {file.name}\n{file.read_text('utf-8', errors='replace')[-1500:]}", file=sys.stderr)
        raise
    finally:
        stand.close()


CLOCKS = ("seconds", "warnings", "bytes_down", "bytes_up")


def model_of(folder: RunFolder) -> bytes:
    """The file of a run's last model; empty where sites keep theirs."""
    file = folder.path / "model.safetensors"
    return file.read_bytes() if file.is_file() else b""


def mark_of(folder: RunFolder) -> str:
    """A fingerprint of what a run came to: its model, and its rounds without their clocks."""
    found = sha256(model_of(folder))
    for row in folder.rounds():
        kept = {key: value for key, value in row.items() if key not in CLOCKS}
        found.update(json.dumps(kept, sort_keys=True).encode())
    return found.hexdigest()[:16]


def accuracy_of(folder: RunFolder) -> float | None:
    """In per cent: of the last round that was evaluated, if there is one; the middle, where no more is known."""
    ends = [(row.get("accuracy_low", row.get("accuracy")), row.get("accuracy_high", row.get("accuracy")))
            for row in folder.rounds()]  # fmt: skip
    known = [100 * (low + high) / 2 for low, high in ends if low is not None]
    return known[-1] if known else None
