"""`fedsift audit` end to end: own data, going on, a finished run, samples that came later."""

from __future__ import annotations

import csv
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import fedsift
from fedsift.cli.main import app
from fedsift.core.errors import ConfigError, DataError, FedsiftError, RunError
from fedsift.label_audit.running import notebooks_of
from fedsift.label_audit.writing import open_site
from fedsift.runs.folder import RunFolder
from fedsift.study.study import Study, names_data

FEW = ["--folds", "3", "--rounds", "4", "--model", "linear"]


def own_data(path: Path, n: int = 180, seed: int = 0, wrong: float = 0.4) -> np.ndarray:
    """Rows of features at three sites; at the third a share of the labels is wrong. Returns which."""
    draw = np.random.default_rng(seed)
    true = draw.integers(0, 3, n)
    site = np.array(["north", "east", "west"])[np.arange(n) % 3]
    images = (3.0 * np.eye(3, 6)[true] + draw.normal(size=(n, 6))).astype(np.float32)
    corrupted = (draw.random(n) < wrong) & (site == "west")
    labels = np.where(corrupted, (true + draw.integers(1, 3, n)) % 3, true)
    ids = np.array([f"s{seed}-{k:04d}" for k in range(n)])
    np.savez(path, images=images, labels=labels, site=site, ids=ids, classes=np.array(["cat", "cow", "dog"]))
    return corrupted


