"""Corrections in every format, the untouched original, undo to any line, and forgetting."""

from __future__ import annotations

import csv
import hashlib
import os
import stat
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fedsift.core.errors import ConfigError, DataError
from fedsift.core.files import write_private
from fedsift.data.sources.base import sources
from fedsift.data.sources.folder import FolderSource, SitesSource
from fedsift.data.sources.npz import Npz
from fedsift.label_audit.corrections import apply, decisions, forget, undo
from fedsift.label_audit.ledger import LabelLedger
from fedsift.label_audit.original_table import (
    PROVENANCE,
    LabelCorrection,
    corrected_path,
    origin_of,
    rendered,
)
from fedsift.label_audit.site_audit import LabelOrigin, SiteAudit
from fedsift.label_audit.site_files import SiteFolder
from fedsift.label_audit.verdicts import ReviewVerdict, notes
from fedsift.label_audit.writing import open_site, write_site
from tests.label_audit.made import digit_pictures, digits_audit, make_audit, multilabel_audit

CLASSES = ("cat", "cow", "dog")
IDS = ("a", "b", "c", "d")
GIVEN = [0, 2, 1, 0]
POSTERIOR = [[0.1, 0.0, 0.9], [0.7, 0.0, 0.3], [0.1, 0.8, 0.1], [0.2, 0.2, 0.6]]
"""a: cat, probably dog (.9 wrong); b: dog, probably cat (.7); c: cow is right; d (test): cat, probably dog (.8)."""


def audit_of(origin: LabelOrigin | None = None, **changes: Any) -> SiteAudit:
    split = ("train", "train", "train", "test")
    return make_audit(GIVEN, POSTERIOR, classes=CLASSES, ids=IDS, split=split, origin=origin, **changes)


def table_text(ending: str = "\n") -> str:
    lines = [
        "id,path,label,split,note",
        "a,a.png,cat,train,x",
        'b,b.png, dog ,train,"1,2"',
        "c,c.png,cow,train,",
        "d,d.png,cat,test,=1",
    ]
    return ending.join(lines) + ending


def pictures(folder: Path) -> None:
    for name in IDS:
        Image.new("RGB", (8, 8)).save(folder / f"{name}.png")


@pytest.fixture
def site(tmp_path: Path) -> tuple[SiteFolder, SiteAudit, Path]:
    data = tmp_path / "data"
    data.mkdir()
    pictures(data)
    (data / "labels.csv").write_text(table_text())
    audit = audit_of(LabelOrigin("folder", str(data), table=str(data / "labels.csv")))
    return write_site(tmp_path / "out", audit), audit, data


def say(folder: SiteFolder, audit: SiteAudit, *verdicts: ReviewVerdict) -> None:
    LabelLedger(folder.ledger).append(notes(verdicts, audit, []), "ann")


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        return list(csv.DictReader(file))


def test_by_probability_changes_training_labels_only(site: tuple[SiteFolder, SiteAudit, Path]) -> None:
    folder, audit, data = site
    before = digest(data / "labels.csv")
    done = apply(folder, audit, by="probability", threshold=0.75, who="me")
    assert done.table == data / "labels.corrected.csv" and done.changed == 1 and done.test_left_out == 1
    found = rows(data / "labels.corrected.csv")
    assert [row["label"] for row in found] == ["dog", " dog ", "cow", "cat"]
    assert found[0]["fedsift_given_label"] == "cat" and found[0]["fedsift_changed"] == "1"
    assert (
        found[0]["fedsift_decision"] == "probability above 0.75" and found[0]["fedsift_probability_wrong"] == "0.900000"
    )
    assert int(found[0]["fedsift_ledger_line"]) == done.line
    assert [row["note"] for row in found] == ["x", "1,2", "", "=1"]
    assert digest(data / "labels.csv") == before
    assert stat.S_IMODE((data / "labels.corrected.csv").stat().st_mode) == 0o600


