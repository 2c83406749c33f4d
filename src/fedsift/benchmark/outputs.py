"""The files of a table. `table.json`, `.md`, `.tex` and `.csv` are the same bytes for the same runs; the page and
`times.json` also tell how long the runs took."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fedsift.benchmark.page import page
from fedsift.benchmark.store import TABLE, TIMES
from fedsift.benchmark.summary import Results
from fedsift.benchmark.text import latex, markdown, spreadsheet
from fedsift.core.files import write_atomically
from fedsift.core.numbers import plain


def write_table(results: Results, folder: Path) -> None:
    """All files of a table into its folder."""
    times = {record.key: record.seconds for record in results.records}
    for name, text in (
        (TABLE, table_text(results)),
        (TIMES, _json(times)),
        ("table.md", markdown(results)),
        ("table.tex", latex(results)),
        ("table.csv", spreadsheet(results)),
        ("table.html", page(results)),
    ):
        write_atomically(folder / name, text.encode())


def table_text(results: Results) -> str:
    """`table.json`."""
    return _json(data(results))


def data(results: Results) -> dict[str, Any]:
    """Everything but the time, as plain JSON."""
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
        "cells": [{**record.line(), "places": results.places[record.key]} for record in results.records],
    }


def _claim(verdict: Any) -> dict[str, Any]:
    found: dict[str, Any] = asdict(verdict)
    return {"text": verdict.claim.text, "figure": verdict.figure, "verdict": verdict.verdict,
            "differences": found["differences"]}  # fmt: skip


def _json(value: Mapping[str, Any]) -> str:
    return json.dumps(plain(value), indent=1) + "\n"
