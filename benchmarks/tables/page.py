"""The page of results, from the tables' files alone: each paper's table in small, ours beside theirs, what holds."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from pathlib import Path

from fedsift.benches.claims import Verdict
from fedsift.benches.figures import words
from fedsift.benches.library import find_table, table_names
from fedsift.benches.store import TABLE, placed_in
from fedsift.benches.summary import Results, results_of
from fedsift.benches.text import bold, cells_of_row, note_lines, pair_words, pipes, title
from fedsift.runs.units import plural

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "results" / "papers.md"
WIDTH = 118
INTRO = """Every figure and every verdict on this page is written by `python -m benchmarks.tables` from the result
files in `benchmarks/tables`, and a test holds the page against them. A statement of a paper *holds*
where each difference has the stated sign and its 95 % interval (paired over seeds) leaves 0 out; it
*holds in the mean* where the sign is right everywhere and an interval is not clear of 0. Small tables
are not the papers' experiments: they ask whether the effect shows where two cores can look."""


def kept_results() -> Iterator[Results]:
    """The results of every table that is kept here, by name; labels are those of the table's file."""
    for name in table_names():
        file = HERE / name / TABLE
        if file.is_file():
            content = json.loads(file.read_text("utf-8"))
            table = find_table(name).changed(seeds=content["seeds"])
            places = {(row.label, column.label) for row in table.rows for column in table.columns_of(row)}
            placed = [
                item for item in placed_in(file) if (item[0], item[1]) in places and item[2] in table.seeds
            ]
            yield results_of(table, placed, table.runs)


def page() -> str:
    kept = list(kept_results())
    blocks = ["# The papers' tables, measured", filled(INTRO)]
    stated = [(results, verdict) for results in kept for verdict in results.verdicts]
    if stated:
        blocks += ["## What holds", holds(stated)]
    for results in kept:
        blocks += section(results)
    if not kept:
        blocks.append("No table is kept yet.")
    return "\n\n".join(blocks) + "\n"


def holds(stated: list[tuple[Results, Verdict]]) -> str:
    """One line a statement, with the difference that speaks most against it."""
    lines = []
    for results, verdict in stated:
        known = [d for d in verdict.differences if d.found is not None]
        weakest = min(known, key=lambda d: d.found.low if d.found else 0.0, default=None)
        shown = "" if weakest is None else pair_words(weakest, verdict.figure)
        lines.append([title(results), verdict.claim.text, verdict.verdict, shown])
    return pipes(["table", "statement", "verdict", "weakest difference, in points"], lines)


def section(results: Results) -> list[str]:
    table = results.table
    blocks = [f"## {title(results)}: {table.name}", filled(f"{table.what}. {' '.join(note_lines(results))}")]
    for figure in table.figures:
        head = [words(figure), *(column.label or "ours" for column in table.columns)]
        rows = [[row.label, *cells_of_row(results, row.label, figure, bold)] for row in table.rows]
        blocks.append(pipes(head, rows))
    if results.verdicts:
        blocks.append("\n".join(item(verdict) for verdict in results.verdicts))
    minutes = sum(record.seconds for record in results.records) / 60
    runs = plural(results.cells_there, "run")
    blocks.append(f"{runs} of {results.cells_wanted}, {minutes:.0f} minutes of computing in all.")
    return blocks


def item(verdict: Verdict) -> str:
    parts = "; ".join(pair_words(found, verdict.figure) for found in verdict.differences)
    text = f"- {verdict.claim.text}: **{verdict.verdict}**{f' ({parts})' if parts else ''}"
    return textwrap.fill(text, WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def filled(text: str) -> str:
    return textwrap.fill(" ".join(text.split()), WIDTH, break_long_words=False, break_on_hyphens=False)
