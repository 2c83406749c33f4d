"""The consortium's table and page are made from released rows alone, and hostile names stay text."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedsift.audits import Finding, Rate, write_consortium
from fedsift.audits.consortium import consortium_csv, consortium_page, federation_confusion
from fedsift.audits.release import release
from fedsift.contract.errors import DataError
from tests.audits.made import HOSTILE, digits_audit, make_audit, multilabel_audit


def site(name: str, agreement: list[list[int]]) -> object:
    counts = np.array(agreement)
    n = int(counts.sum())
    audit = make_audit([0] * n, [[0.9, 0.1]] * n, classes=("cat", "dog"), site=name, agreement=counts)
    return release(replace(audit, rate=Rate(0.2, 0.1, 0.3), finding=Finding(True, 0.05)))


def test_the_federations_confusion_by_hand() -> None:
    rows = [site("a", [[40, 12], [3, 30]]), site("b", [[50, 20], [15, 60]])]
    found = federation_confusion(rows)  # type: ignore[arg-type]
    assert found is not None
    # a's row of dogs has a cell of 3, which takes the 30 with it into the remainder
    assert (
        found.told.tolist() == [[90, 32], [15, 60]]
        and found.withheld.tolist() == [0, 33]
        and found.lumped == 0
    )


def test_rows_that_do_not_fit_together() -> None:
    one, other = release(digits_audit(60)[0]), release(multilabel_audit())
    with pytest.raises(DataError, match="has other classes"):
        federation_confusion([one, other])
    assert federation_confusion([other]) is None and federation_confusion([]) is None


def test_withheld_cells_are_empty() -> None:
    few = release(make_audit([0, 1], [[0.9, 0.1], [0.1, 0.9]], classes=("a", "b"), site="tiny"))
    [row] = csv.DictReader(io.StringIO(consortium_csv([few])))
    assert row == {
        "site": "tiny", "samples": "", "flagged": "", "rate": "", "rate_low": "", "rate_high": "",
        "wrong_labels": "", "false_alarm_rate": "", "floor": "10",
    }  # fmt: skip
    assert "below its floor" in consortium_page([few])


def test_no_sample_is_in_any_file(tmp_path: Path) -> None:
    audits = [
        digits_audit(200, seed=k, site=name)[0] for k, name in enumerate(("north", HOSTILE[0], HOSTILE[1]))
    ]
    files = write_consortium(tmp_path, [release(audit) for audit in audits])
    text = "".join(file.read_text("utf-8") for file in files)
    assert "sample-0" not in text and "pictures/" not in text
    page = (tmp_path / "consortium.html").read_text("utf-8")
    assert "<script" not in page and "Wrong labels at 3 of 3 sites" in page and "default-src 'none'" in page
    assert len(json.loads((tmp_path / "consortium.json").read_text())) == 3
    names = {row["site"] for row in csv.DictReader((tmp_path / "consortium.csv").open())}
    assert f"'{HOSTILE[1]}" in names  # what looks like a formula is not one


def test_odd_consortia_have_a_page() -> None:
    assert "0 of 0 sites" in consortium_page([])
    assert "Share of wrong labels" in consortium_page([release(multilabel_audit())])
