"""Finished runs, one small file each, found by what was computed and by which program. This module imports no torch."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedsift.core.errors import RunError
from fedsift.core.files import write_atomically
from fedsift.core.numbers import plain

CELLS = "cells"
RUNS = "runs"
TABLE, TIMES = "table.json", "times.json"
SHOWN = 5


@dataclass(frozen=True)
class RunRecord:
    """What is kept of one finished run."""

    key: str
    study_key: str
    version: str
    torch: str
    outcome: dict[str, Any]
    seconds: float = 0.0
    """Processor time of the process that finished it and of its workers, which other work on the machine changes
    little; no part of what is compared; 0 where it is not known."""
    study: dict[str, Any] = field(default_factory=dict)

    def line(self) -> dict[str, Any]:
        """All but the time, which differs each time."""
        return {
            "key": self.key,
            "study_key": self.study_key,
            "version": self.version,
            "torch": self.torch,
            "outcome": self.outcome,
        }

    def text(self) -> str:
        whole = {**self.line(), "seconds": self.seconds, "study": self.study}
        return json.dumps(plain(whole), sort_keys=True) + "\n"


def record_of(content: Any, where: object, seconds: float | None = None) -> RunRecord:
    """A record from JSON; a damaged one names its file."""
    try:
        return RunRecord(
            key=str(content["key"]),
            study_key=str(content["study_key"]),
            version=str(content["version"]),
            torch=str(content["torch"]),
            outcome=dict(content["outcome"]),
            seconds=float(content.get("seconds", 0.0) if seconds is None else seconds),
            study=dict(content.get("study", {})),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise RunError(f"{where} is no result of a run: {error!r}; remove it to compute it again") from None


class RunStore:
    """A folder of finished runs (`cells/KEY.json`) and of runs that were stopped (`runs/KEY`)."""

    def __init__(self, path: Path) -> None:
        self.path = Path(path)

    def prepare(self) -> None:
        """A folder of results, even of a shard to which no run belongs."""
        (self.path / CELLS).mkdir(parents=True, exist_ok=True)

    def read(self, key: str) -> RunRecord | None:
        file = self.path / CELLS / f"{key}.json"
        return _read(file) if file.is_file() else None

    def write(self, record: RunRecord) -> None:
        write_atomically(self.path / CELLS / f"{record.key}.json", record.text().encode())

    def run_folder(self, key: str) -> Path:
        """Where the run of a cell goes on after it was stopped."""
        return self.path / RUNS / key

    def __iter__(self) -> Iterator[RunRecord]:
        for file in sorted((self.path / CELLS).glob("*.json")):
            yield _read(file)

    def by_study(self) -> dict[str, list[RunRecord]]:
        """Every record by what was computed, whichever program computed it."""
        found: dict[str, list[RunRecord]] = {}
        for record in self:
            found.setdefault(record.study_key, []).append(record)
        return found


def _read(file: Path) -> RunRecord:
    try:
        return record_of(json.loads(file.read_text("utf-8")), file)
    except json.JSONDecodeError as error:
        raise RunError(f"{file} is damaged ({error}); remove it to compute it again") from None


def records_in(source: Path) -> Iterator[RunRecord]:
    """The records of a store's folder, or of a `table.json` with its times beside it."""
    if source.is_dir() and (source / CELLS).is_dir():
        yield from RunStore(source)
        return
    file = source / TABLE if source.is_dir() else source
    if not file.is_file():
        raise RunError(f"{source} is neither a folder of `fedsift bench` nor a table.json")
    times = _json(file.with_name(TIMES)) if file.with_name(TIMES).is_file() else {}
    for content in _json(file).get("cells", ()):
        yield record_of(content, file, times.get(content.get("key"), 0.0))


def placed_in(file: Path) -> Iterator[tuple[str, str, int, RunRecord]]:
    """The records of a `table.json` with the row, column and seed at which they stand there."""
    times = _json(file.with_name(TIMES)) if file.with_name(TIMES).is_file() else {}
    for content in _json(file).get("cells", ()):
        record = record_of(content, file, times.get(content.get("key"), 0.0))
        for row, column, seed in content.get("places", ()):
            yield str(row), str(column), int(seed), record


def _json(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text("utf-8"))
    except json.JSONDecodeError as error:
        raise RunError(f"{file} is damaged: {error}") from None
    if not isinstance(content, dict):
        raise RunError(f"{file} is no table of `fedsift bench`")
    return content


def merge(sources: Iterable[Path], into: RunStore, *, first: bool = False) -> int:
    """All records of the sources in one store; how many are new.

    The same run with two results is refused, and nothing is written, unless the `first` of them is to count.
    """
    union = {record.key: (record, into.path) for record in into}
    new: dict[str, RunRecord] = {}
    conflicts = []
    for source in sources:
        for record in records_in(Path(source)):
            known = union.get(record.key)
            if known is None:
                union[record.key], new[record.key] = (record, Path(source)), record
            elif plain(known[0].line()) != plain(record.line()):
                conflicts.append(f"{record.key} in {known[1]} and {source}: {_difference(known[0], record)}")
    if conflicts and not first:
        more = f", and {len(conflicts) - SHOWN} more" if len(conflicts) > SHOWN else ""
        raise RunError(
            f"{len(conflicts)} of the runs have two results ({'; '.join(conflicts[:SHOWN])}{more}): machines differ in "
            "rounding; keep one of them, or merge with --first"
        )
    for record in new.values():
        into.write(record)
    return len(new)


def _difference(one: RunRecord, other: RunRecord) -> str:
    """The first score in which two results of one run differ."""
    for name, parts in one.outcome.get("scores", {}).items():
        for part, value in parts.items():
            again = other.outcome.get("scores", {}).get(name, {}).get(part)
            if value != again:
                return f"{name}.{part} {value} and {again}"
    return "the scores agree, other figures do not"
