"""Tables of text: CSV files as columns."""

from __future__ import annotations

import csv
import difflib
from collections.abc import Sequence
from pathlib import Path

from fedsift.contract.errors import DataError

Table = dict[str, list[str]]


def read_table(path: Path, delimiter: str = ",") -> Table:
    """Columns by name, values stripped of blanks; every row must have as many values as there are columns."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            lines = [line for line in csv.reader(file, delimiter=delimiter) if line]
    except FileNotFoundError:
        raise DataError(f"there is no table {path}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} is not a CSV file in UTF-8: {error}") from error
    if not lines:
        raise DataError(f"{path} is empty")
    names = [name.strip() for name in lines[0]]
    for number, line in enumerate(lines[1:], start=2):
        if len(line) != len(names):
            raise DataError(f"{path}, line {number}: {len(line)} values for {len(names)} columns")
    return {name: [line[k].strip() for line in lines[1:]] for k, name in enumerate(names)}


def column(table: Table, name: str, where: Path) -> list[str]:
    """A column that must be there; an error names the nearest one."""
    if name in table:
        return table[name]
    close = difflib.get_close_matches(name, list(table), n=1)
    hint = f"did you mean '{close[0]}'?" if close else f"it has {', '.join(table)}"
    raise DataError(f"{where} has no column '{name}': {hint}")


def write_table(path: Path, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(rows)
