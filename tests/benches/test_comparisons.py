"""A full table that departs from what its paper says of a comparison method fails here."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from fedsift.benches.cells import study_of
from fedsift.benches.library import find_table, table_names
from tests.data.test_papers import leaves

SETTINGS: list[dict[str, Any]] = tomllib.loads(
    Path(__file__).with_name("comparisons.toml").read_text("utf-8")
)["settings"]
NOT_KEYS = ("where", "tables", "row", "columns", "silent")


@pytest.mark.parametrize("entry", SETTINGS, ids=lambda entry: f"{entry['tables']} {entry['row']}")
def test_a_comparison_is_as_its_paper_says(entry: dict[str, Any]) -> None:
    expected = dict(leaves({key: value for key, value in entry.items() if key not in NOT_KEYS}))
    assert bool(expected) != entry.get("silent", False), "an entry has settings, or says that there are none"
    checked = 0
    for name in table_names():
        if re.fullmatch(entry["tables"], name) is None:
            continue
        table = find_table(name)
        row = table.row(entry["row"])
        for column in table.columns_of(row):
            if re.fullmatch(entry.get("columns", ".*"), column.label):
                resolved = dict(leaves(study_of(table, row, column, 1).to_table()))
                found = {key: resolved.get(key) for key in expected}
                assert found == expected, f"{name}, {column.label}: {entry['where']}"
                checked += 1
    assert checked, "no table has such a row and column"


def comparisons() -> list[tuple[str, str]]:
    """Rows of the papers' full tables that are another's method; a paper's own has no name or the paper's."""
    tables = [find_table(name) for name in table_names() if not name.endswith("-small")]
    return [
        (table.name, row.label)
        for table in tables
        for row in table.rows
        if table.paper
        and row.settings.get("method", {}).get("name", table.paper.lower()) != table.paper.lower()
    ]


@pytest.mark.parametrize(("name", "label"), comparisons())
def test_what_a_paper_says_of_each_comparison_is_written_down(name: str, label: str) -> None:
    entries = [e for e in SETTINGS if re.fullmatch(e["tables"], name) and e["row"] == label]
    table = find_table(name)
    for column in table.columns_of(table.row(label)):
        told = [e for e in entries if re.fullmatch(e.get("columns", ".*"), column.label)]
        assert told, (
            f"comparisons.toml says nothing of {label} in {name}, {column.label}; `silent = true` if the paper does"
        )
