"""The consortium's table and page are made from released rows alone, and hostile names stay text."""

from __future__ import annotations

import csv
import io
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedsift.core.errors import DataError
from fedsift.formulas.small_counts import censored
from fedsift.label_audit.consortium import (
    consortium_csv,
    consortium_page,
    federation_confusion,
    release,
    write_consortium,
)
from fedsift.label_audit.results import consortium_rows
from fedsift.label_audit.site_audit import AuditFinding, WrongShare
from tests.label_audit.browser import MISSING, Browser
from tests.label_audit.made import HOSTILE, digits_audit, make_audit, multilabel_audit


def site(name: str, agreement: list[list[int]]) -> object:
    counts = np.array(agreement)
    n = int(counts.sum())
    audit = make_audit([0] * n, [[0.9, 0.1]] * n, classes=("cat", "dog"), site=name, agreement=counts)
    return release(replace(audit, rate=WrongShare(0.2, 0.1, 0.3), finding=AuditFinding(True, 0.05)))


def test_the_federations_confusion_by_hand() -> None:
    rows = [site("a", [[40, 12], [3, 30]]), site("b", [[50, 20], [15, 60]])]
    found = federation_confusion(rows)  # type: ignore[arg-type]
    assert found is not None
    # a's row of dogs has a cell of 3, which takes the 30 with it into the remainder
    assert found.shown.tolist() == [[90, 32], [15, 60]] and found.withheld.tolist() == [0, 33] and found.lumped == 0


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
        "wrong_labels": "", "false_alarm_rate": "", "review": "", "min_count": "10",
    }  # fmt: skip
    assert "below its minimum count" in consortium_page([few])


def test_no_sample_is_in_any_file(tmp_path: Path) -> None:
    audits = [digits_audit(200, seed=k, site=name)[0] for k, name in enumerate(("north", HOSTILE[0], HOSTILE[1]))]
    files = write_consortium(tmp_path, [release(audit) for audit in audits])
    text = "".join(file.read_text("utf-8") for file in files)
    assert "sample-0" not in text and "pictures/" not in text
    page = (tmp_path / "consortium.html").read_text("utf-8")
    assert "<script" not in page and "Evidence of wrong labels at 3 of 3 sites" in page and "default-src 'none'" in page
    assert len(json.loads((tmp_path / "consortium.json").read_text())) == 3
    names = {row["site"] for row in csv.DictReader((tmp_path / "consortium.csv").open())}
    assert f"'{HOSTILE[1]}" in names  # what looks like a formula is not one


def test_odd_consortia_have_a_page() -> None:
    assert "0 of 0 sites" in consortium_page([])
    assert "Share of wrong labels" in consortium_page([release(multilabel_audit())])


def told(table: list[list[int]], wrong: list[int], evidence: bool = True) -> dict[str, object]:
    """A site's line as the judging round records it; table: probable class by given class."""
    left = censored(np.array(table), 10)
    return {
        "wrong": [wrong], "evidence": evidence, "flagged": max(wrong[0], 0), "cells": [left.cells.tolist()],
        "remainders": [left.remainders.tolist()], "rest": [int(left.rest)],
    }  # fmt: skip


def test_what_is_given_and_what_is_probable_are_not_turned_round() -> None:
    """40 cats are called dogs, no dog is called a cat: given dog, probably cat."""
    line = told([[50, 40], [0, 60]], [40, 30, 50])
    [row] = consortium_rows({"north": line}, {"north": 150}, ("cat", "dog"), False, "made", 10)
    assert row.agreement.cells == ((50, 0), (40, 60))
    page = consortium_page([row])
    assert "<td><bdi>dog</bdi></td><td><bdi>cat</bdi></td>" in page
    assert "<td><bdi>cat</bdi></td><td><bdi>dog</bdi></td>" not in page


def test_missing_findings_are_no_findings_too_many() -> None:
    """One class of several: 40 samples have it and are not marked, 20 are marked and have it not."""
    line = told([[50, 20], [40, 60]], [60, 50, 70])
    [row] = consortium_rows({"north": line}, {"north": 170}, ("mass",), True, "made", 10)
    assert row.agreement.cells == ((50, 40, 20, 60),)


def test_withheld_is_not_none_wrong() -> None:
    """A site of one sample tells nothing; one with few wrong labels tells an interval and no number."""
    lines = {"lone": told([[1, 0], [0, 0]], [-1, 0, -1], False), "few": told([[50, 5], [0, 45]], [-1, 0, 15])}
    lone, few = consortium_rows(lines, {"lone": 1, "few": 100}, ("cat", "dog"), False, "made", 10)
    assert (lone.samples, lone.rate, lone.finding) == (None, None, None)
    assert few.rate is not None and math.isnan(few.rate.estimate) and (few.rate.low, few.rate.high) == (0.01, 0.15)
    first, second = csv.DictReader(io.StringIO(consortium_csv([lone, few])))
    assert first["rate"] == first["rate_high"] == first["samples"] == ""
    assert (second["rate"], second["rate_high"]) == ("", "0.150000")
    assert consortium_page([lone, few]).count("withheld") == 5


def test_a_class_that_is_not_annotated_does_not_thin_the_share() -> None:
    line = told([[50, 20], [40, 60]], [60, 50, 70])
    nothing = told([[0, 0], [0, 0]], [0, 0, 0])
    both = {key: [*line[key], *nothing[key]] for key in ("wrong", "cells", "remainders", "rest")}  # type: ignore[misc]
    [row] = consortium_rows({"a": {**line, **both}}, {"a": 170}, ("mass", "gap"), True, "made", 10)
    assert row.rate is not None and row.rate.estimate == 60 / 170


@pytest.mark.skipif(bool(MISSING), reason=MISSING or "Chromium is there")
def test_the_page_can_be_read_on_a_phone(tmp_path: Path) -> None:
    audit, _ = digits_audit(200)
    rows = [release(replace(audit, site=f"hospital-{k}")) for k in range(4)]
    (tmp_path / "consortium.html").write_text(consortium_page(rows), "utf-8")
    browser = Browser(tmp_path / "b", (390, 844))
    try:
        browser.open(tmp_path / "consortium.html")
        assert browser.run("return document.documentElement.scrollWidth") <= 390
        heights = browser.run("return [...document.querySelectorAll('tbody tr')].map(row => row.offsetHeight)")
        assert max(heights) <= 100, "an answer in a column of one word makes rows of a hand's height"
        letters = browser.run("return document.querySelector('svg text.name').getBoundingClientRect().height")
        assert letters >= 10
    finally:
        browser.close()
