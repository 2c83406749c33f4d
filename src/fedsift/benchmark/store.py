"""Stores finished runs by study and program version: a file each in a working folder, a row each in a table's CSV.
Imports no torch."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from fedsift.benchmark.figures import (
    CONFIDENCE,
    CORRECTIONS,
    COUNTS,
    CURVE,
    DETECTION,
    PARTS,
    REFUSED,
    SCORES,
    SITE,
    figures_of,
    is_target,
)
from fedsift.benchmark.rows import read_rows
from fedsift.benchmark.table import Table
from fedsift.core.errors import RunError
from fedsift.core.files import write_atomically
from fedsift.core.numbers import plain

CELLS = "cells"
RUNS = "runs"
TABLE = "table.csv"
SHOWN = 5
PLACE = ("row", "column", "seed")
"""What a row of a table's CSV is sorted by."""
RECORD = ("version", "torch", "study_key", "seconds")
COLUMNS = (
    *RECORD,
    *COUNTS,
    REFUSED,
    *(f"{score}.{part}" for score in SCORES for part in (*PARTS, "rounds")),
    *(f"detection.{part}" for part in (*DETECTION, "noisy")),
    *(f"corrections.{part}" for part in CORRECTIONS),
)
"""The order of the columns of a table's CSV behind those of its place; what is not here comes last."""
FIGURES = "figures"


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def key_of(study_key: str, version: str) -> str:
    """The key of a run: what is computed, and by which program."""
    return digest(f"{study_key}\n{version}")


@dataclass(frozen=True)
class RunRecord:
    """What is kept of one finished run."""

    key: str
    study_key: str
    version: str
    torch: str
    outcome: dict[str, Any]
    """The full content of the run's summary; `figures` alone where the record comes from the CSV of a table."""
    seconds: float = 0.0
    """Processor time of the process that finished it and of its workers, which other work on the machine changes
    little; no part of what is compared; 0 where it is not known."""
    study: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def figures(self) -> dict[str, Any]:
        """What tables read, by the name of the figure."""
        return self.outcome[FIGURES] if self.only_figures else figures_of(self.outcome)

    @property
    def only_figures(self) -> bool:
        return FIGURES in self.outcome

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
    """The records of a store's folder, or of the CSV of a table."""
    if source.is_dir() and (source / CELLS).is_dir():
        yield from RunStore(source)
        return
    file = source / TABLE if source.is_dir() else source
    if not file.is_file():
        raise RunError(f"{source} is neither a folder of `fedsift bench` nor a table's CSV")
    for *_, record in placed_in(file):
        yield record


def table_rows(table: Table, placed: Iterable[tuple[str, str, int, RunRecord]]) -> Iterator[dict[str, Any]]:
    """A table's CSV: the runs with all their figures; single sites and points of curves only where the table's
    figures are of such."""
    of_sites = any(figure.partition(".")[0] in (SITE, "mean_site_accuracy") for figure in table.figures)
    of_curves = any(map(is_target, table.figures))
    for row, column, seed, record in placed:
        yield {
            **dict(zip(PLACE, (row, column, seed))),
            **{name: getattr(record, name) for name in RECORD},
            **{
                name: value
                for name, value in record.figures.items()
                if (of_sites or name.partition(".")[0] not in (SITE, CONFIDENCE)) and (of_curves or name != CURVE)
            },
        }


def placed_in(file: Path) -> Iterator[tuple[str, str, int, RunRecord]]:
    """The records of a table's CSV with the row, column and seed at which they stand there."""
    lines: dict[tuple[str, str, int], int] = {}
    for number, row in enumerate(read_rows(file), 2):
        where = f"{file}, line {number}"
        try:
            place = str(row["row"]), str(row.get("column", "")), int(row["seed"])
            study_key, version = str(row["study_key"]), str(row["version"])
            figures = {name: value for name, value in row.items() if name not in (*PLACE, *RECORD)}
            record = RunRecord(
                key=key_of(study_key, version),
                study_key=study_key,
                version=version,
                torch=str(row["torch"]),
                outcome={FIGURES: {**figures, "rounds": int(row["rounds"])}},
                seconds=float(row["seconds"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise RunError(f"{where} is no result of a run: {error!r}") from None
        if place in lines:
            raise RunError(f"{where} is the run of line {lines[place]} again: {place[0]}, {place[1]}, seed {place[2]}")
        lines[place] = number
        yield *place, record


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
            elif difference := _difference(known[0], record):
                conflicts.append(f"{record.key} in {known[1]} and {source}: {difference}")
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
    """The first figure in which two results of one run differ, or that other things do; empty if nothing does."""
    for name, value in one.figures.items():
        again = other.figures.get(name, value)
        if plain(value) != plain(again):
            return f"{name} {value} and {again}"
    if one.only_figures or other.only_figures or plain(one.line()) == plain(other.line()):
        return ""
    return "the scores agree, other figures do not"
