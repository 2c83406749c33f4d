"""Which models a site took part in, from the coordinator's run folders."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedsift.cli.main import app
from fedsift.deploy.coordinator.starting import participations
from fedsift.runs.folder import RunFolder
from fedsift.study.running import new_run, run
from fedsift.study.study import Study


def run_of(method: str, runs: Path) -> RunFolder:
    study = Study.from_table(
        {
            "data": {"name": "digits", "train_limit": 60},
            "partition": {"name": "iid", "sites": 2},
            "model": {"name": "linear"},
            "method": {"name": method, "rounds": 2},
        }
    )
    folder = new_run(study, runs)
    run(study, folder)
    return folder


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return run_of("fedavg", tmp_path_factory.mktemp("runs"))


def test_a_sites_runs_are_found_with_their_models(finished: RunFolder) -> None:
    [found] = participations("site-01", [finished.path.parent])
    assert found.run == finished.path
    assert found.state == "finished"
    assert found.until == "question 1 of round 2 (train)"
    assert found.model == finished.path / "model.safetensors"
    assert participations("site-01", [finished.path, finished.path.parent]) == [found]  # once, however named
    assert participations("a stranger", [finished.path.parent]) == []


def test_the_coordinators_command_lists_them(finished: RunFolder) -> None:
    shown = CliRunner().invoke(app, ["flower", "took-part", "site-00", str(finished.path), "--json"])
    assert shown.exit_code == 0, shown.output
    [row] = json.loads(shown.output)
    assert row["run"] == str(finished.path)


def test_a_fresh_program_reads_runs_whose_method_has_a_state_of_its_own(tmp_path: Path) -> None:
    folder = run_of("feddyn", tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "fedsift", "flower", "took-part", "site-00", str(tmp_path), "--json"],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    [row] = json.loads(done.stdout)
    assert (row["run"], row["state"]) == (str(folder.path), "finished")


def test_a_run_that_cannot_be_read_is_listed_and_hides_no_other(finished: RunFolder, tmp_path: Path) -> None:
    shutil.copytree(finished.path, tmp_path / "whole")
    shutil.copytree(finished.path, tmp_path / "broken")
    (tmp_path / "broken" / "checkpoint.bin").write_bytes(b"{}")
    found = {each.run.name: each for each in participations("site-01", [tmp_path])}
    assert found["whole"].state == "finished"
    assert found["broken"].state.startswith("cannot be read: ")
    assert found["broken"].until == "not known"
