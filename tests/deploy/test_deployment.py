"""A real deployment on loopback: SuperLink, three SuperNodes and the run, each a process; one site loses power."""

from __future__ import annotations

import dataclasses
import importlib
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from fedsift.deploy.app import write_app
from fedsift.deploy.flower_commands import free_port
from fedsift.methods._base import methods
from fedsift.runs.folder import RunFolder
from fedsift.study.running import new_run, run
from fedsift.study.study import Study
from fedsift.transports.remote.notebooks import NotebookStore
from tests.deploy.processes import Processes, kill_family, wait_until

STUDY: dict[str, Any] = {
    "name": "three hospitals",
    "data": {"name": "digits"},
    "partition": {"name": "iid", "sites": 3},
    "noise": {"name": "fedcorr", "rho": 0.4, "tau": 0.5},
    "model": {"name": "mlp"},
    "train": {"epochs": 1, "batch_size": 16, "lr": 0.05},
    "method": {"name": "fednoro-diary", "rounds": 2, "warm_up": 1},
    "federation": {"quorum": 1.0, "deadline": 240},
    "engine": {"trainer": "one"},
}
"""Every site must answer in every round: the run can only end if the site that lost power came back."""


@pytest.fixture
def diary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The method with a diary, known to this process for the time of the test, and installed for those it starts."""
    here = str(Path(__file__).parent)
    monkeypatch.syspath_prepend(here)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([here, os.environ.get("PYTHONPATH", "")]))
    module = importlib.import_module("diary")
    yield Path(module.__file__ or "")
    methods._entries.pop("fednoro-diary")
    del sys.modules[module.__name__]


def app_with_diary(study: Study, folder: Path, diary: Path) -> list[Path]:
    """A deployed app of a method that is not fedsift's, and the files of three sites that have it as a plugin."""
    sites = write_app(study, folder / "app", trial=folder / "trial")
    package = folder / "app" / "fedsift_app"
    shutil.copy(diary, package / "diary.py")
    text = (package / "server.py").read_text("utf-8")
    (package / "server.py").write_text(text + "\nimport fedsift_app.diary  # noqa: E402, F401\n", "utf-8")
    for file in sites:
        file.write_text('plugins = ["diary"]\n' + file.read_text("utf-8"), "utf-8")
    return sites


@pytest.mark.flower
def test_a_deployed_run_survives_the_loss_of_a_site_and_equals_the_simulation(tmp_path: Path, diary: Path) -> None:
    torch.set_num_threads(1)
    study = Study.from_table(STUDY)
    expected = new_run(dataclasses.replace(study, name="expected"), tmp_path)
    run(study, expected)
    sites = app_with_diary(study, tmp_path, diary)
    address = f"127.0.0.1:{free_port()}"
    place = RunFolder(tmp_path / "runs" / "first")

    with Processes(tmp_path) as processes:

        def start_site(number: int) -> Any:
            command = ("flower", "site", sites[number], "--superlink", address, "--insecure")
            return processes.fedsift(f"site-{number}", *command)

        try:
            processes.fedsift("superlink", "flower", "superlink", "--insecure", "--port", address.rpartition(":")[2])
            nodes = [start_site(number) for number in range(3)]
            runner = processes.fedsift(
                "start",
                "flower",
                "start",
                "app",
                "--run-folder",
                place.path,
                "--superlink",
                address,
                "--insecure",
                module=diary,
            )
            wait_until(lambda: runner.poll() is not None or place.rounds(), 240, "the first round")
            kill_family(nodes[1])  # the second round has just begun, and takes seconds
            rounds_at_kill = len(place.rounds())
            start_site(1)
            wait_until(lambda: runner.poll() is not None, 300, "the end of the run")
        except TimeoutError as error:
            pytest.fail(f"{error}\n{processes.logs()}")
        assert runner.returncode == 0, processes.logs()

    assert rounds_at_kill == 1
    rows, wanted = place.rounds(), expected.rounds()
    assert [row["refused"] for row in rows] == [{}] * len(wanted)
    assert [row["stage"] for row in rows] == [row["stage"] for row in wanted]
    assert rows[-1]["entries"] == {"site-00": 2, "site-01": 2, "site-02": 2}
    for row, other in zip(rows, wanted):
        assert row.get("accuracy") == other.get("accuracy")
        assert row.get("findings", {}).get("noisy") == other.get("findings", {}).get("noisy")
    mine, theirs = load_file(place.path / "model.safetensors"), load_file(expected.path / "model.safetensors")
    assert all(torch.allclose(mine[key], theirs[key], rtol=1e-5, atol=1e-7) for key in theirs)
    last = f"{len(rows) - 1}.0:close the diary"
    run_id = place.read_json("deployed.json")["run"]
    notebook = NotebookStore(sites[1].parent / "notebook" / "site-01", run_id, "site-01").pages(last)
    assert notebook["diary"] == ["0.0:open the diary", last]
    assert (place.path / "report.html").is_file()
