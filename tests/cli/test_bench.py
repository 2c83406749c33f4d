"""`fedsift bench` and `fedsift sweep`, as a person types them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedsift.benchmark import running
from fedsift.cli.main import app
from tests.benchmark.small import STUDY_FILE, here, same_files

STUDY = f"""{STUDY_FILE}[method]
name = "fedavg"
rounds = 2
"""


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(running, "run_jobs", here)
    (tmp_path / "study.toml").write_text(STUDY)
    return tmp_path / "study.toml"


def test_the_list_names_every_table() -> None:
    result = CliRunner().invoke(app, ["bench", "list", "--json"])
    entries = {entry["name"]: entry for entry in json.loads(result.stdout)}
    assert entries["fedcorr-2"]["paper"] == "FedCorr Table 2"
    assert entries["fedcorr-2-small"]["size"] == "small"
    assert "fedcorr-10-lenet5" in CliRunner().invoke(app, ["bench", "list", "--match", "lenet5"]).stdout


def test_a_sweep_then_shards_then_a_merge(study: Path, tmp_path: Path) -> None:
    settings = ["train.lr=0.01,0.1", "seeds=1-2", "--figure", "accuracy.best"]
    first = CliRunner().invoke(app, ["sweep", str(study), *settings, "--out", str(tmp_path / "a")])
    assert first.exit_code == 0, first.output
    (table,) = (tmp_path / "a").glob("sweep-*/sweep-*.toml")
    for part in ("1/2", "2/2"):
        out = tmp_path / part[0]
        done = CliRunner().invoke(app, ["bench", str(table), "--shard", part, "--out", str(out), "--json"])
        assert done.exit_code == 0, done.output
    merged = CliRunner().invoke(
        app,
        ["bench", "merge", str(tmp_path / "1"), str(tmp_path / "2"), "--out", str(tmp_path / "b"), "--json"],
    )
    assert json.loads(merged.stdout)["new"] == 4
    CliRunner().invoke(app, ["bench", str(table), "--out", str(tmp_path / "b")])
    one, two = (same_files(tmp_path / side / table.stem) for side in "ab")
    assert one == two


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bench", "fedcor-2"], "Did you mean 'fedcorr-2'"),
        (["bench", "fedcorr-2", "--shard", "5/4"], "--shard 5/4: write i/n"),
        (["bench", "merge"], "name the folders to join"),
        (["sweep", "study.toml", "train.lr=1"], "several values"),
        (["sweep", "study.toml", "train.lr="], "'train.lr=' has no value"),
        (["sweep", "study.toml", "train.lr=,"], "'train.lr=,' has no value"),
    ],
)
def test_what_cannot_be_is_said(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(app, arguments)
    assert message in str(result.exception)


@pytest.mark.slow
def test_a_killed_bench_resumes(tmp_path: Path) -> None:
    """Killed without warning; the same command computes the rest, and the bytes are an unbroken one's."""
    (tmp_path / "study.toml").write_text(STUDY.replace("rounds = 2", "rounds = 20"))
    table = tmp_path / "mine.toml"
    rows = "".join(f'[[rows]]\nlabel = "{lr}"\ntrain = {{ lr = {lr} }}\n' for lr in (0.01, 0.1))
    table.write_text(f'scenario = "study.toml"\nseeds = [1, 2]\n{rows}')

    def command(out: str) -> list[str]:
        return [sys.executable, "-m", "fedsift", "bench", str(table), "--out", str(tmp_path / out)]

    process = subprocess.Popen(command("a"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    cells, deadline = tmp_path / "a" / "cells", time.monotonic() + 120
    while not (cells.is_dir() and list(cells.glob("*.json"))) and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    before = len(list(cells.glob("*.json")))
    assert 0 < before < 4
    time.sleep(2.5)  # the processes of the killed bench notice and end
    subprocess.run(command("a"), check=True, capture_output=True)
    subprocess.run(command("b"), check=True, capture_output=True)
    assert len(list(cells.glob("*.json"))) == 4
    assert same_files(tmp_path / "a" / "mine") == same_files(tmp_path / "b" / "mine")
