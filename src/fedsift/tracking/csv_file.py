"""Figures as a CSV file: a line a round, a column a figure."""

from __future__ import annotations

import csv
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from fedsift.core.files import write_atomically
from fedsift.core.text import csv_text
from fedsift.tracking.base import Tracker, trackers

STEP = "round"


@trackers.register("csv")
@dataclass
class CsvFile(Tracker):
    """`metrics.csv` and `params.csv`, by default in the run's folder under `track/csv`."""

    summary: ClassVar[str] = "metrics.csv (a line a round) and params.csv; needs nothing"

    folder: Path | None = None
    """A folder elsewhere, which gets a folder for each run."""

    @property
    def place(self) -> Path:
        return self.run.folder if self.folder is None else self.folder / self.run.name

    def start(self, params: Mapping[str, Any]) -> None:
        self._file = self.place / "metrics.csv"
        self._columns, self._rows = _read(self._file)
        table = [{"setting": key, "value": value} for key, value in params.items()]
        write_atomically(self.place / "params.csv", _text(("setting", "value"), table))

    def metrics(self, values: Mapping[str, float], step: int) -> None:
        row = {STEP: step, **values}
        known = len(self._columns)
        self._columns = list(dict.fromkeys([*self._columns, *row]))
        self._rows.append(row)
        if len(self._columns) > known:  # the head changes with a new figure: the whole file is written again
            write_atomically(self._file, _text(self._columns, self._rows))
            return
        with self._file.open("ab") as file:
            file.write(_text(self._columns, [row], head=False))

    def artifact(self, path: Path) -> None:
        if self.folder is not None:
            shutil.copyfile(path, self.place / path.name)


def _read(file: Path) -> tuple[list[str], list[dict[str, Any]]]:
    if not file.is_file():
        return [], []
    with file.open(newline="", encoding="utf-8") as text:
        reader = csv.DictReader(text)
        rows: list[dict[str, Any]] = [
            {key: value for key, value in row.items() if key and value not in (None, "")} for row in reader
        ]
        return list(reader.fieldnames or ()), rows


def _text(columns: Sequence[str], rows: Sequence[Mapping[str, Any]], *, head: bool = True) -> bytes:
    lines = csv_text(columns, ([row.get(name, "") for name in columns] for row in rows))
    return (lines if head else lines.partition("\n")[2]).encode("utf-8")
