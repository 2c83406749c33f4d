"""The data commands: what they print, as tables and as JSON, and how they exit."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from fedsift.cli.main import app
from fedsift.core.errors import ConfigError, DataError
from fedsift.core.text import argument
from tests.data.pictures_on_disk import labelled_folder


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSIFT_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FEDSIFT_DATA", raising=False)


def run(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, list(arguments))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return result.stdout


def test_doctor_prints_findings_and_exits_with_seven(tmp_path):
    root = labelled_folder(tmp_path / "mine", 30, split=lambda k: "test" if k % 3 == 0 else "train")
    (root / "pictures" / "p004.png").write_bytes(b"broken")
    text = run("doctor", str(root), "size=8", code=7)
    assert f"fedsift audit {argument(root)} size=8" in text
    assert "1 of 30 pictures cannot be read" in text
    assert "pictures/p004.png" in text
    report = json.loads(run("doctor", str(root), "size=8", "--json", code=7))
    assert report["exit_code"] == 7
    assert report["findings"][0]["code"] == "unreadable"
    assert {method["method"] for method in report["methods"]} >= {"fedavg", "fednoro"}
    with pytest.raises(ConfigError, match="unknown key 'lable_column'"):
        run("doctor", str(root), "lable_column=x")
    with pytest.raises(DataError, match="there is no"):
        run("doctor", str(tmp_path / "nowhere"))


def test_doctor_reads_a_study(tmp_path):
    (tmp_path / "s.toml").write_text('[data]\nname = "digits"\n')
    report = json.loads(run("doctor", str(tmp_path / "s.toml"), "--json"))
    assert (report["name"], report["train"], report["exit_code"]) == ("digits", 1348, 0)


def test_doctor_asks_for_the_situation_s_advice(monkeypatch):
    from fedsift.cli import doctor
    from fedsift.data.doctor import DataFinding, DoctorReport, MethodFit, ResourceEstimate, SiteSummary

    asked = []
    monkeypatch.setattr("fedsift.benchmark.advice.advice_for", lambda **told: asked.append(told))
    fits = [
        MethodFit("fedla", True, ""),
        MethodFit("fedcorr", True, "too few sites"),
        MethodFit("rhfl", False, "no"),
    ]
    site, lacking = SiteSummary("a", 5, 0, {}, ()), SiteSummary("b", 5, 0, {}, ("cat",))
    blind = DataFinding("no-clean-reference", "warning", "", "")
    plain = DoctorReport("x", "multiclass", (1,), 10, 0, {}, (site, site), (), ResourceEstimate(0, 0.0, 0.0))
    doctor.advice_on(plain, fits)
    doctor.advice_on(replace(plain, sites=(site, lacking), findings=(blind,)), fits)
    assert asked == [
        {"clean_sites": True, "every_class": True, "unfit": ["fedcorr", "rhfl"]},
        {"clean_sites": False, "every_class": False, "unfit": ["fedcorr", "rhfl"]},
    ]
    assert doctor.advice_on(replace(plain, sites=()), fits) is None
    assert doctor.advice_on(replace(plain, kind="multilabel"), fits) is None
    assert [fit.verdict for fit in fits] == ["yes", "with care", "no"]


def test_doctor_s_advice_says_how_much_and_how_sure():
    from fedsift.benchmark.advice import Advice, AdvisedRow
    from fedsift.cli.doctor import advice_lines

    best = (
        AdvisedRow("fedla", "fedla", 1.5, 4.25, 1.04, 7.5, 3),
        AdvisedRow("fedavg loss=gce", "fedavg", 2.0, 2.0, None, None, 1),
    )
    told = Advice("it is so", "FedAvg", 20, best, separated=False)
    head, *lines, last = advice_lines(told)
    assert "where it is so, the leaderboard (CIFAR-10 features, 20 methods)" in head
    assert [line.strip() for line in lines] == [
        "fedla: +4.2 [+1.0, +7.5] points above FedAvg on 3 seeds, mean rank 1.5",
        "fedavg loss=gce: +2.0 points above FedAvg on 1 seed, mean rank 2",
    ]
    assert "the first two do not differ significantly" in last
    assert "do not differ significantly" not in [*advice_lines(replace(told, separated=True))][-1]
    [none] = advice_lines(replace(told, best=()))
    assert "something speaks against every method" in none
    assert not [*advice_lines(Advice("it is so", "", 0, (), None))]


def test_doctor_advises_no_method_that_its_own_table_warns_of(tmp_path):
    """Three sites with two classes: FedELC and FedCorr lead the leaderboard, and both need more."""
    root = labelled_folder(tmp_path / "mine", 90, site=lambda k: "abc"[k // 30])
    told = json.loads(run("doctor", str(root), "size=8", "--json"))
    warned = {fit["method"] for fit in told["methods"] if fit["reason"]}
    assert {"fedelc", "fedcorr"} <= warned
    advised = [best["method"] for best in told["advice"]["best"]]
    assert len(advised) == 3
    assert not warned & set(advised)


def test_scenarios_are_listed_and_shown(tmp_path):
    entries = json.loads(run("scenarios", "--match", "late-joiner", "--json"))
    assert [entry["name"] for entry in entries] == ["extra/late-joiner-small"]
    assert "fedmlp/ich-missing-4" in run("scenarios", "--match", "fedmlp/ich")
    picture, copy = tmp_path / "p.html", tmp_path / "study.toml"
    text = run("scenarios", "show", "extra/freeloader-small", "--html", str(picture), "--save", str(copy))
    assert "site-19" in text
    assert "freeloader" in text
    assert 10_000 < picture.stat().st_size < 300_000
    assert "freeloader" in copy.read_text()
    shown = json.loads(run("scenarios", "show", "extra/freeloader-small", "noise.count=3", "--json"))
    assert len(shown["federation"]["noisy"]) == 3
    assert shown["study"]["noise"]["count"] == 3


def test_a_scenario_whose_data_are_not_here_says_how_to_get_them():
    shown = json.loads(run("scenarios", "show", "fedcorr/cifar10-iid-0.6-0.5", "--json"))
    assert shown["federation"] is None
    assert "fedsift data get cifar10" in shown["reason"]


def test_datasets_partitions_and_noises():
    entries = {entry["name"]: entry for entry in json.loads(run("datasets", "--json"))}
    assert entries["digits"]["where"] == "bundled"
    assert entries["cifar10"]["where"] == "fedsift data get cifar10"
    for kind in ("datasets", "partitions", "noises"):
        for entry in json.loads(run(kind, "--json")):
            assert entry["what"]
            assert all(field["meaning"] for field in json.loads(run(kind, entry["name"], "--json"))["fields"])
    assert "bernoulli-dirichlet" in run("partitions")


def test_data_get_names_what_must_be_fetched_by_hand():
    with pytest.raises(DataError, match="by hand"):
        run("data", "get", "clothing1m")


def test_doctor_refuses_a_label_out_of_range(tmp_path):
    labels = np.array([0, 1, 2] * 4 + [9])
    images = np.zeros((13, 1, 8, 8), np.uint8)
    np.savez(tmp_path / "x.npz", images=images, labels=labels, classes=np.array(["a", "b", "c"]))
    result = CliRunner().invoke(app, ["doctor", str(tmp_path / "x.npz")])
    assert isinstance(result.exception, DataError)
    assert "sample '12' has label 9" in str(result.exception)
