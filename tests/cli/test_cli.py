"""The command line end to end: what people type, what they see, exit codes, no tracebacks."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from fedsift.runs.folder import RunFolder
from tests import commands

STUDY = """
name = "small"
seed = 4
[partition]
name = "iid"
sites = 4
[noise]
name = "fedcorr"
rho = 0.5
tau = 0.5
[method]
name = "fednoro"
rounds = 2
warm_up = 1
"""


def fedsift(*words: str, cwd: Path, check: int = 0) -> commands.Done:
    done = commands.fedsift(*words, cwd=cwd)
    assert done.returncode == check, done.stderr + done.stdout
    return done


def in_a_process(*words: str, cwd: Path, check: int = 0) -> str:
    """What a process of its own says on stderr: what the other tests cannot see is here."""
    done = subprocess.run(
        [sys.executable, "-m", "fedsift", *words],
        cwd=cwd,
        text=True,
        capture_output=True,
        timeout=240,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    assert done.returncode == check, done.stderr + done.stdout
    return done.stderr


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cli")
    (folder / "study.toml").write_text(STUDY)
    in_a_process("run", "study.toml", cwd=folder)
    [run] = (folder / "runs").iterdir()
    return run


def test_run_leaves_everything_behind(finished: Path) -> None:
    names = {file.name for file in finished.iterdir()}
    assert {
        "study.toml",
        "rounds.jsonl",
        "checksums.txt",
        "sites.csv",
        "summary.json",
        "report.html",
        "model.safetensors",
        "checkpoint.bin",
    } <= names


def test_run_prints_findings_and_where_the_report_is(tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_text(STUDY)
    done = fedsift("run", "study.toml", "method.rounds=1", "name=other", cwd=tmp_path)
    assert "report.html" in done.stdout
    assert (tmp_path / "runs").is_dir()


def test_json_is_json(finished: Path, tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_text(STUDY)
    summary = json.loads(fedsift("run", "study.toml", "method.rounds=1", "--json", cwd=tmp_path).stdout)
    assert summary["rounds"] == 2
    assert Path(tmp_path / summary["report"]).is_file()
    for words in (("methods",), ("methods", "fednoro"), ("models",), ("datasets",), ("scenarios",)):
        assert json.loads(fedsift(*words, "--json", cwd=tmp_path).stdout)
    plan = json.loads(fedsift("plan", "study.toml", "--json", cwd=tmp_path).stdout)
    assert plan["phases"] == 3
    assert {row["reply"] for row in plan["disclosures"]} == {"Trained", "Indicators"}


def test_listings_for_people(tmp_path: Path) -> None:
    assert "fednoro" in fedsift("methods", cwd=tmp_path).stdout
    assert "warm_up" in fedsift("methods", "fednoro", cwd=tmp_path).stdout
    assert "resnet18-cifar" in fedsift("models", cwd=tmp_path).stdout
    assert "digits" in fedsift("datasets", cwd=tmp_path).stdout


def test_a_finished_run_is_not_run_again(finished: Path) -> None:
    assert "is finished" in in_a_process("resume", str(finished), cwd=finished.parent, check=5)


def test_interrupt_is_safe_and_resume_goes_on(tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_text(STUDY)
    words = [sys.executable, "-m", "fedsift", "run", "study.toml", "method.rounds=400", "method.warm_up=399"]
    process = subprocess.Popen(
        words,
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        # a suite started in the background ignores Ctrl-C, and so would its children
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob("runs/*/checkpoint.bin")):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "nothing is lost" in errors
    assert "Traceback" not in errors
    [run] = (tmp_path / "runs").iterdir()
    done_rounds = len((run / "rounds.jsonl").read_text().splitlines())
    text = (run / "study.toml").read_text().replace("rounds = 400", f"rounds = {done_rounds + 2}")
    RunFolder(run).write_text("study.toml", text.replace("warm_up = 399", f"warm_up = {done_rounds}"))
    fedsift("resume", str(run), cwd=tmp_path)
    assert (run / "summary.json").is_file()


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["run", "nothing.toml"], 2, "study file 'nothing.toml' does not exist"),
        (["run", "study.toml", "method.warmup=3"], 2, "Did you mean 'warm_up'?"),
        (["run", "study.toml", "data.name=npz", "data.path=gone.npz"], 3, "gone.npz"),
        (["run", "study.toml", "partition.sites=5000"], 3, "5000 sites"),
        (["resume", "nowhere"], 5, "is not a run folder"),
        (["report", "nowhere"], 5, "nowhere"),
        (["methods", "fednor"], 2, "Did you mean 'fednoro'?"),
        (["plan", "study.toml", "model.name=resnet18"], 2, "unknown model 'resnet18'"),
    ],
)
def test_mistakes_get_one_line_and_their_code(words: list[str], code: int, message: str, tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_text(STUDY)
    done = fedsift(*words, cwd=tmp_path, check=code)
    assert message in done.stderr
    assert len([line for line in done.stderr.splitlines() if line.strip()]) == 1


def own_data(folder: Path, **changes: object) -> Path:
    """Digits as a person's own npz with a site column."""
    digits = load_digits()
    n = 300
    arrays: dict[str, object] = {
        "images": (digits.images[:n] * 15.9).astype(np.uint8),
        "labels": digits.target[:n].astype(np.int64),
        "site": np.array([f"hospital {i % 3}" for i in range(n)]),
        "classes": np.array([str(k) for k in range(10)]),
    }
    arrays.update(changes)
    np.savez(folder / "own.npz", **arrays)  # type: ignore[arg-type]
    return folder / "own.npz"


OWN = """
[data]
name = "npz"
path = "own.npz"
[partition]
name = "natural"
[method]
name = "fednoro"
rounds = 2
warm_up = 1
"""


def test_own_data_with_odd_sites(tmp_path: Path) -> None:
    """A site with one sample, and a class that nobody holds: stated, not fatal."""
    site = np.array(["lonely", *(["big"] * 150), *(["other"] * 149)])
    labels = load_digits().target[:300].copy()
    labels[labels == 9] = 8
    own_data(tmp_path, site=site, labels=labels)
    (tmp_path / "study.toml").write_text(OWN)
    done = fedsift("run", "study.toml", "--json", cwd=tmp_path)
    summary = json.loads(done.stdout)
    assert summary["sites"] == 3
    assert any("9" in note for note in summary["notes"])
    assert summary["refused"] == 0


def test_label_out_of_range_names_sample_and_site(tmp_path: Path) -> None:
    labels = load_digits().target[:300].copy()
    labels[7] = 12
    own_data(tmp_path, labels=labels)
    (tmp_path / "study.toml").write_text(OWN)
    done = fedsift("run", "study.toml", cwd=tmp_path, check=3)
    assert "12" in done.stderr
    assert "hospital 1" in done.stderr
    assert not (tmp_path / "runs").exists() or not list(tmp_path.glob("runs/*/checkpoint*"))


def test_empty_site_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_text(OWN.replace('name = "natural"', 'name = "iid"\nsites = 400'))
    own_data(tmp_path)
    done = fedsift("run", "study.toml", cwd=tmp_path, check=3)
    assert "400 sites" in done.stderr
