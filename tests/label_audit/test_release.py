"""What leaves a site: no count below the minimum count, not even by subtraction."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedsift.label_audit.consortium import release, withhold
from fedsift.label_audit.writing import write_site
from tests.label_audit.made import digits_audit, make_audit


def test_small_cells_become_a_remainder_by_hand() -> None:
    # row 0: 3 + 8 = 11 reaches the minimum count alone; row 1: 4 does not and takes the 12 with it; row 2 is too small
    # as a whole, and so is the site's remainder of 5, which takes the smallest row (1: 56) with it
    counts = np.array([[50, 3, 8], [4, 40, 12], [2, 2, 1]])
    found = withhold(counts, 10)
    assert found.cells == ((50, None, None), (None, None, None), (None, None, None))
    assert found.remainders == (11, None, None)
    assert found.remainder == 61


def test_large_counts_leave_as_they_are() -> None:
    found = withhold(np.array([[50, 30], [20, 10]]), 10)
    assert found.cells == ((50, 30), (20, 10))
    assert found.remainders == (0, 0) and found.remainder == 0


def test_zeros_are_counts_too() -> None:
    found = withhold(np.array([[60, 0], [25, 60]]), 10)
    assert found.cells == ((None, None), (25, 60))
    assert found.remainders == (60, 0)


def test_a_site_below_the_minimum_count_says_nothing() -> None:
    found = withhold(np.array([[2, 1], [0, 3]]), 10)
    assert found.remainder is None
    assert all(cell is None for row in found.cells for cell in row)


@settings(deadline=None)
@given(
    arrays(np.int64, st.tuples(st.integers(1, 5), st.integers(1, 5)), elements=st.integers(0, 30)),
    st.integers(1, 20),
)
def test_every_number_that_leaves_reaches_the_minimum_count(counts: np.ndarray, min_count: int) -> None:
    found = withhold(counts, min_count)
    numbers = [cell for row in found.cells for cell in row if cell is not None]
    lumps = [n for n in (*found.remainders, found.remainder) if n]
    assert all(number >= min_count for number in (*numbers, *lumps))
    if found.remainder is not None:  # nothing is lost: all cells and lumps add up to the whole
        assert sum(numbers) + sum(n or 0 for n in found.remainders) + found.remainder == counts.sum()
    for row, cells, lump in zip(counts, found.cells, found.remainders):
        if lump is not None:  # a withheld cell can be any value from 0 up to the lump, never told apart
            hidden = [value for value, cell in zip(row, cells) if cell is None]
            assert sum(hidden) == lump and (not hidden or lump >= min_count)
        for value, cell in zip(row, cells):
            assert cell in (None, value)


def test_the_row_holds_no_sample(tmp_path: Path) -> None:
    audit, _ = digits_audit(200)
    folder = write_site(tmp_path, audit)
    text = folder.release.read_text()
    row = json.loads(text)
    assert set(row) == {
        "site",
        "samples",
        "flagged",
        "rate",
        "finding",
        "classes",
        "agreement",
        "min_count",
        "method",
    }
    assert not any(name in text for name in audit.ids) and "pictures/" not in text


def test_counts_of_flagged_obey_the_minimum_count() -> None:
    audit, _ = digits_audit(200)
    flagged = int(audit.flagged.sum())
    assert release(audit).flagged == flagged
    assert release(audit, min_count=flagged + 1).flagged is None
    few = make_audit([0, 1, 1], [[0.9, 0.1], [0.8, 0.2], [0.4, 0.6]], classes=("cat", "dog"))
    row = release(few)
    assert row.samples is None and row.rate is None and row.finding is None
    assert release(few, min_count=1).samples == 3


def test_a_share_does_not_tell_a_count_below_the_minimum_count() -> None:
    """5 wrong of 100 is fewer than 10: the interval is told, to multiples of the minimum count, and not the share. It
    begins at one label, which "evidence of wrong labels" says as well."""
    given = [0] * 100
    audit = make_audit(given, [[0.2, 0.8]] * 5 + [[0.9, 0.1]] * 95, classes=("cat", "dog"))
    assert audit.rate.estimate == 0.05
    rate = release(audit).rate
    assert rate is not None and math.isnan(rate.estimate) and (rate.low, rate.high) == (0.01, 0.1)
    many = make_audit(given, [[0.2, 0.8]] * 40 + [[0.9, 0.1]] * 60, classes=("cat", "dog"))
    told = release(many).rate
    assert told is not None and (told.estimate, told.low, told.high) == (0.4, 0.37, 0.43)
