"""Real processes on loopback: a start that is killed, one that is ended, a worker that is lost, a whole trial."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
import tomli_w

from fedsift.deploy.app import write_app
from fedsift.deploy.flower_commands import free_port
from fedsift.deploy.trial import family
from fedsift.runs.folder import RunFolder
from fedsift.study.study import Study
from tests.deploy.processes import Processes, wait_until
from tests.deploy.test_consortium import STUDY

pytestmark = [pytest.mark.flower, pytest.mark.slow]

ROUNDS = 24
"""So many that a run is still under way when a second `start` has loaded, on a busy machine too."""
LONG = {**STUDY, "method": {"name": "fedavg", "rounds": ROUNDS}, "engine": {"trainer": "one"}}


def commands_of(pids: list[int]) -> dict[int, str]:
    found = {}
    for pid in pids:
        try:
            found[pid] = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
    return found


def test_a_killed_start_is_attached_to_and_an_ended_one_leaves_no_orphan(tmp_path: Path) -> None:
    sites = write_app(Study.from_table(LONG), tmp_path / "app", trial=tmp_path / "trial")
    here = f"127.0.0.1:{free_port()}"
    run = RunFolder(tmp_path / "run")
    start = ("flower", "start", tmp_path / "app", "--run-folder", run.path, "--superlink", here, "--insecure")
    with Processes(tmp_path) as processes:
        processes.fedsift("superlink", "flower", "superlink", "--insecure", "--port", here.rpartition(":")[2])
        nodes = [
            processes.fedsift(f"site-{n}", "flower", "site", file, "--superlink", here, "--insecure")
            for n, file in enumerate(sites)
        ]
        first = processes.fedsift("first", *start)
        wait_until(lambda: len(run.rounds()) >= 1, 300, f"the first round\n{processes.logs()}")
        first.kill()  # as the operator's terminal dies
        first.wait()
        assert run.in_use
        second = processes.fedsift("second", *start)
        wait_until(lambda: "attached to it" in (tmp_path / "second.log").read_text(), 60, "the second start")
        done = len(run.rounds())
        wait_until(lambda: len(run.rounds()) > done, 120, f"a round while attached\n{processes.logs()}")
        second.terminate()
        assert second.wait(90) == 143
        assert not run.in_use, "an orphan goes on"
        [worker] = [
            pid for pid, line in commands_of(family(nodes[0].pid)).items() if "fedsift.deploy.site.worker" in line
        ]
        os.kill(worker, signal.SIGKILL)
        third = processes.fedsift("third", *start)
        assert third.wait(420) == 0, processes.logs()
        assert "is started again" in (tmp_path / "site-0.log").read_text()
    assert run.finished
    assert (run.path / "report.html").is_file()
    assert [row["round"] for row in run.rounds()] == list(range(1, ROUNDS + 1))


def study_file(folder: Path, rounds: int) -> Path:
    file = folder / "study.toml"
    file.write_text(tomli_w.dumps({**LONG, "method": {"name": "fedavg", "rounds": rounds}}), "utf-8")
    return file


def test_a_whole_consortium_is_one_command(tmp_path: Path) -> None:
    with Processes(tmp_path) as processes:
        trial = processes.fedsift("try", "consortium", "try", study_file(tmp_path, 2), "--out", tmp_path / "t")
        assert trial.wait(500) == 0, processes.logs()
    said = (tmp_path / "try.log").read_text()
    assert "starting the SuperLink" in said
    assert (tmp_path / "t" / "run" / "report.html").is_file()
    access = (tmp_path / "t" / "superlink" / "access.jsonl").read_text().splitlines()
    assert {json.loads(line)["who"] for line in access} >= {"site-00", "site-01"}  # through the gateway, by key
    log = (tmp_path / "t" / "logs" / "site-00.log").read_text()
    assert "cannot open this site's data and notebook" in log or "cannot confine" in log


def test_ctrl_c_ends_all_that_a_trial_started(tmp_path: Path) -> None:
    with Processes(tmp_path) as processes:
        trial = processes.fedsift("try", "consortium", "try", study_file(tmp_path, 500), "--out", tmp_path / "t")
        wait_until(lambda: RunFolder(tmp_path / "t" / "run").rounds(), 300, f"a round\n{processes.logs()}")
        started = commands_of(family(trial.pid))
        assert len(started) > 8
        trial.send_signal(signal.SIGINT)
        assert trial.wait(120) == 130, processes.logs()
        wait_until(lambda: not _same(started), 30, f"the end of {_same(started)}")


def _same(started: dict[int, str]) -> dict[int, str]:
    """Those that still run, as what they were; a number may be another process by now."""
    return {pid: line for pid, line in commands_of(list(started)).items() if line and line == started[pid]}
