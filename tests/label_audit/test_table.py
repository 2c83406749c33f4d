"""labels.csv: columns, order, and cells that no spreadsheet runs."""

from __future__ import annotations

import csv
import io
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsift.core.errors import DataError
from fedsift.core.text import cell, uncell
from fedsift.label_audit import label_table as table
from tests.label_audit.made import HOSTILE, digits_audit, make_audit, multilabel_audit

ANY_TEXT = st.text(st.characters(codec=None), max_size=30)


@settings(deadline=None)
@given(ANY_TEXT | st.text("'=+-@ \\u{}0a\n\t", max_size=12))
def test_every_text_comes_back(text: str) -> None:
    assert uncell(cell(text)) == text


@settings(deadline=None)
@given(ANY_TEXT | st.text("'=+-@＝＋;\u00a0 \t\n1.", max_size=8))
def test_no_cell_is_a_formula_or_holds_a_control_character(text: str) -> None:
    shown = cell(text)
    if unicodedata.normalize("NFKC", shown.strip()).startswith(("=", "+", "-", "@")):
        float(shown)  # a plain number is harmless, and labels may be numbers
    assert not any(ord(c) < 32 or 127 <= ord(c) < 160 or 0xD800 <= ord(c) < 0xE000 for c in shown)
    shown.encode("utf-8")


def test_columns_order_and_values(tmp_path: Path) -> None:
    audit = make_audit(
        [0, 1], [[0.9, 0.1], [0.8, 0.2]], classes=("cat", "dog"), ids=("x", "y"), paths=("x.png", "y.png")
    )
    text = table.labels_csv(audit, table.of_split(audit, test=False))
    assert text.splitlines() == [
        "id,path,given_label,predicted_label,label_score,is_label_issue,probability_wrong,proposed_label,reason",
        "y,y.png,dog,cat,0.200000,True,0.800000,cat,model disagrees",
        "x,x.png,cat,cat,0.900000,False,0.100000,cat,",
    ]
    (tmp_path / "labels.csv").write_text(text)
    first, second = table.read_labels(tmp_path / "labels.csv")
    assert (first.id, first.is_label_issue, first.label_score) == ("y", True, 0.2)
    assert second.is_label_issue is False


def test_hostile_names_are_written_and_read(tmp_path: Path) -> None:
    n = len(HOSTILE)
    audit = make_audit([0] * n, [[0.2] + [0.8 / (n - 1)] * (n - 1)] * n, classes=HOSTILE, ids=HOSTILE, paths=HOSTILE)
    file = tmp_path / "labels.csv"
    file.write_text(table.labels_csv(audit, table.of_split(audit, test=False)), encoding="utf-8")
    assert len(file.read_text("utf-8").splitlines()) == n + 1  # no name breaks a line
    assert {issue.id for issue in table.read_labels(file)} == set(HOSTILE)
    assert {issue.given_label for issue in table.read_labels(file)} == {HOSTILE[0]}


def test_several_labels_have_columns_for_every_class() -> None:
    audit = multilabel_audit()
    rows = list(csv.DictReader(io.StringIO(table.labels_csv(audit, [5]))))
    assert rows[0]["given:Mass"] == str(audit.given[5, 1])
    assert rows[0]["probability_wrong:Nodule"] == f"{audit.probability[5, 2]:.6f}"
    assert rows[0]["proposed:Effusion"] == str(audit.proposed[5, 0])
    assert tuple(rows[0])[:9] == table.COLUMNS


def test_test_samples_have_a_table_of_their_own() -> None:
    audit, _ = digits_audit(40, test=10)
    train, test = (table.of_split(audit, test=side) for side in (False, True))
    assert len(train) == 30 and len(test) == 10
    assert not set(train) & set(test)


def test_a_table_that_is_none_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no table"):
        table.read_labels(tmp_path / "no.csv")
    (tmp_path / "a.csv").write_text("id,path\nx\n")
    with pytest.raises(DataError, match="row 2"):
        table.read_labels(tmp_path / "a.csv")
    (tmp_path / "b.csv").write_text("id,path\nx,y\n")
    with pytest.raises(DataError, match="no column 'given_label'"):
        table.read_labels(tmp_path / "b.csv")
    (tmp_path / "c.csv").write_bytes(b"id\n\xff\xfe\n")
    with pytest.raises(DataError, match="not a CSV"):
        table.read_labels(tmp_path / "c.csv")
