"""`labels.csv`: a row a sample, worst first, in cleanlab's column names; safe to open in a spreadsheet.

`core.text` says how; `read_labels` gives back exactly what was written.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedsift.core.errors import DataError
from fedsift.core.text import csv_text, uncell
from fedsift.label_audit.site_audit import Issue, SiteAudit, joined

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


def labels_csv(audit: SiteAudit, rows: Iterable[int]) -> str:
    """The table of these samples, in this order."""
    extra = [f"{part}:{name}" for name in audit.classes for part in PER_CLASS] if audit.multilabel else []
    score = audit.label_score
    lines = []
    for k in rows:
        line: list[object] = [
            audit.ids[k],
            audit.paths[k],
            joined(audit.names(audit.given, k)),
            joined(audit.names(audit.predicted, k)),
            number(score[k]),
            bool(audit.flagged[k]),
            number(audit.probability_wrong[k]),
            joined(audit.names(audit.proposed, k)),
            audit.reason[k],
        ]
        for c in range(len(audit.classes) if audit.multilabel else 0):
            line += [audit.given[k, c], number(audit.probability[k, c]), audit.proposed[k, c]]
        lines.append(line)
    return csv_text([*COLUMNS, *extra], lines)


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
            names = [uncell(name) for name in reader.fieldnames or ()]
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
    return [{key: uncell(value) for key, value in row.items()} for row in rows]


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
