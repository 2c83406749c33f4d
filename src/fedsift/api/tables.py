"""Rows to a CSV file that a spreadsheet can open without running anything in it."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedsift.contract.errors import RunError

FORMULA = ("=", "+", "-", "@", "\t", "\r")


def write_csv(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    """One line a row; lists as JSON; text that a spreadsheet would take for a formula gets a quote in front."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([_cell(name) for name in columns])
    writer.writerows([_cell(row.get(name)) for name in columns] for row in rows)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.getvalue(), "utf-8")
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error.strerror or error}") from None
    return path


def _cell(value: Any) -> Any:
    if isinstance(value, list | tuple | dict):
        return json.dumps(value)
    if isinstance(value, str):
        return f"'{value}" if value.startswith(FORMULA) else value
    return value
