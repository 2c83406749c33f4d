"""`RunFolder`: a run on disk, with its study, a line a round, the last checkpoint, tables and the report.

Nothing in it is ever half written. The checkpoint is the commit point: lines and notebooks that a killed run wrote
after its last checkpoint are not part of it and are dropped on resume.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsift.core.errors import FedsiftError, RunError, Stopped
from fedsift.core.files import safe_name, write_atomically
from fedsift.core.numbers import plain
from fedsift.core.process import LockHeld, acquire, is_locked
from fedsift.core.text import csv_text
from fedsift.runs.events import EVENTS, EventLog

if TYPE_CHECKING:
    from filelock import BaseFileLock

CHECKPOINT = "checkpoint.bin"
FAILURE = "failure.json"
FEDERATION = "federation.toml"
"""In the folder of a deployed run: whom its coordinator waits for."""
DEPLOYED = "deployed.json"
"""In the folder of a deployed run: the random id that sites know it by, and where its roster stands."""
WAITING = "waiting.json"
"""In the folder of a run on Flower: whom its coordinator waits for, and since when."""
PLAN = "plan.json"
STOP = "stop"
"""A file by this name asks the run to stop at its next safe point; a page on another machine can write it too."""
SUMMARY = "summary.json"
TRACK = "track.toml"
"""Called with each finished round."""
TRACKED = "track"
"""The folder of the trackers' own things."""
BEFORE_THE_FIRST_ROUND = frozenset(
    {"study.toml", PLAN, FAILURE, "truth.csv", "rounds.jsonl", "notebooks", "sites", "roster.safetensors"}
    | {"flower.log", ".lock", WAITING, EVENTS, STOP, TRACK, TRACKED}
)
"""All that a run may have written when it fails before its first round."""


