"""The page on faults says what was seen, also where that is other than it should be."""

from __future__ import annotations

from benchmarks.faults.page import GROUPS, of_group, page, states
from benchmarks.faults.row import ROWS, known


def test_a_row_that_missed_its_expectation_is_shown_as_such() -> None:
    rows = known(ROWS)
    missed = [row for row in rows.values() if not row["passed"]]
    assert f"{len(rows) - len(missed)} of {len(rows)} rows are as expected" in " ".join(page().split())
    assert page().count("| **no** |") == len(missed)


def test_every_row_stands_under_one_title() -> None:
    shown = [name for title in GROUPS for name in of_group(known(ROWS), title)]
    assert sorted(shown) == sorted(known(ROWS))


def test_rows_of_another_state_of_the_program_are_named() -> None:
    new, old = {"fault": "power", "source": "abc"}, {"fault": "a flood"}
    assert states([new, new]) == "All rows were seen with the program of commit abc."
    words = "All but 1 of 3 rows were seen with the program of commit abc. Of an earlier state: a flood."
    assert states([new, old, new]) == words
