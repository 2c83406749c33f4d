"""What a site gets: everything is there, private, safe by name, and written again without loss."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsift.core.errors import DataError
from fedsift.core.files import staged_private, write_private
from fedsift.label_audit.ledger import LabelLedger
from fedsift.label_audit.review import draw_plan, read_plan
from fedsift.label_audit.site_files import SiteFolder
from fedsift.label_audit.writing import array_thumbnails, open_site, stored_thumbnails, write_site
from tests.label_audit.made import (
    digit_pictures,
    digits_audit,
    hostile_audit,
    make_audit,
    multilabel_audit,
    odd_audits,
)

FILES = {
    "labels.csv",
    "report.html",
    "summary.json",
    "release.json",
    "findings.npz",
    "ledger.jsonl",
    "ledger.head",
    "review",
}


def test_everything_is_there_and_private(tmp_path: Path) -> None:
    audit, _ = digits_audit(120, test=20)
    folder = write_site(tmp_path, audit, digit_pictures(120))
    names = {path.name for path in folder.path.iterdir() if not path.name.startswith(".")}
    assert names == FILES | {"labels-test.csv", "thumbnails.zip"}
    for path in [folder.path.parent, folder.path, *folder.path.rglob("*")]:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
    assert not list(folder.path.rglob("*.tmp"))
    summary = json.loads(folder.summary.read_text())
    assert summary["samples"] == 100 and summary["test_samples"] == 20
    assert summary["finding"]["words"].startswith("evidence of wrong labels")
    flagged = [entry.body for entry in LabelLedger(folder.ledger).entries()]
    assert len(flagged) == int(audit.flagged.sum())
    assert set(flagged[0] or {}) == {
        "id",
        "given",
        "proposed",
        "probability",
        "evidence",
        "model",
        "decision",
    }


@pytest.mark.parametrize(
    "audit",
    [*odd_audits(), multilabel_audit(30), hostile_audit()],
    ids=["one", "one-flagged", "one-class", "none", "multilabel", "hostile"],
)
def test_odd_audits_are_written_and_opened(audit: Any, tmp_path: Path) -> None:
    folder = write_site(tmp_path, audit, lambda k: None)
    assert open_site(folder.path)[1].fingerprint() == audit.fingerprint()
    assert (folder.path / "labels.csv").is_file() and folder.report.stat().st_size > 5000
    assert not folder.test_labels.exists()


@pytest.mark.parametrize("name", ["../../etc", "a/b", "..", "", "x" * 300, "北", "CON", "a\x00b", "a\nb"])
def test_a_sites_name_never_leaves_the_folder(name: str, tmp_path: Path) -> None:
    audit = make_audit([0], [[0.9, 0.1]], classes=("a", "b"), site=name)
    folder = write_site(tmp_path / "out", audit)
    assert folder.path.parent == tmp_path / "out" / "sites"
    assert {path.name for path in tmp_path.iterdir()} == {"out"}
    assert open_site(folder.path)[1].site == name


def test_written_again_the_ledger_and_the_plan_stay(tmp_path: Path) -> None:
    audit, _ = digits_audit(100)
    folder = write_site(tmp_path, audit, plan=draw_plan(audit, worst=3, flagged=2, unflagged=4))
    lines, plan = len(LabelLedger(folder.ledger).entries()), read_plan(folder.plan)
    write_site(tmp_path, audit)
    assert len(LabelLedger(folder.ledger).entries()) == lines
    assert read_plan(folder.plan) == plan
    other, _ = digits_audit(100, seed=1)
    write_site(tmp_path, other)
    assert len(LabelLedger(folder.ledger).entries()) > lines
    assert read_plan(folder.plan).fingerprint == other.fingerprint()


def test_pictures_are_kept_for_a_longer_plan(tmp_path: Path) -> None:
    audit, _ = digits_audit(300)
    folder = write_site(tmp_path, audit, digit_pictures(300), plan=draw_plan(audit, 5, 5, 5))
    kept = stored_thumbnails(folder, audit)
    assert kept is not None
    longer = draw_plan(audit, 100, 100, 100)
    assert all(kept(audit.row_of[item.id]) for item in longer.items)
    assert kept(0) == digit_pictures(300)(0)
    folder.thumbnails.write_bytes(b"no zip")
    with pytest.raises(DataError, match="thumbnails.zip cannot be read"):
        stored_thumbnails(folder, audit)


def test_opening_what_is_no_audit(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="not a site's folder"):
        open_site(tmp_path)
    audit, _ = digits_audit(20)
    write_site(tmp_path, audit)
    assert open_site(tmp_path)[1].site == "A"  # one site only: no need to name it
    write_site(tmp_path, digits_audit(20, site="B")[0])
    with pytest.raises(DataError, match="holds 2 sites"):
        open_site(tmp_path)


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_private(tmp_path / "x", "old")

    def full(*_: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        write_private(path, "new")
    assert path.read_text() == "old" and [file.name for file in tmp_path.iterdir()] == ["x"]


def test_a_failed_write_names_the_file_that_was_asked_for(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"'[^']*nowhere/x'$"):
        write_private(tmp_path / "nowhere" / "x", "new")


def test_a_staged_file_takes_its_place_only_where_all_went_well(tmp_path: Path) -> None:
    path = write_private(tmp_path / "x", "old")
    with pytest.raises(ValueError, match="not done"), staged_private(path, b"new"):
        raise ValueError("not done")
    assert path.read_text() == "old" and [file.name for file in tmp_path.iterdir()] == ["x"]
    with staged_private(path, b"new"):
        assert path.read_text() == "old"
    assert path.read_text() == "new" and [file.name for file in tmp_path.iterdir()] == ["x"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_thumbnails_of_arrays() -> None:
    grey = array_thumbnails(np.zeros((2, 1, 28, 28), np.uint8))
    large = array_thumbnails(np.zeros((2, 3, 224, 224), np.uint8))
    assert grey is not None and (grey(0) or b"").startswith(b"\x89PNG")
    assert large is not None and (large(1) or b"").startswith(b"\xff\xd8\xff")
    assert array_thumbnails(np.zeros((2, 5), np.float32)) is None
    assert array_thumbnails(np.zeros((2, 4, 8, 8), np.uint8)) is None


def test_folders_have_one_home(tmp_path: Path) -> None:
    assert SiteFolder.of(tmp_path, "north").path == tmp_path / "sites" / "north"