def test_the_corrected_table_is_read_when_named_and_the_original_still_by_itself(
    site: tuple[SiteFolder, SiteAudit, Path], tmp_path: Path
) -> None:
    folder, audit, data = site
    (data / "labels.csv").rename(data / "mine.csv")
    origin = LabelOrigin("folder", str(data), table=str(data / "mine.csv"))
    done = apply(folder, audit, by="probability", who="me", origin=origin)
    plain, corrected = (FolderSource(data, table=table, size=8, cache=tmp_path) for table in (None, done.table))
    first, second = plain.read(), corrected.read()
    by_id = {str(name): second.classes[label] for name, label in zip(second.ids, second.labels)}
    assert by_id == {"a": "dog", "b": "cat", "c": "cow", "d": "cat"}
    assert {str(name): first.classes[label] for name, label in zip(first.ids, first.labels)}["a"] == "cat"


def test_test_samples_when_asked(site: tuple[SiteFolder, SiteAudit, Path]) -> None:
    folder, audit, data = site
    done = apply(folder, audit, by="probability", who="me", test=True)
    assert done.test_left_out == 0 and rows(data / "labels.corrected.csv")[3]["label"] == "dog"


def test_verdicts_outrank_the_model(site: tuple[SiteFolder, SiteAudit, Path]) -> None:
    folder, audit, data = site
    say(
        folder,
        audit,
        ReviewVerdict("a", "given", ("cat",), "ann"),
        ReviewVerdict("c", "other", ("dog",), "ann"),
    )
    done = apply(folder, audit, by="both", who="me")
    assert [row["label"] for row in rows(data / "labels.corrected.csv")] == ["cat", "cat", "dog", "cat"]
    assert done.changed == 2
    why = {row["id"]: row["fedsift_decision"] for row in rows(data / "labels.corrected.csv")}
    assert why["c"] == "verdict of ann: other"


def test_only_verdicts_when_asked_and_open_ones_change_nothing(
    site: tuple[SiteFolder, SiteAudit, Path],
) -> None:
    folder, audit, data = site
    say(
        folder,
        audit,
        ReviewVerdict("a", "proposal", ("dog",), "ann"),
        ReviewVerdict("b", "proposal", ("cat",), "ann"),
    )
    say(
        folder,
        audit,
        ReviewVerdict("b", "given", ("dog",), "bob"),
        ReviewVerdict("c", "cannot tell", (), "ann"),
    )
    done = apply(folder, audit, by="verdicts", who="me")
    assert done.changed == 1 and rows(data / "labels.corrected.csv")[0]["label"] == "dog"
    # readers differ on b, so the model may not decide it either
    assert "b" not in decisions(audit, _verdicts(folder), "both", 0.5, test=False)


def _verdicts(folder: SiteFolder) -> Sequence[ReviewVerdict]:
    from fedsift.label_audit.verdicts import from_entries

    return from_entries(LabelLedger(folder.ledger).entries())


def test_a_verdict_takes_back_what_probability_changed(site: tuple[SiteFolder, SiteAudit, Path]) -> None:
    folder, audit, data = site
    assert apply(folder, audit, by="probability", who="me").changed == 2
    say(folder, audit, ReviewVerdict("a", "given", ("cat",), "ann"))
    done = apply(folder, audit, by="verdicts", who="me")
    assert done.changed == 1 and rows(data / "labels.corrected.csv")[0]["label"] == "cat"
    assert apply(folder, audit, by="verdicts", who="me").new == 0  # nothing new to say


def test_undo_to_any_line_and_back(site: tuple[SiteFolder, SiteAudit, Path]) -> None:
    folder, audit, data = site
    start = len(LabelLedger(folder.ledger).entries())
    first = apply(folder, audit, by="probability", threshold=0.85, who="me")
    second = apply(folder, audit, by="probability", who="me")
    assert (first.changed, second.changed) == (1, 2)
    assert undo(folder, audit, first.line, who="me").changed == 1
    assert undo(folder, audit, start, who="me").changed == 0
    assert [row["label"] for row in rows(data / "labels.corrected.csv")] == ["cat", " dog ", "cow", "cat"]
    assert undo(folder, audit, second.line, who="me").changed == 2
    assert LabelLedger(folder.ledger).verify() == []
    with pytest.raises(ConfigError, match="cannot go back to line 99"):
        undo(folder, audit, 99, who="me")


