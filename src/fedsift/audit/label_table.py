"""`labels.csv`: a row a sample, worst first, in cleanlab's column names; safe to open in a spreadsheet.

A cell that a spreadsheet would take for a formula gets an apostrophe in front; control characters, line breaks and
characters that turn the reading direction are written as `\\u{000a}`. `read_labels` undoes both exactly.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedsift.audit.site_audit import Issue, SiteAudit, joined
from fedsift.core.errors import DataError

COLUMNS = (
    "id",
    "path",
    "given_label",
    "predicted_label",
    "label_score",
    "is_label_issue",
    "probability_wrong",
    "proposed_label",
    "reason",
)
PER_CLASS = ("given", "probability_wrong", "proposed")
"""Multi-label tables have these columns for every class, e.g. `given:Effusion`."""

_FORMULA = tuple("=+-@\t\r\n")
_NEGATIVE_NUMBER = re.compile(r"-\d+(\.\d+)?")
_WRITTEN = re.compile(r"\\u\{([0-9a-f]{4,6})\}")
_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f"  # control characters
    "\u2028\u2029"  # line and paragraph separators
    "\u200e\u200f\u061c\u202a-\u202e\u2066-\u2069"  # what turns the reading direction
    "\ud800-\udfff]"  # halves of characters, which file names can hold and UTF-8 cannot
)


def neutral(text: str) -> str:
    """The text as a cell that no spreadsheet runs and no terminal obeys."""
    text = visible(text.replace("\\u{", "\\u{005c}u{"))
    return f"'{text}" if _looks_like_formula(text) else text


def visible(text: str) -> str:
    """Characters that control, break or turn a line, written out, so that no name looks like another."""
    return _UNSAFE.sub(lambda found: f"\\u{{{ord(found[0]):04x}}}", text)


def original(cell: str) -> str:
    """What `neutral` was given."""
    if cell.startswith("'") and _looks_like_formula(cell):
        cell = cell[1:]
    return _WRITTEN.sub(lambda found: chr(int(found[1], 16)), cell)


def _looks_like_formula(text: str) -> bool:
    # apostrophes in front are looked through, so that a text that has one of its own comes back with it
    bare = text.lstrip("'").lstrip(" ")
    return bare.startswith(_FORMULA) and not _NEGATIVE_NUMBER.fullmatch(text)


def labels_csv(audit: SiteAudit, rows: Iterable[int]) -> str:
    """The table of these samples, in this order."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    extra = [f"{part}:{name}" for name in audit.classes for part in PER_CLASS] if audit.multilabel else []
    writer.writerow([*COLUMNS, *(neutral(name) for name in extra)])
    score = audit.label_score
    for k in rows:
        cells: list[str] = [
            neutral(audit.ids[k]),
            neutral(audit.paths[k]),
            neutral(joined(audit.names(audit.given, k))),
            neutral(joined(audit.names(audit.predicted, k))),
            number(score[k]),
            str(bool(audit.flagged[k])),
            number(audit.probability_wrong[k]),
            neutral(joined(audit.names(audit.proposed, k))),
            neutral(audit.reason[k]),
        ]
        for c in range(len(audit.classes) if audit.multilabel else 0):
            cells += [str(audit.given[k, c]), number(audit.probability[k, c]), str(audit.proposed[k, c])]
        writer.writerow(cells)
    return text.getvalue()


def number(value: float) -> str:
    """Six decimals; nothing for NaN, which is "not judged"."""
    return "" if math.isnan(value) else f"{value:.6f}"


def of_split(audit: SiteAudit, *, test: bool) -> NDArray[np.int64]:
    """Row numbers of one side of the split, worst first."""
    order = audit.worst_first()
    wanted: NDArray[np.int64] = order[audit.is_test[order] == test]
    return wanted


def read_cells(path: Path) -> list[dict[str, str]]:
    """Rows of a table that fedsift wrote (or that a person filled in), every cell as it was meant."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            names = [original(name) for name in reader.fieldnames or ()]
            if len(names) == 1 and ";" in names[0]:  # as spreadsheets of many countries save it
                raise DataError(f"{path} looks semicolon-separated: save it with commas between the columns")
            if len(set(names)) != len(names):
                raise DataError(f"{path}: a column occurs twice: {', '.join(names)}")
            reader.fieldnames = names
            rows = list(reader)
    except FileNotFoundError:
        raise DataError(f"there is no table {path}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} is not a CSV file in UTF-8: {error}") from error
    for line, row in enumerate(rows, start=2):
        if None in row or None in row.values():
            raise DataError(f"{path}, row {line}: not as many values as there are columns")
    return [{key: original(value) for key, value in row.items()} for row in rows]


def read_labels(path: Path) -> list[Issue]:
    """`labels.csv` as records."""
    rows = read_cells(path)
    require(rows, COLUMNS, path)
    try:
        return [
            Issue(
                id=row["id"],
                path=row["path"],
                given_label=row["given_label"],
                predicted_label=row["predicted_label"],
                label_score=float(row["label_score"]),
                is_label_issue=row["is_label_issue"] == "True",
                probability_wrong=float(row["probability_wrong"]),
                proposed_label=row["proposed_label"],
                reason=row["reason"],
            )
            for row in rows
        ]
    except ValueError as error:
        raise DataError(f"{path}: {error}") from error


def require(rows: Sequence[dict[str, str]], columns: Sequence[str], path: Path) -> None:
    for name in columns:
        if rows and name not in rows[0]:
            raise DataError(f"{path} has no column '{name}': it has {', '.join(rows[0])}")
