"""`fedsift review` and `fedsift labels` on a site's folder: what people type, what they see, exit codes."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from fedsift.cli.main import app
from fedsift.core.errors import FedsiftError
from fedsift.label_audit.consortium import release, write_consortium
from fedsift.label_audit.ledger import DECISION, VERDICT, LabelLedger
from fedsift.label_audit.review import read_plan, standing
from fedsift.label_audit.site_audit import LabelOrigin, SiteAudit
from fedsift.label_audit.writing import open_site, write_site
from tests.cli.test_cli import fedsift
from tests.label_audit.made import digit_pictures, digits_audit


def say(*words: object, code: int = 0) -> str:
    done = CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "200", "NO_COLOR": "1"})
    if isinstance(done.exception, FedsiftError):
        assert done.exception.exit_code == code, done.exception
        return str(done.exception)
    assert done.exit_code == code, done.output
    return done.output


@pytest.fixture
def site(tmp_path: Path) -> tuple[Path, SiteAudit]:
    return made(tmp_path)


@pytest.fixture(scope="module")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("untouched"))[0]


def made(tmp_path: Path) -> tuple[Path, SiteAudit]:
    tmp_path.mkdir(exist_ok=True)
    audit, _ = digits_audit(400, wrong=0.3, test=40)
    table = tmp_path / "labels.csv"
    with table.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "label"])
        writer.writerows([name, audit.names(audit.given, k)[0]] for k, name in enumerate(audit.ids))
    audit = replace(audit, origin=LabelOrigin("folder", str(tmp_path), table=str(table)))
    return write_site(tmp_path / "out", audit, digit_pictures(400)).path, audit


def verdicts(audit: SiteAudit, folder: Path, reader: str, wrong: set[str], count: int | None = None) -> Path:
    """A filled queue: proposals are right but for the samples in `wrong`, the unflagged labels are right."""
    lines = list(csv.DictReader((folder / "review" / "queue.csv").open(newline="")))[:count]
    for line in lines:
        k = audit.row_of[line["id"]]
        proposed = audit.names(audit.proposed, k)[0]
        line.update(verdict="given" if line["id"] in wrong else "other", other_label=proposed, reader=reader)
    path = folder.parents[2] / f"{reader}.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(lines[0]))
        writer.writeheader()
        writer.writerows(lines)
    return path


def test_plan_export_import_status(site: tuple[Path, SiteAudit], tmp_path: Path) -> None:
    folder, audit = site
    out = json.loads(say("review", "plan", folder, "--worst", 10, "--flagged", 20, "--unflagged", 30, "--json"))
    assert {arm: entry["planned"] for arm, entry in out["arms"].items()} == {
        "worst": 10,
        "flagged": 20,
        "unflagged": 30,
    }
    files = json.loads(say("review", "export", folder, "--to", tmp_path / "mine", "--image-prefix", "/d/", "--json"))
    assert len(files["files"]) == 5
    tasks = json.loads((tmp_path / "mine" / "label-studio-tasks.json").read_text())
    assert len(tasks) == 60 and tasks[0]["data"]["image"].startswith("/d/pictures/")
    assert "60 verdicts, 60 of them new" in say("review", "import", folder, verdicts(audit, folder, "ann", set()))
    assert "0 of them new" in say("review", "import", folder, tmp_path / "ann.csv")
    found = json.loads(say("review", "status", folder, "--json"))
    assert [arm["reviewed"] for arm in found["arms"]] == [10, 20, 30]
    assert found["precision"]["share"] == 1.0 and found["missed"]["share"] == 0.0
    text = say("review", "status", folder, "--within", 10)
    assert "precision of the list: 100 %" in text and "next: " in text


def test_two_readers_and_an_adjudicator(site: tuple[Path, SiteAudit]) -> None:
    folder, audit = site
    say("review", "plan", folder, "--worst", 10, "--flagged", 0, "--unflagged", 0)
    queue = [line["id"] for line in csv.DictReader((folder / "review" / "queue.csv").open(newline=""))]
    say(
        "review",
        "import",
        folder,
        verdicts(audit, folder, "ann", set()),
        verdicts(audit, folder, "bob", {queue[0]}),
    )
    text = say("review", "status", folder)
    assert "ann and bob agree on 9 of 10" in text and f"to adjudicate: {queue[0]}" in text
    last = verdicts(audit, folder, "eve", {queue[0]}, count=1)
    say("review", "import", folder, last, "--adjudicate")
    found = json.loads(say("review", "status", folder, "--json"))
    assert found["to_adjudicate"] == [] and found["arms"][0]["wrong"] == 9


def rows(folder: Path) -> list[dict[str, str]]:
    return list(csv.DictReader((folder / "labels.csv").open(newline="")))


@pytest.mark.slow
def test_two_imports_at_a_time_take_each_verdict_once(tmp_path: Path) -> None:
    folder, audit = made(tmp_path)
    file = verdicts(audit, folder, "ann", set())
    words = [sys.executable, "-m", "fedsift", "review", "import", str(folder), str(file), "--json"]
    both = [subprocess.Popen(words, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [json.loads(one.communicate(timeout=120)[0])["new"] for one in both]
    taken = [entry.id for entry in LabelLedger(folder / "ledger.jsonl").entries() if entry.kind == VERDICT]
    assert sorted(said) == [0, len(taken)]
    assert len(taken) == len(set(taken)) > 60
    say("labels", "verify", folder)


def test_a_cut_ledger_without_its_head_does_not_verify(site: tuple[Path, SiteAudit]) -> None:
    folder, _ = site
    (folder / "ledger.jsonl").unlink()
    (folder / "ledger.head").unlink()
    assert "was noted earlier is not in the ledger" in say("labels", "verify", folder, code=5)


def test_recalibrated_twice_is_once_and_two_imports_are_one(tmp_path: Path) -> None:
    """Forty verdicts, recalibrated twice, and forty more: the same as eighty at once."""
    found = {}
    for name, imports in (("apart", (40, 80)), ("together", (80,))):
        folder, audit = made(tmp_path / name)
        for count in imports:
            queue = verdicts(audit, folder, "ann", set(audit.ids[:200]), count)
            say("review", "import", folder, queue)
            say("review", "recalibrate", folder)
            once = (folder / "findings.npz").read_bytes()
            say("review", "recalibrate", folder)
            assert (folder / "findings.npz").read_bytes() == once
        stored = open_site(folder)[1]
        assert (stored.as_made.probability_wrong == audit.probability_wrong).all()
        found[name] = (rows(folder), stored.probability.tobytes(), stored.probability_wrong.tobytes())
    assert found["apart"] == found["together"]
    say("review", "plan", folder, "--worst", 100)  # from the list as it was, so what was drawn stays drawn


def test_after_recalibrating_every_file_says_the_same(site: tuple[Path, SiteAudit]) -> None:
    folder, audit = site
    released = (folder / "release.json").read_bytes()
    assert "the list: the audit's own" in say("review", "status", folder)
    say("review", "import", folder, verdicts(audit, folder, "ann", set(audit.ids[:250])))
    done = json.loads(say("review", "recalibrate", folder, "--json"))
    table, summary = rows(folder), json.loads((folder / "summary.json").read_text())
    listed = sum(row["is_label_issue"] == "True" for row in table)
    wrong = sum(float(row["probability_wrong"]) for row in table)
    train = ~audit.is_test
    assert summary["flagged"] == listed < (audit.flagged & train).sum()
    assert done["listed_before"] == audit.flagged.sum()
    assert summary["rate"]["estimate"] == pytest.approx(wrong / 360, abs=0.5 / 360)
    assert 360 - sum(summary["agreement"][k][k] for k in range(10)) == pytest.approx(wrong, abs=5)
    page = (folder / "report.html").read_text()
    assert f"About {round(360 * summary['rate']['estimate'])} of 360 labels are probably wrong" in page
    found = json.loads(say("review", "status", folder, "--json"))
    assert found["recalibrated"] and found["listed_now"] == listed
    assert found["list_drawn_from"] == sum(arm["size"] for arm in found["arms"][:2])
    assert f"; recalibrated since, it has {listed}" in say("review", "status", folder)
    # the consortium has what it was told; a second release would tell by the difference what few verdicts changed
    assert (folder / "release.json").read_bytes() == released


def test_an_older_file_again_changes_nothing_and_says_so(site: tuple[Path, SiteAudit], tmp_path: Path) -> None:
    folder, audit = site
    for name, verdict, when in (
        ("old", "other,digit 1", "2026-01-01"),
        ("new", "cannot tell,", "2026-02-01"),
    ):
        line = f"{audit.ids[0]},{verdict},Cleo,{when}"
        (tmp_path / f"{name}.csv").write_text(f"id,verdict,other_label,reader,when\n{line}\n")
        assert say("review", "import", folder, tmp_path / f"{name}.csv") == "1 verdict, 1 of them new\n"
    assert say("review", "import", folder, tmp_path / "old.csv") == (
        "1 verdict, 0 of them new; 1 older than what the same reader said since, which counts\n"
    )


def test_apply_undo_verify_forget(site: tuple[Path, SiteAudit], tmp_path: Path) -> None:
    folder, audit = site
    before = (tmp_path / "labels.csv").read_bytes()
    sound = json.loads(say("labels", "verify", folder, "--json"))
    done = json.loads(say("labels", "apply", folder, "--by", "probability", "--above", 0.7, "--who", "me", "--json"))
    train = ~audit.is_test
    wanted = int(((audit.probability_wrong > 0.7) & audit.flagged & train).sum())
    assert done["changed"] == wanted > 10 and done["test_left_out"] > 0
    assert done["table"] == str(tmp_path / "labels.corrected.csv")
    text = say("labels", "apply", folder, "--by", "probability", "--above", 0.7)
    assert "0 new lines" in text and "changes what is measured" in text
    assert "0 labels differ" in say("labels", "undo", folder, "--to-line", sound["lines"])
    assert "none edited" in say("labels", "verify", folder, "--head", sound["head"])
    name = audit.ids[int(audit.worst_first()[0])]
    said = say("labels", "forget", folder, name)
    assert f"models that saw it: {audit.evidence.model}" in said and "not removed: the original data" in said
    assert name not in open_site(folder)[1].ids
    assert (tmp_path / "labels.csv").read_bytes() == before
    ledger = folder / "ledger.jsonl"
    ledger.write_text(ledger.read_text().replace('"decision": "listed"', '"decision": "LISTED"', 1))
    assert "was edited" in say("labels", "verify", folder, code=5)
    assert json.loads(say("labels", "verify", folder, "--json", code=5))["sound"] is False


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["review", "plan", "nowhere"], 3, "not a site's folder"),
        (["review", "status", "SITE", "--within", "80"], 2, "wanted precision"),
        (["review", "import", "SITE", "no.json"], 3, "there is no file"),
        (["labels", "apply", "SITE", "--by", "magic"], 2, "--by must be one of"),
        (["labels", "apply", "SITE", "--by", "probability", "--table", "no.csv"], 3, "there is no table"),
        (["labels", "undo", "SITE", "--to-line", "9999"], 2, "cannot go back"),
        (["labels", "forget", "SITE", "nobody"], 3, "has no sample 'nobody'"),
        (["labels", "verify", "SITE", "--head", "00ff"], 5, "was noted earlier"),
    ],
)
def test_errors_are_one_line(untouched: Path, words: list[str], code: int, message: str) -> None:
    said: Any = say(*(untouched if word == "SITE" else word for word in words), code=code)
    assert message in said and "\n" not in said


def test_as_a_program(untouched: Path, tmp_path: Path) -> None:
    done = fedsift("review", "status", str(untouched), cwd=tmp_path)
    assert "not known yet" in done.stdout
    failed = fedsift("labels", "verify", "nowhere", cwd=tmp_path, check=3)
    assert failed.stderr.startswith("error: nowhere is not a site's folder")


def read_all(audit: SiteAudit, folder: Path, reader: str, wrong: set[str], count: int) -> Path:
    """The first of the random order, read: the labels in `wrong` are called so, the others right."""
    path = folder.parents[2] / f"{reader}-{count}.csv"
    lines = ["id,verdict,other_label,reader"]
    for name in read_plan(folder / "review" / "plan.json").random[:count]:
        other = audit.classes[(int(audit.given[audit.row_of[name]]) + 1) % 10]
        lines.append(f"{name},{f'other,{other}' if name in wrong else 'given,'},{reader}")
    path.write_text("\n".join(lines) + "\n")
    return path


def beside(folder: Path, audit: SiteAudit) -> Path:
    """The consortium's files of the audit, with another site."""
    other, _ = digits_audit(200, seed=5, site="other")
    write_consortium(folder.parents[1], [release(audit), release(other)])
    return folder.parents[1]