def test_nothing_is_noted_that_cannot_be_done(site: tuple[SiteFolder, SiteAudit, Path]) -> None:
    folder, audit, data = site
    lines = len(LabelLedger(folder.ledger).entries())
    (data / "labels.csv").write_text("id,label\nb,dog\n")
    with pytest.raises(DataError, match="has no sample 'a'"):
        apply(folder, audit, by="probability", who="me")
    assert len(LabelLedger(folder.ledger).entries()) == lines
    with pytest.raises(DataError, match="never written to"):
        apply(folder, audit, by="probability", who="me", out=data / "labels.csv")
    with pytest.raises(DataError, match="does not know the table"):
        apply(folder, replace(audit, origin=None), by="probability", who="me")
    with pytest.raises(ConfigError, match="--by must be one of"):
        apply(folder, audit, by="magic", who="me")
    with pytest.raises(ConfigError, match="--above must lie"):
        apply(folder, audit, by="probability", threshold=50, who="me")


def test_the_ledger_says_nothing_of_a_table_that_could_not_be_written(
    site: tuple[SiteFolder, SiteAudit, Path],
) -> None:
    folder, audit, data = site
    start = len(LabelLedger(folder.ledger).entries())
    nowhere = data / "no such folder" / "mine.csv"
    for _ in range(2):
        with pytest.raises(FileNotFoundError) as missing:
            apply(folder, audit, by="probability", who="me", out=nowhere)
        assert missing.value.filename == str(nowhere)
    with pytest.raises(IsADirectoryError, match="out'"):
        apply(folder, audit, by="probability", who="me", out=data.parent / "out")
    assert len(LabelLedger(folder.ledger).entries()) == start
    done = apply(folder, audit, by="probability", who="me")
    assert (done.new, done.changed, done.line) == (2, 2, start + 2)
    before = (data / "labels.corrected.csv").read_bytes()
    with pytest.raises(FileNotFoundError):
        undo(folder, audit, 0, who="me", out=nowhere)
    assert len(LabelLedger(folder.ledger).entries()) == start + 2
    assert (data / "labels.corrected.csv").read_bytes() == before


