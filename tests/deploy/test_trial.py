"""A trial's table and its beginnings, without any of Flower's processes."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from rich.console import Console

from fedsift.cli.deploy import _table
from fedsift.core.errors import ConfigError, RunError
from fedsift.deploy.coordinator.roster import read_entries
from fedsift.deploy.site.site_file_head import read_head
from fedsift.deploy.trial import TrialProcess, end_family, family, prepare_trial
from fedsift.runs.folder import WAITING, RunFolder
from fedsift.study.study import Study
from tests.deploy.processes import wait_until

TABLE = {
    "data": {"name": "digits", "train_limit": 60},
    "partition": {"name": "iid", "sites": 2},
    "model": {"name": "linear"},
    "method": {"name": "fedavg", "rounds": 1},
}


def sleeping(code: str = "import time; time.sleep(60)") -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", code], start_new_session=True)


def test_a_trial_has_keys_a_roster_and_pins_and_tells_where_everybody_is(tmp_path: Path) -> None:
    trial = prepare_trial(Study.from_table(TABLE), tmp_path / "t")
    assert [entry.name for entry in read_entries(trial.roster)] == list(trial.sites)
    for site, file in trial.sites.items():
        assert len(read_head(file).apps) == 1
        assert trial.key_of(site).stat().st_mode & 0o077 == 0
    assert tomllib.loads(trial.roster.read_text("utf-8"))["sites"] == list(trial.sites)
    first, second = trial.sites
    processes = [sleeping(), sleeping("")]
    processes[1].wait()
    try:
        log = tmp_path / "a.log"
        log.write_text("one\n\x1b[92mINFO\x1b[0m two\n")
        trial.members = [
            TrialProcess(first, processes[0], log),
            TrialProcess(second, processes[1], tmp_path / "no.log"),
        ]
        assert trial.states()[:2] == [(first, "starts", "INFO two"), (second, "ended with code 0", "")]
        trial.run.mkdir()
        RunFolder(trial.run).write_json(
            WAITING, {"what": "round 1 (train): answers to Train", "waiting": {first: "asked"}}
        )
        trial.row = {"round": 1, "of": 3}
        assert trial.states()[0][1] == "asked"
        assert trial.states()[-1][:2] == ("run", "round 1 of 3")
        console = Console(width=100, record=True)
        console.print(_table(trial))
        assert first in console.export_text()
        with pytest.raises(RunError, match=f"{second} ended with code 0"):
            trial.check()
    finally:
        end_family(processes[0])


def test_a_trial_needs_a_new_folder_and_a_handful_of_sites(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(ConfigError, match="not empty"):
        prepare_trial(Study.from_table(TABLE), tmp_path)
    many = {**TABLE, "partition": {"name": "iid", "sites": 100}}
    with pytest.raises(ConfigError, match="hundreds of processes"):
        prepare_trial(Study.from_table(many), tmp_path / "t")


def test_a_child_that_left_its_session_ends_too() -> None:
    code = (
        "import subprocess, sys, time; "
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], start_new_session=True); "
        "time.sleep(60)"
    )
    process = sleeping(code)
    wait_until(lambda: family(process.pid), 30, "the child")
    [child] = family(process.pid)
    end_family(process)
    wait_until(lambda: not _runs(child), 10, "the end of the child")


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
