"""The page on faults says what was seen, also where that is other than it should be."""

from __future__ import annotations

from benchmarks.faults.page import PAGE, page
from benchmarks.faults.row import ROWS, known


def test_the_faults_page_is_made_of_its_result_files() -> None:
    assert PAGE.read_text("utf-8") == page(), "run `python -m benchmarks.faults --page`"


def test_a_row_that_missed_its_expectation_is_shown_as_such() -> None:
    rows = known(ROWS)
    missed = [row for row in rows.values() if not row["passed"]]
    assert f"{len(rows) - len(missed)} of {len(rows)} rows are as expected" in " ".join(page().split())
    assert page().count("| **no** |") == len(missed)
