"""The page on faults says what was seen, and nothing that was seen is other than it should be."""

from __future__ import annotations

from benchmarks.faults.page import PAGE, page
from benchmarks.faults.row import ROWS, known


def test_the_faults_page_is_made_of_its_result_files() -> None:
    assert PAGE.read_text("utf-8") == page(), "run `python -m benchmarks.faults --page`"


def test_no_fault_had_another_outcome_than_expected() -> None:
    rows = known(ROWS)
    assert rows
    assert {name: row["outcome"] for name, row in rows.items() if not row["passed"]} == {}
