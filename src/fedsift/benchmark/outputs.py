"""The files of a table. `table.md` and `.tex` are the same bytes for the same runs; `table.csv`, which has a row a run,
and the page also tell how long the runs took."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fedsift.benchmark.page import page
from fedsift.benchmark.rows import rows_text
from fedsift.benchmark.store import COLUMNS, PLACE, TABLE, table_rows
from fedsift.benchmark.summary import Results
from fedsift.benchmark.text import latex, markdown
from fedsift.core.files import write_atomically


def write_table(results: Results, folder: Path) -> None:
    """All files of a table into its folder."""
    for name, text in (
        (TABLE, csv_of(results)),
        ("table.md", markdown(results)),
        ("table.tex", latex(results)),
        ("table.html", page(results)),
    ):
        write_atomically(folder / name, text.encode())


def csv_of(results: Results) -> str:
    """`table.csv`: a row a run, sorted by row, column and seed."""
    return rows_text(table_rows(results.table, _placed(results)), PLACE, COLUMNS)


def _placed(results: Results) -> Iterator[Any]:
    for record in results.records:
        for place in results.places[record.key]:
            yield *place, record


def data(results: Results) -> dict[str, Any]:
    """What a table says, as plain JSON: all but its single runs, and the time that they took."""
    table = results.table
    return {
        "table": table.name,
        "what": table.what,
        "paper": table.paper,
        "source": table.source,
        "twin": table.twin,
        "note": table.note,
        "seeds": list(table.seeds),
        "settings": list(table.settings),
        "rows": [row.label for row in table.rows],
        "columns": [column.label for column in table.columns],
        "versions": results.versions,
        "runs": {"there": results.cells_there, "wanted": results.cells_wanted},
        "entries": [asdict(entry) for entry in results.entries],
        "reference": table.compared_with,
        "comparisons": [asdict(found) for found in results.comparisons],
        "claims": [_claim(verdict) for verdict in results.verdicts],
        "standings": [asdict(found) for found in results.standings],
        "costs": [{key: value for key, value in asdict(cost).items() if key != "seconds"} for cost in results.costs],
        "notes": list(results.notes),
    }


def _claim(verdict: Any) -> dict[str, Any]:
    found: dict[str, Any] = asdict(verdict)
    return {"text": verdict.claim.text, "figure": verdict.figure, "verdict": verdict.verdict,
            "differences": found["differences"]}  # fmt: skip
