"""A full table that departs from what its paper says of a comparison method fails here."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedsift.benchmark.cells import study_of
from fedsift.benchmark.table import find_table, table_names
from tests.data.test_papers import leaves

NOT_KEYS = ("where", "tables", "row", "columns", "silent")


def statements() -> Iterator[dict[str, Any]]:
    """Each statement of comparisons.toml with its place in the paper, its tables and its rows."""
    said = tomllib.loads(Path(__file__).with_name("comparisons.toml").read_text("utf-8"))
    for where, tables in said.items():
        for table, rows in tables.items():
            for row, entries in rows.items():
                for entry in entries if isinstance(entries, list) else [entries]:
                    yield {"where": where, "tables": table, "row": row, **entry}


SETTINGS = list(statements())


def printed(table: str, row: str) -> dict[str, tuple[float | None, float | None]]:
    """What a paper prints for a row, with its deviation, by column."""
    found = find_table(table)
    return {c.label: found.printed(found.row(row), c, found.figures[0]) for c in found.columns}


@pytest.mark.parametrize("number", [2, 3, 6, 7, 8, 9, 10, 11])
def test_feddpcont_prints_a_deviation_with_every_figure_but_clothing1m_s(number: int) -> None:
    for row in find_table(f"feddpcont-{number}").rows:
        for column, (figure, deviation) in printed(f"feddpcont-{number}", row.label).items():
            there = figure is not None and column != "Clothing1M"
            assert (deviation is not None) == there, f"{row.label}, {column}"


def test_what_feddpcont_s_paper_prints_in_several_tables_is_the_same() -> None:
    """Table 10's, 11's and 12's last rows are "the number we report in the main paper"."""
    noise = {f"{rate}{mark}": f"{kind} {rate}" for kind, mark in (("symmetric", ""), ("random", " (R)"))
             for rate in (0.2, 0.4, 0.6, 0.8)}  # fmt: skip
    people = {"Worst": "CIFAR-10N worst", "Random": "CIFAR-10N random", "Aggregate": "CIFAR-10N aggregate",
              "Fine": "CIFAR-100N fine", "Clothing1M": "Clothing1M"}  # fmt: skip
    named = printed("feddpcont-7", "FedDPCont")
    assert printed("feddpcont-3", "FedDPCont") == named
    for pictures, number in ((2, 10), (6, 11), (2, 12)):
        whole = printed(f"feddpcont-{pictures}", "FedDPCont")
        for column, found in printed(f"feddpcont-{number}", "main text").items():
            assert found == (whole[noise[column]] if column in noise else named[people[column]]), column
    for column, found in printed("feddpcont-8", "FedDPCont").items():
        pictures, _, rate = column.replace(" (R)", "").partition(" ")
        kind = "random" if "(R)" in column else "symmetric"
        table = {"CIFAR-10": "feddpcont-2", "CIFAR-100": "feddpcont-6"}[pictures]
        assert found == printed(table, "FedDPCont")[f"{kind} {rate}"], column


@pytest.mark.parametrize("entry", SETTINGS, ids=lambda entry: f"{entry['tables']} {entry['row']}")
def test_a_comparison_is_as_its_paper_says(entry: dict[str, Any]) -> None:
    expected = dict(leaves({key: value for key, value in entry.items() if key not in NOT_KEYS}))
    assert bool(expected) != entry.get("silent", False), "an entry has settings, or says that there are none"
    checked = 0
    for name in table_names():
        if re.fullmatch(entry["tables"], name) is None:
            continue
        table = find_table(name)
        rows = [each for each in table.rows if re.fullmatch(entry["row"], each.label)]
        for row, column in [(each, column) for each in rows for column in table.columns_of(each)]:
            if re.fullmatch(entry.get("columns", ".*"), column.label):
                resolved = dict(leaves(study_of(table, row, column, 1).to_table()))
                found = {key: resolved.get(key) for key in expected}
                assert found == expected, f"{name}, {row.label}, {column.label}: {entry['where']}"
                checked += 1
    assert checked, "no table has such a row and column"


def comparisons() -> list[tuple[str, str]]:
    """Rows of the papers' full tables that are another's method; a paper's own has no name or the paper's."""
    tables = [find_table(name) for name in table_names() if not name.endswith("-small")]
    return [
        (table.name, row.label)
        for table in tables
        for row in table.rows
        if table.paper and row.settings.get("method", {}).get("name", table.paper.lower()) != table.paper.lower()
    ]


@pytest.mark.parametrize(("name", "label"), comparisons())
def test_what_a_paper_says_of_each_comparison_is_written_down(name: str, label: str) -> None:
    entries = [e for e in SETTINGS if re.fullmatch(e["tables"], name) and re.fullmatch(e["row"], label)]
    table = find_table(name)
    for column in table.columns_of(table.row(label)):
        told = [e for e in entries if re.fullmatch(e.get("columns", ".*"), column.label)]
        assert told, (
            f"comparisons.toml says nothing of {label} in {name}, {column.label}; `silent = true` if the paper does"
        )