class RunFolder:
    """Paths and safe writing; knows nothing of methods or metrics."""

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self._lock: BaseFileLock | None = None
        self._notebook_files: dict[str, str] = {}

    @classmethod
    def create(cls, parent: Path, name: str) -> RunFolder:
        """A new folder `parent/name`, numbered on if that exists."""
        parent.mkdir(parents=True, exist_ok=True)
        for number in range(1, 10_000):
            path = parent / (name if number == 1 else f"{name}-{number}")
            try:
                path.mkdir()
            except FileExistsError:
                continue
            return cls(path)
        raise RunError(f"{parent} already holds thousands of runs called {name}")

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        folder = cls(path)
        if not folder.study_file.is_file():
            raise RunError(f"{path} is not a run folder (it has no study.toml)")
        return folder

    @property
    def id(self) -> str:
        return self.path.name

    @property
    def study_file(self) -> Path:
        return self.path / "study.toml"

    @property
    def rounds_file(self) -> Path:
        return self.path / "rounds.jsonl"

    @property
    def checkpoint_file(self) -> Path:
        return self.path / CHECKPOINT

    @property
    def finished(self) -> bool:
        return (self.path / SUMMARY).is_file()

    @property
    def deployed(self) -> bool:
        """Whether this is a run across real sites."""
        return (self.path / FEDERATION).is_file()

    def lock(self) -> None:
        """Refuse a second process on the same run; the lock goes with the process, however that ends."""
        try:
            self._lock = acquire(self.path / ".lock")
        except LockHeld:
            raise RunError(f"{self.path} is in use by another process") from None

    def unlock(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    @property
    def in_use(self) -> bool | None:
        """Whether a process has this run locked; None where that cannot be told."""
        return is_locked(self.path / ".lock")

    def events(self) -> EventLog:
        return EventLog(self.path)

    # Stopping ------------------------------------------------------------------------------------------------------

    def ask_to_stop(self) -> None:
        """Whatever process runs here stops at its next safe point."""
        (self.path / STOP).touch()

    @property
    def asked_to_stop(self) -> bool:
        return (self.path / STOP).exists()

    def check_stop(self) -> None:
        """A safe point: raises Stopped if the user asked for it."""
        if self.asked_to_stop:
            raise Stopped("stopped on request; nothing is lost, the run can be resumed")

    def write_bytes(self, name: str, data: bytes) -> Path:
        write_atomically(self.path / name, data)
        return self.path / name

    def write_text(self, name: str, text: str) -> Path:
        return self.write_bytes(name, text.encode("utf-8"))

    def write_json(self, name: str, value: Any) -> Path:
        return self.write_text(name, json.dumps(plain(value), indent=2) + "\n")

    def write_table(self, name: str, rows: Sequence[Mapping[str, Any]]) -> Path:
        """A CSV file with the union of the rows' columns, in the order in which they appear."""
        columns = list(dict.fromkeys(key for row in rows for key in row))
        return self.write_text(name, csv_text(columns, ([plain(row.get(key)) for key in columns] for row in rows)))

    def forget(self, name: str) -> None:
        (self.path / name).unlink(missing_ok=True)

    def read_json(self, name: str) -> Any:
        file = self.path / name
        return json.loads(file.read_text("utf-8")) if file.is_file() else None

    # Rounds and checkpoints ----------------------------------------------------------------------------------------

    def append_round(self, row: Mapping[str, Any]) -> None:
        with self.rounds_file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(plain(row)) + "\n")

    def rounds(self) -> list[dict[str, Any]]:
        if not self.rounds_file.is_file():
            return []
        rows = []
        for line in self.rounds_file.read_text("utf-8").splitlines():
            try:
                rows.append(json.loads(line))
            except json.JSONDecodeError:
                break  # the line that a kill cut short; the checkpoint does not count it
        return rows

    def checkpoint(self, point: Checkpoint) -> None:
        """Write what changed, then the checkpoint that refers to it, then drop what nothing refers to any more.

        `point.notebooks` holds those that changed since the last checkpoint.
        """
        for site in sorted(point.notebooks):
            name = f"notebooks/{safe_name(site)}/{point.rounds_done}.safetensors"
            self.write_bytes(name, point.notebooks[site])
            self._notebook_files[site] = name
        files = dict(self._notebook_files)
        self.write_bytes(CHECKPOINT, written(Header(point.rounds_done, files, point.sites), point.state))
        for site in point.notebooks:
            keep = files[site]
            for file in (self.path / keep).parent.iterdir():
                if f"notebooks/{file.parent.name}/{file.name}" != keep:
                    file.unlink()

    def restore(self) -> Checkpoint | None:
        """The last checkpoint with the notebooks of its moment; later lines and notebooks are dropped."""
        for leftover in self.path.glob("**/*.tmp"):
            if leftover.relative_to(self.path).parts[0] != TRACKED:  # trackers may be writing there
                leftover.unlink()
        if not self.checkpoint_file.is_file():
            self.rounds_file.unlink(missing_ok=True)
            shutil.rmtree(self.path / "notebooks", ignore_errors=True)
            return None
        header, state = read_checkpoint(self.checkpoint_file)
        rows = self.rounds()[: header.rounds_done]
        if len(rows) < header.rounds_done:
            raise RunError(f"{self.rounds_file} has {len(rows)} lines, the checkpoint counts {header.rounds_done}")
        self.write_text("rounds.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
        self._notebook_files = dict(header.notebooks)
        notebooks = {site: self._bytes(name) for site, name in header.notebooks.items()}
        return Checkpoint(header.rounds_done, state, header.sites, notebooks)

    def _bytes(self, name: str) -> bytes:
        try:
            return (self.path / name).read_bytes()
        except FileNotFoundError:
            raise RunError(f"{self.path / name} is missing") from None

    def checkpointed(self) -> Header | None:
        """What the last checkpoint says for all to read; None without one, or with a damaged one."""
        return read_header(self.checkpoint_file)

    # Failing -------------------------------------------------------------------------------------------------------

    def write_failure(self, error: FedsiftError) -> None:
        self.write_json(FAILURE, {"error": str(error), "exit_code": error.exit_code})

    def discard(self) -> None:
        """Remove a folder in which no round has begun, unless it holds other files."""
        if {entry.name for entry in self.path.iterdir()} <= BEFORE_THE_FIRST_ROUND:
            shutil.rmtree(self.path, ignore_errors=True)


# Checkpoints
# ------------------------------------------------------------------------------


FORMAT = 1
LONGEST_LINE = 100_000_000


@dataclass(frozen=True)
class Checkpoint:
    """What a run needs to go on as if it had never stopped."""

    rounds_done: int
    state: bytes
    """The engine's own, encoded."""
    sites: list[dict[str, Any]] = field(default_factory=list)
    """One line a site: what was recorded of it so far."""
    notebooks: dict[str, bytes] = field(default_factory=dict)
    """Encoded pages by site."""


@dataclass(frozen=True)
class Header:
    """A checkpoint's first line, which is plain JSON."""

    rounds_done: int
    notebooks: dict[str, str]
    """Site to the file that holds its notebook."""
    sites: list[dict[str, Any]]


def written(header: Header, state: bytes) -> bytes:
    line = {
        "format": FORMAT,
        "rounds_done": header.rounds_done,
        "notebooks": header.notebooks,
        "sites": plain(header.sites),
        "bytes": len(state),
    }
    return json.dumps(line).encode() + b"\n" + state


def read_checkpoint(file: Path) -> tuple[Header, bytes]:
    """Raises RunError on a file that `written` did not make, or that was cut short."""
    try:
        with file.open("rb") as data:
            header, size = _header(data.readline(LONGEST_LINE))
            state = data.read()
    except OSError as error:
        raise RunError(f"{file} cannot be read: {error}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise RunError(f"{file} cannot be read: it is no checkpoint of this version ({error})") from error
    if len(state) != size:
        raise RunError(f"{file} cannot be read: it has {len(state)} of {size} bytes")
    return header, state


def read_header(file: Path) -> Header | None:
    """The line alone; the bytes, which may be many, stay unread. None where there is no such line."""
    try:
        with file.open("rb") as data:
            return _header(data.readline(LONGEST_LINE))[0]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _header(line: bytes) -> tuple[Header, int]:
    values = json.loads(line)
    if values["format"] != FORMAT:
        raise ValueError(f"format {values['format']}, not {FORMAT}")
    return Header(int(values["rounds_done"]), dict(values["notebooks"]), list(values["sites"])), int(values["bytes"])
