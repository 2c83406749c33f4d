"""Which models a site took part in, from the coordinator's run folders."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from fedsift.cli.main import app
from fedsift.deploy.tookpart import participations
from fedsift.runs import RunFolder
from fedsift.study import Study
from fedsift.study.running import new_run, run


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    study = Study.from_table(
        {
            "data": {"name": "digits", "train_limit": 60},
            "partition": {"name": "iid", "sites": 2},
            "model": {"name": "linear"},
            "method": {"name": "fedavg", "rounds": 2},
        }
    )
    folder = new_run(study, tmp_path_factory.mktemp("runs"))
    run(study, folder)
    return folder


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
