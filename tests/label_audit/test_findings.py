"""The typed result: what it refuses, how it is stored, and the records that programs get."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsift.core.errors import DataError
from fedsift.label_audit.label_table import labels_csv
from fedsift.label_audit.site_audit import LabelOrigin, issues, load, to_bytes
from tests.label_audit.made import HOSTILE, digits_audit, make_audit, multilabel_audit


def small(**changes: Any) -> Any:
    made = make_audit([0, 1, 1], [[0.9, 0.1], [0.8, 0.2], [0.4, 0.6]], classes=("cat", "dog"))
    return replace(made, **changes)


@pytest.mark.parametrize(
    "audit",
    [
        small(),
        digits_audit(50, test=9)[0],
        multilabel_audit(),
        make_audit([], np.zeros((0, 2)), classes=("a", "b")),
    ],
)
def test_stored_and_read_again_is_the_same(audit: Any, tmp_path: Path) -> None:
    (tmp_path / "findings.npz").write_bytes(to_bytes(audit))
    again = load(tmp_path / "findings.npz")
    assert again.fingerprint() == audit.fingerprint()
    for name in (
        "ids",
        "paths",
        "reason",
        "split",
        "classes",
        "rate",
        "finding",
        "evidence",
        "origin",
        "site",
        "min_count",
    ):
        assert getattr(again, name) == getattr(audit, name)
    for name in (
        "given",
        "probability",
        "probability_wrong",
        "predicted",
        "proposed",
        "flagged",
        "agreement",
    ):
        np.testing.assert_array_equal(getattr(again, name), getattr(audit, name))


def test_odd_names_survive_storing(tmp_path: Path) -> None:
    names = ("a\x00", "\udcff.png", HOSTILE[0])
    audit = small(ids=names, origin=LabelOrigin("folder", "x", label_columns=("p", "q")))
    (tmp_path / "f.npz").write_bytes(to_bytes(audit))
    again = load(tmp_path / "f.npz")
    assert again.ids == names
    assert again.origin == audit.origin


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"ids": ("a", "b", "a")}, "two samples are called 'a'"),
        ({"split": ("train", "test", "val")}, "split 'val'"),
        ({"paths": ("a",)}, "paths has 1 entries for 3"),
        ({"given": np.array([0, 1, 2])}, "given must lie between 0 and 1"),
        ({"probability_wrong": np.array([0.1, np.nan, 0.2])}, "probability_wrong must lie between"),
        ({"probability_wrong": np.array([0.1, 1.2, 0.2])}, "probability_wrong must lie between"),
        ({"flagged": np.array([True])}, "flagged has shape"),
        ({"agreement": np.zeros((3, 3))}, "agreement has shape"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(DataError, match=words) as refused:
        small(**changes)
    assert "site 'A'" in str(refused.value)


def test_a_damaged_or_missing_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is missing"):
        load(tmp_path / "findings.npz")
    (tmp_path / "findings.npz").write_bytes(b"PK no zip")
    with pytest.raises(DataError, match="cannot be read as an audit"):
        load(tmp_path / "findings.npz")


def test_worst_first_and_cleanlabs_score() -> None:
    audit = small()  # probability wrong: .1, .8, .4
    assert list(audit.worst_first()) == [1, 2, 0]
    np.testing.assert_allclose(audit.label_score, [0.9, 0.2, 0.6])
    [one] = issues(audit)
    assert (one.id, one.given_label, one.predicted_label, one.proposed_label) == ("1", "dog", "cat", "cat")
    assert audit.issues == [one] and audit.issues.records()[0]["given_label"] == "dog"
    assert one.is_label_issue and one.label_score == pytest.approx(0.2)
    assert [issue.id for issue in issues(audit, only_flagged=False)] == ["1", "2", "0"]


def test_ties_are_ordered_by_id_whatever_the_order_of_samples() -> None:
    one = make_audit([0, 0, 0], [[0.3, 0.7]] * 3, classes=("a", "b"), ids=("c", "a", "b"))
    assert [one.ids[k] for k in one.worst_first()] == ["a", "b", "c"]


def test_test_samples_are_listed_apart() -> None:
    audit = small(split=("train", "test", "train"))
    assert issues(audit) == []
    assert [issue.id for issue in issues(audit, split="test")] == ["1"]
    assert len(issues(audit, split=None)) == 1


def test_without_leaves_the_others_as_they_are() -> None:
    audit, _ = digits_audit(30)
    rest = audit.without({"sample-0003", "sample-0007"})
    assert len(rest) == 28
    k = rest.row_of["sample-0020"]
    np.testing.assert_array_equal(rest.probability[k], audit.probability[20])
    assert rest.fingerprint() != audit.fingerprint()


def test_several_labels_have_several_names() -> None:
    audit = multilabel_audit()
    k = int(np.flatnonzero(audit.given.sum(axis=1) == 2)[0])
    assert len(audit.names(audit.given, k)) == 2
    empty = int(np.flatnonzero(audit.given.sum(axis=1) == 0)[0])
    assert audit.names(audit.given, empty) == ()


def test_entries_that_nobody_annotates_are_not_judged() -> None:
    audit = multilabel_audit()
    probability = audit.probability.copy()
    probability[:, 2] = np.nan
    again = replace(audit, probability=probability, notes=["Nodule is not annotated here"])
    assert again.notes == ("Nodule is not annotated here",)
    row = next(csv.DictReader(io.StringIO(labels_csv(again, [0]))))
    assert row["probability_wrong:Nodule"] == "" and row["probability_wrong:Mass"] != ""
    with pytest.raises(DataError, match="probability must lie"):
        small(probability=np.full((3, 2), np.nan))


def test_the_table_counts_what_is_left() -> None:
    """Counts are a-a 1, a-b 2, b-b 1; a sample goes from its likeliest cell, or from another where that has none."""
    posterior = [[0.9, 0.1], [0.2, 0.8], [0.3, 0.7], [0.1, 0.9]]
    audit = make_audit([0, 0, 0, 1], posterior, classes=("a", "b"))
    assert audit.without({"1"}).agreement.tolist() == [[1, 1], [0, 1]]
    assert audit.without({"0", "3"}).agreement.tolist() == [[0, 2], [0, 0]]
    emptied = replace(audit, agreement=np.array([[3, 0], [0, 1]]))  # as rounding may leave it
    assert emptied.without({"1", "2"}).agreement.tolist() == [[1, 0], [0, 1]]
    tested = replace(audit, split=("train", "test", "train", "train"))
    assert tested.without({"1"}).agreement.tolist() == audit.agreement.tolist()


def test_the_table_of_several_labels_counts_what_is_left() -> None:
    audit = multilabel_audit(6)
    rest = audit.without({audit.ids[0], audit.ids[4]})
    kept = [1, 2, 3, 5]
    wrong, one = audit.probability[kept] > 0.5, audit.given[kept] == 1
    cells = [~wrong & ~one, wrong & ~one, wrong & one, ~wrong & one]
    assert rest.agreement.tolist() == np.stack([cell.sum(0) for cell in cells], 1).tolist()
