"""Results as CSV: what is written is read again exactly, in order, and damage is named."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsift.benchmark.rows import flat, nested, read_rows, rows_of, rows_text, write_rows
from fedsift.core.errors import RunError

LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
VALUES = LEAVES | st.lists(LEAVES, max_size=3)


@given(st.lists(st.dictionaries(st.text(min_size=1), VALUES), max_size=4))
def test_any_values_come_back_exactly(rows: list[dict[str, Any]]) -> None:
    numbered = [{**row, "n": n} for n, row in enumerate(rows)]
    back = rows_of(rows_text(numbered, ("n",)), "here")
    assert back == numbered
    assert repr([sorted(row.items(), key=repr) for row in back]) == repr(
        [sorted(row.items(), key=repr) for row in numbered]
    )


def test_text_that_looks_like_a_number_stays_text() -> None:
    row = {"a": "1", "b": "null", "c": "", "d": "[1]", "e": "=1+1", "f": math.inf, "g": None, "h": "12e3", "i": " x "}
    [back] = rows_of(rows_text([row], ("a",)), "here")
    assert back == row
    assert "'=1+1" in rows_text([row], ("a",)), "no spreadsheet computes it"


def test_rows_are_sorted_and_a_new_one_is_a_new_line(tmp_path: Path) -> None:
    rows = [{"row": "b", "seed": 10, "x": 1.5}, {"row": "b", "seed": 9, "x": 0.1}, {"row": "a", "seed": 3}]
    write_rows(tmp_path / "one.csv", rows, ("row", "seed"))
    write_rows(tmp_path / "two.csv", [*rows, {"row": "a", "seed": 4, "x": 2}], ("row", "seed"))
    one, two = (set((tmp_path / name).read_text().splitlines()) for name in ("one.csv", "two.csv"))
    assert (tmp_path / "one.csv").read_text().splitlines() == ["row,seed,x", "a,3,", "b,9,0.1", "b,10,1.5"]
    assert two - one == {"a,4,2"} and one <= two
    assert b"\r" not in (tmp_path / "one.csv").read_bytes()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "mine.csv is empty"),
        ("a,b\n1,2\n3\n", "mine.csv, line 3: 1 cells, the header has 2"),
        ("a,a\n", "mine.csv, line 1: a column has no name"),
        ('a,b\n1,"2\n', "mine.csv, line 2: unexpected end of data"),
    ],
)
def test_damage_is_named_with_its_line(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "mine.csv").write_text(text)
    with pytest.raises(RunError, match=words):
        read_rows(tmp_path / "mine.csv")


def test_nested_tables_are_columns() -> None:
    tables = {"case": "x", "before": {"all": {"ap": 0.5}, "none": {}}, "left": [1, 2]}
    assert flat(tables) == {"case": "x", "before.all.ap": 0.5, "before.none": {}, "left": [1, 2]}
    assert nested(flat(tables)) == tables
    with pytest.raises(ValueError, match="full stop"):
        flat({"a.b": 1})
