"""Results as CSV: a row a run or a measurement, sorted by its key columns, with exact values.

A cell is a JSON value (a number, `true`, `null`, a list), or else the text itself, made safe for spreadsheets; what a
row has not is an empty cell. This module imports no torch.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedsift.core.errors import RunError
from fedsift.core.files import write_atomically
from fedsift.core.text import cell, uncell

Row = Mapping[str, Any]


def rows_text(rows: Iterable[Row], key: Sequence[str], order: Sequence[str] = ()) -> str:
    """The rows as CSV, sorted by `key`: its columns come first, then those of `order` that any row has, then others."""
    ordered = sorted(rows, key=lambda row: _place(row, key))
    there = dict.fromkeys(name for row in ordered for name in row)
    columns = list(dict.fromkeys([*key, *(name for name in order if name in there), *there]))
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([cell(name) for name in columns])
    writer.writerows([written(row[name]) if name in row else "" for name in columns] for row in ordered)
    return out.getvalue()


def write_rows(file: Path, rows: Iterable[Row], key: Sequence[str], order: Sequence[str] = ()) -> None:
    """Write the rows into a file, whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, rows_text(rows, key, order).encode())


def read_rows(file: Path) -> list[dict[str, Any]]:
    """The rows of a file, each with the columns in which it has a value; a damaged line is named."""
    try:
        return rows_of(file.read_text("utf-8"), file)
    except UnicodeDecodeError as error:
        raise RunError(f"{file} is damaged: {error}") from None


def rows_of(text: str, where: object) -> list[dict[str, Any]]:
    """The rows of a text; `where` is named in errors."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    columns: list[str] | None = None
    rows: list[dict[str, Any]] = []
    try:
        for cells in reader:
            if columns is None:
                columns = [uncell(name) for name in cells]
                if len(set(columns)) < len(columns) or not all(columns):
                    raise RunError(f"{where}, line 1: a column has no name, or the name of another")
                continue
            if len(cells) != len(columns):
                raise RunError(f"{where}, line {reader.line_num}: {len(cells)} cells, the header has {len(columns)}")
            rows.append({name: read(text) for name, text in zip(columns, cells) if text})
    except csv.Error as error:
        raise RunError(f"{where}, line {reader.line_num}: {error}") from None
    if columns is None:
        raise RunError(f"{where} is empty: it has no header")
    return rows


def written(value: Any) -> str:
    """A value as the text of its cell; `read` gives it back exactly."""
    if not isinstance(value, str):
        return json.dumps(value)
    text = cell(value)
    return json.dumps(value) if not text or _is_json(text) else text


def read(text: str) -> Any:
    """The value of a cell that is not empty."""
    try:
        return json.loads(text)
    except ValueError:
        return uncell(text)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _place(row: Row, key: Sequence[str]) -> list[tuple[int, Any]]:
    """Where a row stands: numbers by size, text alphabetically, what is missing first."""
    values = [row.get(name) for name in key]
    return [
        (0, 0) if value is None else (1, value) if isinstance(value, int | float) else (2, str(value))
        for value in values
    ]


def flat(nested: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """A row of nested tables as a row of columns `a.b.c`; a table with nothing in it is a cell of its own."""
    found: dict[str, Any] = {}
    for name, value in nested.items():
        if "." in name:
            raise ValueError(f"'{name}' has a full stop: it cannot be a part of a column's name")
        if isinstance(value, Mapping) and value:
            found.update(flat(value, f"{above}{name}."))
        else:
            found[f"{above}{name}"] = value
    return found


def nested(row: Row) -> dict[str, Any]:
    """What `flat` was given."""
    found: dict[str, Any] = {}
    for name, value in row.items():
        *path, last = name.split(".")
        place = found
        for part in path:
            place = place.setdefault(part, {})
        place[last] = value
    return found