@pytest.mark.parametrize("wrong", [True, False])
def test_a_review_that_is_decided_ends_and_stands_everywhere(tmp_path: Path, wrong: bool) -> None:
    folder, audit = made(tmp_path)
    out = beside(folder, audit)
    drawn = json.loads(say("review", "plan", folder, "--until-decided", "--json"))
    assert drawn["random"] == 360 == drawn["blind"] and drawn["answer"]["answer"] == "open"
    plan = read_plan(folder / "review" / "plan.json")
    called = set(plan.random[:10:3]) if wrong else set()
    first = say("review", "import", folder, read_all(audit, folder, "ann", called, 10))
    assert "open: read " in first and (" to convict" if wrong else " to clear") in first
    assert not [entry for entry in LabelLedger(folder / "ledger.jsonl").entries() if entry.kind == DECISION]
    if wrong:
        assert "to be read by another reader: " in say("review", "status", folder)
        words, count = "convicted by review", 10
        last = read_all(audit, folder, "bob", called, 10)
    else:
        words, count = "withdrawn by review", 40
        last = read_all(audit, folder, "ann", called, 40)
    done = json.loads(say("review", "import", folder, last, "--json"))
    assert done["answer"]["answer"] == words and done["answer"]["expected"] is None

    assert len(read_plan(folder / "review" / "plan.json").items) == count  # the rest need not be read
    [entry] = [entry for entry in LabelLedger(folder / "ledger.jsonl").entries() if entry.kind == DECISION]
    assert entry.body is not None and entry.body["answer"] == words
    found = json.loads((folder / "summary.json").read_text())["finding"]
    assert found["review"] == words and found["answer"] == ("wrong labels" if wrong else "no evidence")
    assert json.loads((folder / "release.json").read_text())["finding"]["review"] == words
    assert f"<h1>{words.capitalize()}: " in (folder / "report.html").read_text()
    rows = {row["site"]: row for row in csv.DictReader((out / "consortium.csv").open(newline=""))}
    assert rows["A"]["review"] == words and rows["A"]["wrong_labels"] == str(wrong) and rows["other"]["review"] == ""
    assert words in (out / "consortium.html").read_text()

    # it is entered once, stands when more is read, and the audit written again says the same
    say("review", "import", folder, read_all(audit, folder, "eve", set(), 5))
    assert words in say("review", "status", folder)
    assert write_site(out, audit).path == folder and open_site(folder)[1].finding.review == words
    say("labels", "forget", folder, plan.random[0])
    assert words in say("review", "status", folder)
    say("labels", "verify", folder)
    say("review", "recalibrate", folder)
    after = open_site(folder)[1]
    assert after.finding.review == words and after.finding.wrong_labels is wrong
    assert words in say("review", "plan", folder, "--until-decided")


def test_a_decision_is_about_the_labels_as_they_were(tmp_path: Path) -> None:
    folder, audit = made(tmp_path)
    say("review", "plan", folder, "--until-decided")
    say("review", "import", folder, read_all(audit, folder, "ann", set(), 40))
    entries = LabelLedger(folder / "ledger.jsonl").entries()
    changed = replace(audit, given=np.where(np.arange(400) == 3, (audit.given + 1) % 10, audit.given))
    assert standing(audit, entries) is not None and standing(changed, entries) is None
