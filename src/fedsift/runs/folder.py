"""`RunFolder`: a run on disk, with its study, a line a round, the last checkpoint, tables and the report.

Nothing in it is ever half written. The checkpoint is the commit point: lines and notebooks that a killed run wrote
after its last checkpoint are not part of it and are dropped on resume.

Every file has a checksum, and a changed byte is an error that names the file: the checkpoint and each line hold their
own, the checkpoint holds those of the notebooks, and `checksums.txt` those of the files that people read.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsift.core.errors import FedsiftError, RunError, Stopped
from fedsift.core.files import checksum, line_with_check, read_checked_line, safe_name, write_atomically
from fedsift.core.numbers import plain
from fedsift.core.process import LockHeld, acquire, is_locked
from fedsift.core.text import csv_text
from fedsift.runs.events import EVENTS, EventLog, is_cut

if TYPE_CHECKING:
    from filelock import BaseFileLock

CHECKPOINT = "checkpoint.bin"
CHECKSUMS = "checksums.txt"
"""A line for each content that a file was ever given, written before the file is: "checksum  name". It is only appended
to, so that no kill and no second process leaves a file without its line."""
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
    | {"flower.log", ".lock", WAITING, EVENTS, STOP, TRACK, TRACKED, CHECKSUMS}
)
"""All that a run may have written when it fails before its first round."""


class RunFolder:
    """Paths and safe writing; knows nothing of methods or metrics."""

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self._lock: BaseFileLock | None = None
        self._notebook_files: dict[str, str] = {}
        self._notebook_checksums: dict[str, str] = {}

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
        folder.verify()
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

    # Files ---------------------------------------------------------------------------------------------------------

    def write_bytes(self, name: str, data: bytes) -> Path:
        if name != WAITING:  # rewritten all the time, and nothing is made from it
            self._note_checksum(name, checksum(data))
        write_atomically(self.path / name, data)
        return self.path / name

    def read_bytes(self, name: str) -> bytes | None:
        """A file's content, None where there is no file; raises RunError when it is not what the run wrote."""
        try:
            data = (self.path / name).read_bytes()
        except FileNotFoundError:
            return None
        known = self._checksums().get(name)  # read after the file: its line was there before it
        if known is not None and checksum(data) not in known:
            raise damaged(self.path / name)
        return data

    def verify(self) -> None:
        """Read every file of the run; raises RunError for the first whose bytes are not those that the run wrote."""
        for name in self._checksums():
            self.read_bytes(name)
        self.rounds()
        if not self.checkpoint_file.is_file():
            return
        header, _ = read_checkpoint(self.checkpoint_file)
        for site, name in header.notebooks.items():
            if (self.path / name).is_file():  # else forgotten, or the run has gone on; what needs it says so
                self._notebook(header, site)

    def _note_checksum(self, name: str, value: str) -> None:
        known = self._checksums().get(name)
        if known is not None and value in known:
            return
        with (self.path / CHECKSUMS).open("a", encoding="utf-8") as file:
            file.write(f"\n{value}  {name}\n" if is_cut(self.path / CHECKSUMS) else f"{value}  {name}\n")

    def _checksums(self) -> dict[str, set[str]]:
        try:
            text = (self.path / CHECKSUMS).read_text("utf-8", errors="replace")
        except FileNotFoundError:
            return {}
        known: dict[str, set[str]] = {}
        for value, name in re.findall(r"^([0-9a-f]{32})  (\S.*)$", text, re.MULTILINE):
            known.setdefault(name, set()).add(value)
        return known

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
        data = self.read_bytes(name)
        return None if data is None else json.loads(data)

    # Rounds and checkpoints ----------------------------------------------------------------------------------------

    def append_round(self, row: Mapping[str, Any]) -> None:
        with self.rounds_file.open("a", encoding="utf-8") as file:
            file.write(line_with_check(plain(row)) + "\n")

    def rounds(self) -> list[dict[str, Any]]:
        return [row for _, row in self._round_lines()]

    def _round_lines(self) -> list[tuple[bytes, dict[str, Any]]]:
        """Lines with what they say. What a kill left behind the checkpoint's lines is no line."""
        header = self.checkpointed()  # before the lines, which come first
        try:
            lines = self.rounds_file.read_bytes().split(b"\n")[:-1]  # a kill may have cut the last one short
        except FileNotFoundError:
            return []
        rows = []
        for number, line in enumerate(lines, 1):
            try:
                rows.append((line + b"\n", read_checked_line(line)))
            except ValueError:
                if number == len(lines) and (header is None or number > header.rounds_done):
                    break
                raise damaged(self.rounds_file, f"line {number}") from None
        return rows

    def checkpoint(self, point: Checkpoint) -> None:
        """Write what changed, then the checkpoint that refers to it, then drop what nothing refers to any more.

        `point.notebooks` holds those that changed since the last checkpoint.
        """
        for site in sorted(point.notebooks):
            name = f"notebooks/{safe_name(site)}/{point.rounds_done}.safetensors"
            write_atomically(self.path / name, point.notebooks[site])
            self._notebook_files[site] = name
            self._notebook_checksums[site] = checksum(point.notebooks[site])
        files = dict(self._notebook_files)
        header = Header(point.rounds_done, files, dict(self._notebook_checksums), point.sites)
        write_atomically(self.checkpoint_file, written(header, point.state))
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
        lines = [line for line, _ in self._round_lines()][: header.rounds_done]
        if len(lines) < header.rounds_done:
            raise RunError(f"{self.rounds_file} has {len(lines)} lines, the checkpoint counts {header.rounds_done}")
        write_atomically(self.rounds_file, b"".join(lines))
        self._notebook_files, self._notebook_checksums = dict(header.notebooks), dict(header.checksums)
        notebooks = {site: self._notebook(header, site) for site in header.notebooks}
        return Checkpoint(header.rounds_done, state, header.sites, notebooks)

    def _notebook(self, header: Header, site: str) -> bytes:
        file = self.path / header.notebooks[site]
        try:
            data = file.read_bytes()
        except FileNotFoundError:
            raise RunError(f"{file} is missing") from None
        if checksum(data) != header.checksums.get(site):
            raise damaged(file)
        return data

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