def ask(*words: object) -> Any:
    done = CliRunner().invoke(app, ["audit", *map(str, words)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, np.ndarray, dict[str, Any]]:
    place = tmp_path_factory.mktemp("own")
    wrong = own_data(place / "data.npz")
    (place / "study.toml").write_text('[data]\nname = "npz"\npath = "data.npz"\n', "utf-8")
    done = ask(place / "study.toml", "--out", place / "out", *FEW, "--json")
    return place, wrong, json.loads(done.stdout)


def test_a_study_with_data_alone_is_enough(audited: tuple[Path, np.ndarray, dict[str, Any]]) -> None:
    place, wrong, found = audited
    assert "truth" not in found  # own labels are nobody's truth
    assert found["sites"]["west"]["wrong_labels"] is True
    assert found["sites"]["north"]["wrong_labels"] is found["sites"]["east"]["wrong_labels"] is False
    folder = place / "out" / "sites" / "west"
    with (folder / "labels.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 60
    assert [float(row["probability_wrong"]) for row in rows] == sorted(
        (float(row["probability_wrong"]) for row in rows), reverse=True
    )
    listed = {row["id"] for row in rows if row["is_label_issue"] == "True"}
    truly = {f"s0-{k:04d}" for k in np.flatnonzero(wrong)}
    assert len(listed & truly) >= 0.8 * len(truly)
    assert len(listed - truly) <= 3
    for name in (
        "report.html",
        "ledger.jsonl",
        "release.json",
        "review/queue.csv",
        "review/label-studio-tasks.json",
    ):
        assert (folder / name).is_file(), name
    assert (folder / "labels.csv").stat().st_mode & 0o077 == 0
    assert (place / "out" / "consortium.html").is_file()


def test_nothing_that_names_a_sample_is_outside_its_site_s_folder(
    audited: tuple[Path, np.ndarray, dict[str, Any]],
) -> None:
    place, _, _ = audited
    outside = [f for f in (place / "out").iterdir() if f.is_file()]
    assert outside
    for file in outside:
        assert b"s0-0" not in file.read_bytes(), file.name


def test_the_same_command_again_changes_nothing_and_another_study_is_refused(
    audited: tuple[Path, np.ndarray, dict[str, Any]],
) -> None:
    place, _, first = audited
    labels = place / "out" / "sites" / "west" / "labels.csv"
    before = labels.read_bytes()
    again = json.loads(ask(place / "study.toml", "--out", place / "out", *FEW, "--json").stdout)
    assert again == first
    assert labels.read_bytes() == before
    with pytest.raises(RunError, match="another study"):
        CliRunner().invoke(
            app,
            ["audit", str(place / "study.toml"), "seed=9", "--out", str(place / "out"), *FEW],
            catch_exceptions=False,
        )


def test_a_stopped_audit_goes_on_to_the_same_lists(
    audited: tuple[Path, np.ndarray, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedsift.label_audit.method import LabelAudit

    place, _, _ = audited
    real = LabelAudit.share

    def killed(self: LabelAudit, *parts: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(LabelAudit, "share", killed)
    done = CliRunner().invoke(app, ["audit", str(place / "study.toml"), "--out", str(tmp_path / "out"), *FEW])
    assert done.exit_code == 130
    assert not (tmp_path / "out" / "sites").exists()
    monkeypatch.setattr(LabelAudit, "share", real)
    ask(place / "study.toml", "--out", tmp_path / "out", *FEW)
    for site in ("north", "east", "west"):
        own, other = (base / "out" / "sites" / site / "labels.csv" for base in (tmp_path, place))
        assert own.read_bytes() == other.read_bytes()


def changed_data(path: Path, positions: slice) -> list[str]:
    """Give some samples of site north another class; returns their names."""
    with np.load(path) as stored:
        arrays = dict(stored)
    rows = np.flatnonzero(arrays["site"] == "north")[positions]
    arrays["labels"][rows] = (arrays["labels"][rows] + 1) % 3
    np.savez(path, **arrays)
    return [str(name) for name in arrays["ids"][rows]]


def labels_of(out: Path, site: str) -> dict[str, dict[str, str]]:
    with (out / "sites" / site / "labels.csv").open(encoding="utf-8", newline="") as file:
        return {row["id"]: row for row in csv.DictReader(file)}


def copied(audited: tuple[Path, np.ndarray, dict[str, Any]], to: Path) -> Path:
    """The audit, its data and its study in a folder that a test may change."""
    shutil.copytree(audited[0], to)
    run = RunFolder(to / "out" / "run")
    run.write_text("study.toml", run.study_file.read_text("utf-8").replace(str(audited[0]), str(to)))
    return to


def test_labels_that_changed_are_judged_anew_not_by_what_was_said_of_the_old_ones(
    audited: tuple[Path, np.ndarray, dict[str, Any]], tmp_path: Path
) -> None:
    place = copied(audited, tmp_path / "own")
    before = labels_of(place / "out", "north")
    corrupted = changed_data(place / "data.npz", slice(0, 12))
    ledger = (place / "out" / "sites" / "west" / "ledger.jsonl").read_text("utf-8")
    done = ask(place / "study.toml", "--out", place / "out", *FEW, "--json")
    [line] = [line for line in done.stderr.splitlines() if "anew" in line]
    assert line.startswith("site 'north' has other labels or samples")
    fresh = tmp_path / "fresh"
    ask(place / "study.toml", "--out", fresh, *FEW)
    for site in ("north", "east", "west"):
        assert labels_of(place / "out", site) == labels_of(fresh, site)
    found = labels_of(place / "out", "north")
    assert all(found[name]["given_label"] != before[name]["given_label"] for name in corrupted)
    assert (place / "out" / "sites" / "west" / "ledger.jsonl").read_text("utf-8").startswith(ledger)
    assert "anew" not in ask(place / "study.toml", "--out", place / "out", *FEW).stderr


def test_a_stopped_audit_does_not_go_on_with_other_labels(
    audited: tuple[Path, np.ndarray, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedsift.label_audit.method import LabelAudit

    place = copied(audited, tmp_path / "own")

    def killed(self: LabelAudit, *parts: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(LabelAudit, "share", killed)
        done = CliRunner().invoke(app, ["audit", str(place / "study.toml"), "--out", str(place / "cut"), *FEW])
        assert done.exit_code == 130
    changed_data(place / "data.npz", slice(0, 12))
    assert "site 'north' has other labels" in ask(place / "study.toml", "--out", place / "cut", *FEW).stderr
    ask(place / "study.toml", "--out", place / "fresh", *FEW)
    assert labels_of(place / "cut", "north") == labels_of(place / "fresh", "north")


def test_what_needs_the_data_of_an_audit_is_refused_when_they_changed(
    audited: tuple[Path, np.ndarray, dict[str, Any]], tmp_path: Path
) -> None:
    place = copied(audited, tmp_path / "own")
    shutil.copy(place / "data.npz", place / "later.npz")
    changed_data(place / "data.npz", slice(0, 1))
    later = ["--new", str(place / "later.npz"), "--out", str(place / "out")]
    for words in (
        [str(place / "study.toml"), *later],
        [str(place / "out" / "run"), "--out", str(place / "b")],
    ):
        with pytest.raises(RunError, match="did not judge the labels and samples that site 'north' has now"):
            CliRunner().invoke(app, ["audit", *words], catch_exceptions=False)


def test_verdicts_are_known_labels_when_the_study_is_audited_again(
    audited: tuple[Path, np.ndarray, dict[str, Any]], tmp_path: Path
) -> None:
    place = copied(audited, tmp_path / "own")
    site = place / "out" / "sites" / "west"
    before = labels_of(place / "out", "west")
    [listed, *_] = [name for name, row in before.items() if row["is_label_issue"] == "True"]
    (place / "said.csv").write_text(f"id,verdict,reader\n{listed},given,Ann\n", "utf-8")
    review = (
        ["review", "plan", str(site), "--worst", "4"],
        ["review", "import", str(site), str(place / "said.csv")],
    )
    for words in review:
        assert CliRunner().invoke(app, words, catch_exceptions=False).exit_code == 0
    queue = (site / "review" / "plan.json").read_bytes()
    outside = {name: (place / "out" / name).read_bytes() for name in ("consortium.json", "consortium.html")}
    done = ask(place / "study.toml", "--out", place / "out", *FEW, "--json")
    assert "site 'west': 1 settled verdict is taken as known label" in done.stderr
    row = labels_of(place / "out", "west")[listed]
    assert (row["is_label_issue"], row["reason"]) == ("False", "settled by review")
    assert float(row["probability_wrong"]) < float(before[listed]["probability_wrong"])
    assert json.loads(done.stdout)["sites"]["west"]["flagged"] < audited[2]["sites"]["west"]["flagged"]
    assert (site / "review" / "plan.json").read_bytes() == queue
    assert {name: (place / "out" / name).read_bytes() for name in outside} == outside
    again = labels_of(place / "out", "west")
    ask(place / "study.toml", "--out", place / "out", *FEW)
    assert labels_of(place / "out", "west") == again


def test_samples_that_came_later_are_judged_without_training(
    audited: tuple[Path, np.ndarray, dict[str, Any]], tmp_path: Path
) -> None:
    place, _, _ = audited
    wrong = own_data(tmp_path / "later.npz", n=90, seed=5)
    done = ask(place / "study.toml", "--new", tmp_path / "later.npz", "--out", place / "out", "--json")
    found = json.loads(done.stdout)
    with Path(found["sites"]["west"]["list"]).open(encoding="utf-8", newline="") as file:
        listed = {row["id"] for row in csv.DictReader(file) if row["is_label_issue"] == "True"}
    truly = {f"s5-{k:04d}" for k in np.flatnonzero(wrong)}
    assert len(listed & truly) >= 0.7 * len(truly)
    assert found["sites"]["north"]["flagged"] == 0
    released = json.loads(Path(found["sites"]["west"]["list"]).with_name("release.json").read_text("utf-8"))
    assert released["min_count"] == 10
    with pytest.raises(ConfigError, match="no-such-study"):
        CliRunner().invoke(
            app,
            [
                "audit",
                "no-such-study.toml",
                "--new",
                str(tmp_path / "later.npz"),
                "--out",
                str(place / "out"),
            ],
            catch_exceptions=False,
        )
    np.savez(
        tmp_path / "odd.npz",
        images=np.zeros((4, 6), np.float32),
        labels=np.zeros(4, int),
        classes=np.array(["x"]),
    )
    with pytest.raises(DataError, match="classes"):
        CliRunner().invoke(
            app,
            [
                "audit",
                str(place / "study.toml"),
                "--new",
                str(tmp_path / "odd.npz"),
                "--out",
                str(place / "out"),
            ],
            catch_exceptions=False,
        )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"images": np.zeros((3, 4), np.float32)}, "the new samples are 4, those of the audit 6"),
        ({"labels": np.eye(3, dtype=int)}, "the new data have several labels a sample, the audit one class"),
    ],
)
def test_later_samples_of_another_kind_are_one_line(
    audited: tuple[Path, np.ndarray, dict[str, Any]], tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    place, _, _ = audited
    arrays = {
        "images": np.zeros((3, 6), np.float32),
        "labels": np.zeros(3, int),
        "site": np.array(["west"] * 3),
    }
    np.savez(tmp_path / "odd.npz", **{**arrays, "classes": np.array(["cat", "cow", "dog"]), **changes})
    with pytest.raises(DataError, match=words):
        ask(place / "study.toml", "--new", tmp_path / "odd.npz", "--out", place / "out")


def test_two_sites_that_a_disk_takes_for_one_are_refused(
    audited: tuple[Path, np.ndarray, dict[str, Any]], tmp_path: Path
) -> None:
    """A link stands for a disk that does not tell capital letters from small ones."""
    place = copied(audited, tmp_path / "own")
    shutil.rmtree(place / "out" / "sites" / "west")
    (place / "out" / "sites" / "west").symlink_to(place / "out" / "sites" / "north")
    with pytest.raises(DataError, match="'north' and 'west' are the same folder on this disk"):
        ask(place / "study.toml", "--out", place / "out", *FEW)


def test_a_forgotten_sample_leaves_the_notebook_and_what_came_later_too(
    audited: tuple[Path, np.ndarray, dict[str, Any]], tmp_path: Path
) -> None:
    place = copied(audited, tmp_path / "own")
    site, out = place / "out" / "sites" / "west", place / "out"
    shutil.copy(place / "data.npz", place / "later.npz")
    ask(place / "study.toml", "--new", place / "later.npz", "--out", out)
    name = next(iter(labels_of(out, "west")))
    lists = [out, out / "later" / "later"]
    counted = [open_site(where / "sites" / "west")[1].agreement.sum() for where in lists]
    assert abs(counted[0] - 60) <= 1  # expected counts are rounded one by one
    done = CliRunner().invoke(
        app, ["labels", "forget", str(site), name, "--json", "--who", "owner"], catch_exceptions=False
    )
    [found] = json.loads(done.stdout)
    assert "computes it anew" in found["notes"][0]
    assert not list((out / "run" / "notebooks" / "west").iterdir())
    assert len(list((out / "run" / "notebooks" / "north").iterdir())) == 1
    for where, count in zip(lists, counted, strict=True):
        assert name not in labels_of(where, "west")
        own = open_site(where / "sites" / "west")[1]
        assert len(own) == 59 and abs(own.agreement.sum() - (count - 1)) <= 1
        assert name.encode() not in (where / "sites" / "west" / "ledger.jsonl").read_bytes()
    again = ask(place / "study.toml", "--out", out, *FEW)
    assert "site 'west' has other labels or samples" in again.stderr
    assert name not in labels_of(out, "west")
    pages, _ = notebooks_of(RunFolder.open(out / "run"), Study.from_file(out / "run" / "study.toml"))
    # the next audit did without it, though the data still have it
    assert pages["west"]["label audit"].training == 59
    assert "anew" not in ask(place / "study.toml", "--out", out, *FEW).stderr


def test_a_finished_run_is_audited_from_its_own_evidence(
    audited: tuple[Path, np.ndarray, dict[str, Any]], tmp_path: Path
) -> None:
    text = """
seed = 3
[data]
name = "digits"
train_limit = 200
[partition]
name = "iid"
sites = 4
[noise]
name = "fedcorr"
rho = 0.5
tau = 0.5
[model]
name = "linear"
[method]
name = "fedcorr"
iterations = 1
fine_tuning_rounds = 1
usual_rounds = 1
"""
    (tmp_path / "study.toml").write_text(text, "utf-8")
    run = CliRunner().invoke(
        app,
        ["run", str(tmp_path / "study.toml"), "--out", str(tmp_path / "runs"), "--json"],
        catch_exceptions=False,
    )
    folder = json.loads(run.stdout)["run"]
    found = json.loads(ask(folder, "--out", tmp_path / "out", "--json").stdout)
    assert set(found["sites"]) == {"site-00", "site-01", "site-02", "site-03"}
    page = (tmp_path / "out" / "sites" / "site-00" / "report.html").read_text("utf-8")
    assert "ranks" in page
    (tmp_path / "out" / "consortium.html").write_text("of something else", "utf-8")
    assert "what the consortium sees" not in ask(folder, "--out", tmp_path / "out").stdout
    assert not (tmp_path / "out" / "consortium.html").exists()
    other = copied(audited, tmp_path / "other")
    before = {file: file.read_bytes() for file in (other / "out").rglob("*") if file.is_file()}
    refused = ([folder, "--out", other / "out"], [other / "study.toml", *FEW, "--out", tmp_path / "out"])
    for words in refused:
        with pytest.raises(RunError, match="holds an audit of another study"):
            CliRunner().invoke(app, ["audit", *map(str, words)], catch_exceptions=False)
    assert {file: file.read_bytes() for file in (other / "out").rglob("*") if file.is_file()} == before


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["RUN", "--plan"], "--plan cannot be used here: a finished run"),
        (["RUN", "--model", "linear", "--folds", "5"], "--model, --folds cannot be used here"),
        (["RUN", "--fast"], "--fast cannot be used here"),
        (["RUN", "seed=3"], "settings such as data.size=32 cannot be used here"),
        (["STUDY", "--new", "later.npz", "--plan"], "--plan cannot be used here: --new trains nothing"),
        (["STUDY", "--new", "later.npz", "--rounds", "12"], "--rounds cannot be used here"),
    ],
)
def test_options_that_would_say_nothing_are_refused(
    audited: tuple[Path, np.ndarray, dict[str, Any]], tmp_path: Path, words: list[str], told: str
) -> None:
    place, _, _ = audited
    named = {"RUN": str(place / "out" / "run"), "STUDY": str(place / "study.toml")}
    with pytest.raises(ConfigError, match=re.escape(told)):
        CliRunner().invoke(
            app,
            ["audit", *(named.get(word, word) for word in words), "--out", str(tmp_path / "none")],
            catch_exceptions=False,
        )
    assert not (tmp_path / "none").exists()


def test_a_plan_says_what_leaves_and_audits_nothing(
    audited: tuple[Path, np.ndarray, dict[str, Any]], tmp_path: Path
) -> None:
    place, _, _ = audited
    done = ask(place / "study.toml", "--out", tmp_path / "none", *FEW, "--plan", "--json")
    replies = {row["reply"] for row in json.loads(done.stdout)["disclosures"]}
    assert {"LabelsCounted", "FoldsFitted", "GridJudged", "LabelsJudged"} <= replies
    assert not (tmp_path / "none").exists()


def test_an_audit_on_flower_says_how_it_is_done(tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_text('[data]\nname = "digits"\n', "utf-8")
    with pytest.raises(ConfigError, match="label-audit"):
        CliRunner().invoke(app, ["audit", str(tmp_path / "study.toml"), "engine.name=flower"], catch_exceptions=False)


def test_data_alone_are_audited_as_a_study_of_them_is(
    audited: tuple[Path, np.ndarray, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, _, found = audited
    shutil.copy(place / "data.npz", tmp_path / "data.npz")
    monkeypatch.chdir(tmp_path)
    alone = json.loads(ask("data.npz", "--out", "out", *FEW, "--json").stdout)
    assert alone["sites"] == found["sites"]
    listed = ("sites", "west", "labels.csv")
    assert (tmp_path / "out").joinpath(*listed).read_bytes() == (place / "out").joinpath(*listed).read_bytes()
    fewer = json.loads(ask("data.npz", "train_limit=90", "seed=2", "--out", "fewer", *FEW, "--json").stdout)
    assert sum(site["samples"] for site in fewer["sites"].values()) == 90
    from_python = fedsift.audit("data.npz", out=tmp_path / "py", folds=3, rounds=4, model="linear", progress=False)
    assert from_python.sites["west"].flagged.sum() == found["sites"]["west"]["flagged"]


def test_what_is_no_data_is_told(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for name, words in (("empty", "there is no picture"), ("nowhere", "does not exist")):
        done = CliRunner().invoke(app, ["audit", str(tmp_path / name)])
        assert isinstance(done.exception, FedsiftError)
        assert words in str(done.exception)
    assert not names_data("fedcorr/cifar10-iid-0.0-0.0")