def test_a_ledger_that_cannot_be_written_leaves_the_table(
    site: tuple[SiteFolder, SiteAudit, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, audit, data = site
    apply(folder, audit, by="probability", threshold=0.85, who="me")
    table, ledger = (data / "labels.corrected.csv").read_bytes(), folder.ledger.read_bytes()

    def full(*_: Any) -> None:
        raise OSError("no space left")

    with monkeypatch.context() as disk:
        disk.setattr(LabelLedger, "_write_head", full)
        with pytest.raises(OSError, match="no space"):
            apply(folder, audit, by="probability", who="me")
    assert (data / "labels.corrected.csv").read_bytes() == table and folder.ledger.read_bytes() == ledger
    assert not list(data.glob("*.tmp")) and LabelLedger(folder.ledger).verify() == []
    assert apply(folder, audit, by="probability", who="me").changed == 2


def test_the_next_command_mends_what_a_crash_left_between_ledger_and_table(
    site: tuple[SiteFolder, SiteAudit, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, audit, data = site
    real = os.replace

    def crash(source: Path, target: Path) -> None:
        if target.name == "labels.corrected.csv":
            raise KeyboardInterrupt
        real(source, target)

    with monkeypatch.context() as machine:
        machine.setattr(os, "replace", crash)
        with pytest.raises(KeyboardInterrupt):
            apply(folder, audit, by="probability", who="me")
    assert not (data / "labels.corrected.csv").exists()
    done = apply(folder, audit, by="probability", who="me")
    assert (done.new, done.changed) == (0, 2)
    assert [row["label"] for row in rows(data / "labels.corrected.csv")] == ["dog", "cat", "cow", "cat"]


def corrected(origin: LabelOrigin, *changes: LabelCorrection, site: str = "A", **options: Any) -> Path:
    return write_private(*rendered(origin, site, CLASSES, {one.id: one for one in changes}, **options))


def change(name: str, *labels: str) -> LabelCorrection:
    return LabelCorrection(name, labels, "because", 0.9, 7)


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_line_ends_and_byte_order_mark_stay(tmp_path: Path, ending: str, mark: bytes) -> None:
    table = tmp_path / "labels.csv"
    table.write_bytes(mark + table_text(ending).encode())
    path = corrected(LabelOrigin("folder", str(tmp_path), table=str(table)))
    data = path.read_bytes()
    assert data.startswith(mark + b"id,path")
    assert data.count(ending.encode()) == 5 and (ending == "\r\n") == (b"\r\n" in data)
    assert [{k: v for k, v in row.items() if k not in PROVENANCE} for row in rows(path)] == rows(table)


def test_several_names_in_a_cell(tmp_path: Path) -> None:
    table = tmp_path / "l.csv"
    table.write_text("id,finding\na,cat|Hernia\nb,No Finding\nc,cow\n")
    origin = LabelOrigin("folder", str(tmp_path), table=str(table), label_column="finding", separator="|")
    path = corrected(origin, change("a", "dog"), change("b", "cat", "dog"), change("c"))
    assert [row["finding"] for row in rows(path)] == ["Hernia|dog", "cat|dog", "No Finding"]


def test_a_column_a_class(tmp_path: Path) -> None:
    table = tmp_path / "l.csv"
    table.write_text("id,cat,cow,dog\na,1,0,0\nb,0.0,1.0,0\n")
    path = corrected(
        LabelOrigin("folder", str(tmp_path), table=str(table), label_columns=CLASSES),
        change("b", "cat", "dog"),
    )
    after = rows(path)
    assert [after[1][name] for name in CLASSES] == ["1", "0", "1"]
    assert after[1]["fedsift_given_label"] == "cow" and after[0]["fedsift_changed"] == "0"


def test_a_folder_without_a_table_gets_one_that_does_not_hide_its_layout(tmp_path: Path) -> None:
    for name, label in (("a", "cat"), ("b", "dog")):
        (tmp_path / label).mkdir()
        Image.new("RGB", (8, 8)).save(tmp_path / label / f"{name}.png")
    origin = LabelOrigin("folder", str(tmp_path))
    assert corrected_path(origin) == tmp_path / "labels.corrected.csv"
    path = corrected(origin, change("cat/a.png", "dog"))
    assert [row["label"] for row in rows(path)] == ["dog", "dog"]
    assert FolderSource(tmp_path).table_path() is None


def test_names_of_sites_that_were_read_together(tmp_path: Path) -> None:
    table = tmp_path / "labels.csv"
    table.write_text(table_text())
    path = corrected(LabelOrigin("folder", str(tmp_path), table=str(table)), change("north/a", "cow"), site="north")
    assert rows(path)[0]["label"] == "cow"


def test_the_origin_is_known_from_the_source(tmp_path: Path) -> None:
    """A folder of sites, read, corrected and read again: only the corrected sample's label changes."""
    for site, classes in (("north", ("cat", "dog")), ("south", ("cow", "dog"))):
        (tmp_path / "data" / site).mkdir(parents=True)
        pictures(tmp_path / "data" / site)
        lines = [f"{name},{classes[k % 2]}" for k, name in enumerate(IDS)]
        (tmp_path / "data" / site / "own.csv").write_text("sample,dx\n" + "\n".join(lines) + "\n")
    source = SitesSource(tmp_path / "data", id_column="sample", label_column="dx", size=8, cache=tmp_path / "cache")
    before = source.read()
    origin = origin_of(source, "north")
    assert origin is not None and origin.table == str(tmp_path / "data" / "north" / "own.csv")
    path = corrected(origin, change("north/b", "cow"), site="north")
    assert path == tmp_path / "data" / "north" / "own.corrected.csv"
    again = source.read()  # the corrected table beside it is not taken for the original
    assert list(again.labels) == list(before.labels)
    (tmp_path / "data" / "north" / "own.csv").write_bytes(path.read_bytes())
    after = source.read()
    changed = [str(name) for name, a, b in zip(before.ids, before.labels, after.labels) if a != b]  # type: ignore[arg-type]
    assert changed == ["north/b"]


def test_origins_of_other_sources(tmp_path: Path) -> None:
    assert origin_of(Npz(tmp_path / "d.npz", labels="y"), "A") == LabelOrigin(
        "npz", str(tmp_path / "d.npz"), labels="y"
    )
    pictures(tmp_path)
    (tmp_path / "labels.csv").write_text("id,cat,dog\na,1,0\n")
    several = FolderSource(tmp_path, label_columns=("cat", "cow", "dog"))
    found = origin_of(several, "A")
    assert found is not None and found.label_columns == ("cat", "dog")
    assert origin_of(sources.get("digits")(), "A") is None


def test_tables_that_cannot_be_corrected(tmp_path: Path) -> None:
    table = tmp_path / "labels.csv"
    origin = LabelOrigin("folder", str(tmp_path), table=str(table))
    with pytest.raises(DataError, match="there is no table"):
        corrected(origin)
    table.write_text("id,label\na,cat\na,dog\n")
    with pytest.raises(DataError, match="two rows are called 'a'"):
        corrected(origin, change("a", "cow"))
    table.write_text("id,lable\na,cat\n")
    with pytest.raises(DataError, match="did you mean 'lable'"):
        corrected(origin, change("a", "cow"))
    table.write_text("id,label,fedsift_changed\na,cat,0\n")
    with pytest.raises(DataError, match="is a corrected table"):
        corrected(origin)
    table.write_text("id,label\na\n")
    with pytest.raises(DataError, match="line 2"):
        corrected(origin)
    with pytest.raises(DataError, match="'plugin' source"):
        corrected(LabelOrigin("plugin", "x"))


def test_arrays(tmp_path: Path) -> None:
    file = tmp_path / "d.npz"
    images = np.zeros((4, 8, 8), np.uint8)
    np.savez(file, images=images, labels=np.array(GIVEN), ids=np.array(IDS), classes=np.array(CLASSES))
    path = corrected(LabelOrigin("npz", str(file)), change("a", "dog"))
    assert path == tmp_path / "d.corrected.npz"
    with np.load(path) as arrays:
        assert list(arrays["labels"]) == [2, 2, 1, 0] and list(arrays["fedsift_given_label"]) == GIVEN
        assert list(arrays["fedsift_changed"]) == [True, False, False, False]
        assert arrays["fedsift_decision"][0] == "because" and arrays["fedsift_ledger_line"][0] == 7
    assert list(Npz(path).read().labels) == [2, 2, 1, 0]
    with np.load(file) as arrays:
        assert list(arrays["labels"]) == GIVEN
    with pytest.raises(DataError, match="has no class 'ox'"):
        corrected(LabelOrigin("npz", str(file)), change("a", "ox"))


def test_given_labels_beside_true_ones_are_the_ones_corrected(tmp_path: Path) -> None:
    file = tmp_path / "d.npz"
    np.savez(file, images=np.zeros((3, 8, 8), np.uint8), labels=np.array([0, 1, 2]), given=np.array([1, 1, 1]))
    path = corrected(LabelOrigin("npz", str(file)), change("0", "cat"))
    with np.load(path) as arrays:
        assert list(arrays["given"]) == [0, 1, 1] and list(arrays["labels"]) == [0, 1, 2]


def test_arrays_with_several_labels(tmp_path: Path) -> None:
    audit = multilabel_audit(6)
    file = tmp_path / "d.npz"
    np.savez(
        file,
        images=np.zeros((6, 8, 8), np.uint8),
        labels=audit.given,
        ids=np.array(audit.ids),
        classes=np.array(audit.classes),
    )
    folder = write_site(tmp_path, replace(audit, origin=LabelOrigin("npz", str(file))))
    _, stored = open_site(folder.path)
    done = apply(folder, stored, by="probability", who="me")
    assert done.table is not None
    with np.load(done.table) as arrays:
        above = audit.flagged & (audit.probability_wrong > 0.5)
        np.testing.assert_array_equal(arrays["labels"][above], audit.proposed[above])
        np.testing.assert_array_equal(arrays["labels"][~above], audit.given[~above])


# Forgetting


def every_byte_of(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


def test_a_forgotten_sample_is_nowhere(site: tuple[SiteFolder, SiteAudit, Path], tmp_path: Path) -> None:
    _, _, data = site
    audit, _ = digits_audit(60, origin=None)
    name = audit.ids[int(audit.worst_first()[0])]
    (data / "labels.csv").write_text(
        "id,label\n" + "".join(f"{i},{audit.names(audit.given, k)[0]}\n" for k, i in enumerate(audit.ids))
    )
    audit = replace(audit, site="forgetful", origin=LabelOrigin("folder", str(data), table=str(data / "labels.csv")))
    folder = write_site(tmp_path / "out", audit, digit_pictures(60))
    apply(folder, audit, by="probability", who="me")
    say(folder, audit, ReviewVerdict(name, "given", audit.names(audit.given, audit.row_of[name]), "ann"))
    thumbnails_before = folder.thumbnails.stat().st_size
    found, rest = forget(folder, audit, name, who="owner")
    assert name not in rest.ids and len(rest) == 59
    _, stored = open_site(folder.path)
    assert stored.fingerprint() == rest.fingerprint()
    assert name.encode() not in every_byte_of(folder.path)
    assert folder.thumbnails.stat().st_size < thumbnails_before
    assert name not in [row["id"] for row in rows(data / "labels.corrected.csv")]
    assert len(rows(data / "labels.corrected.csv")) == 59
    assert LabelLedger(folder.ledger).verify() == []
    assert found.models == (audit.evidence.model,) and found.ledger_lines == 3
    assert any("never touched" in words for words in found.remains)
    # neither a new correction nor a new audit brings it back, though the original still has it
    apply(folder, stored, by="probability", threshold=0.9, who="me")
    assert name not in [row["id"] for row in rows(data / "labels.corrected.csv")]
    write_site(tmp_path / "out", audit, digit_pictures(60))
    assert name not in open_site(folder.path)[1].ids
    with pytest.raises(DataError, match="has no sample"):
        forget(folder, stored, name, who="owner")


def test_arrays_hold_the_whole_decision(tmp_path: Path) -> None:
    file = tmp_path / "d.npz"
    np.savez(file, images=np.zeros((2, 8, 8), np.uint8), labels=np.array([0, 1]), ids=np.array(["a", "b"]))
    who = "verdict of anneliese.obermeier@pathology.example.org: proposal"
    long = LabelCorrection("b", ("cat",), who, 0.9, 7)
    with np.load(corrected(LabelOrigin("npz", str(file)), change("a", "dog"), long)) as arrays:
        assert arrays["fedsift_decision"].tolist() == ["because", who]


def test_forgetting_in_arrays(tmp_path: Path) -> None:
    file = tmp_path / "d.npz"
    np.savez(
        file,
        images=np.arange(4 * 64, dtype=np.uint8).reshape(4, 8, 8),
        labels=np.array(GIVEN),
        ids=np.array(IDS),
        classes=np.array(CLASSES),
    )
    path = corrected(LabelOrigin("npz", str(file)), change("a", "dog"), forgotten=["b"])
    with np.load(path) as arrays:
        assert list(arrays["ids"]) == ["a", "c", "d"] and arrays["images"].shape == (3, 8, 8)
        assert list(arrays["labels"]) == [2, 1, 0] and len(arrays["classes"]) == 3


def test_the_plan_shrinks_with_a_forgotten_sample(site: tuple[SiteFolder, SiteAudit, Path]) -> None:
    from fedsift.label_audit.review import read_plan

    folder, audit, _ = site
    before = read_plan(folder.plan)
    forget(folder, audit, "c", who="owner")
    after = read_plan(folder.plan)
    assert sum(after.sizes.values()) == sum(before.sizes.values()) - 1
    assert "c" not in after.arm_of() and after.fingerprint == open_site(folder.path)[1].fingerprint()


def test_sites_that_share_a_table_share_its_corrections(tmp_path: Path) -> None:
    """A table with a site column: what the second site corrects does not take the first one's corrections back."""
    table = tmp_path / "labels.csv"
    table.write_text("id,path,label,site\na,a.png,cat,north\nb,b.png,dog,south\n")
    origin = LabelOrigin("folder", str(tmp_path), table=str(table))
    folders = {}
    for name, sample, given, posterior in (("north", "a", 0, POSTERIOR[0]), ("south", "b", 2, POSTERIOR[1])):
        audit = make_audit([given], [posterior], classes=CLASSES, ids=(sample,), site=name, origin=origin)
        folders[name] = write_site(tmp_path / "out", audit), audit
    for name in ("north", "south"):
        done = apply(*folders[name], by="probability", threshold=0.5, who="me")
        assert done.changed == 1

    def labels() -> list[str]:
        with corrected_path(origin).open(newline="") as file:
            return [row["label"] for row in csv.DictReader(file)]

    assert labels() == ["dog", "cat"]
    undo(*folders["north"], 0, who="me")
    assert labels() == ["cat", "cat"]
    forget(*folders["south"], "b", who="me")
    assert labels() == ["cat"]