def damaged(file: Path, where: str = "") -> RunError:
    """The error for a file that is not as the run wrote it."""
    what = f"{file}, {where}," if where else f"{file}"
    return RunError(f"{what} is damaged: its bytes are not those that the run wrote; restore it from a backup")


FORMAT = 2
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
    checksums: dict[str, str]
    """Site to the checksum of that file."""
    sites: list[dict[str, Any]]


def written(header: Header, state: bytes) -> bytes:
    line = {
        "format": FORMAT,
        "rounds_done": header.rounds_done,
        "notebooks": header.notebooks,
        "checksums": header.checksums,
        "sites": plain(header.sites),
        "bytes": len(state),
        "state": checksum(state),
    }
    return line_with_check(line).encode() + b"\n" + state


def read_checkpoint(file: Path) -> tuple[Header, bytes]:
    """Raises RunError on a file that `written` did not make, or that was cut short."""
    try:
        with file.open("rb") as data:
            line = data.readline(LONGEST_LINE)
            header, size, expected = _header(line)
            state = data.read()
    except OSError as error:
        raise RunError(f"{file} cannot be read: {error}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise RunError(f"{file} cannot be read: it is no checkpoint of this version ({error})") from error
    if len(state) != size:
        raise RunError(f"{file} cannot be read: it has {len(state)} of {size} bytes")
    if checksum(state) != expected:
        raise damaged(file)
    return header, state


def read_header(file: Path) -> Header | None:
    """The line alone; the bytes, which may be many, stay unread. None where there is no such line."""
    try:
        with file.open("rb") as data:
            return _header(data.readline(LONGEST_LINE))[0]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _header(line: bytes) -> tuple[Header, int, str]:
    """The header, and size and checksum of the bytes that follow it."""
    values = read_checked_line(line)
    if values["format"] != FORMAT:
        raise ValueError(f"format {values['format']}, not {FORMAT}")
    header = Header(
        int(values["rounds_done"]), dict(values["notebooks"]), dict(values["checksums"]), list(values["sites"])
    )
    return header, int(values["bytes"]), str(values["state"])
