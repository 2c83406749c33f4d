"""The one run sequence: the engine that a study names, failures in one place, the caller's threads left alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fedsift.core.errors import ConfigError, QuorumError, RunError
from fedsift.protocol.messages import ReplyEnvelope
from fedsift.runs.folder import RunFolder
from fedsift.runs.reading import read_run
from fedsift.runtime.federation import Engine
from fedsift.runtime.in_process import InProcess, InProcessFederation
from fedsift.study.running import InProcessTransport, execute_run, new_run, run
from fedsift.study.study import Study
from fedsift.transports.flower import launch as on_flower

TABLE: dict[str, Any] = {
    "partition": {"name": "iid", "sites": 3},
    "model": {"name": "linear"},
    "train": {"epochs": 1, "batch_size": 64},
    "method": {"name": "fedavg", "rounds": 2},
}


def study_of(**changes: Any) -> Study:
    return Study.from_table({**TABLE, **changes})


def test_flower_runs_on_flower_whoever_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Study, RunFolder]] = []

    def simulate_many(jobs: list[tuple[Study, RunFolder]], listen: Any) -> list[dict[str, Any]]:
        asked.extend(jobs)
        return [{"on": "flower"}]

    monkeypatch.setattr(on_flower, "simulate_many", simulate_many)
    study = study_of(engine={"name": "flower"})
    folder = new_run(study, tmp_path)
    assert run(study, folder) == {"on": "flower"}
    assert asked == [(study, folder)]
    assert run(study_of(), new_run(study_of(), tmp_path))["engine"] == "inprocess"


def test_any_engine_goes_through_the_same_sequence(tmp_path: Path) -> None:
    study = study_of()
    folder = new_run(study, tmp_path)
    rows: list[dict[str, Any]] = []
    summary = execute_run(study, folder, lambda: InProcessFederation(study.load_data()), rows.append)
    assert [row["round"] for row in rows] == [1, 2]
    assert summary == folder.read_json("summary.json")
    data = read_run(folder.path)
    assert (data.method, data.planned, data.finished) == ("FedAvg", 2, True)
    assert data.plan["stages"] == [{"name": "train", "rounds": 2, "trains": True}]
    for name in ("model.safetensors", "sites.csv", "truth.csv", "timings.json"):
        assert (folder.path / name).is_file()


def test_the_callers_threads_are_there_again_even_after_a_failure(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        run(study_of(engine={"threads": 1}), new_run(study_of(), tmp_path))
        assert torch.get_num_threads() == 2

        def nothing() -> Engine:
            assert torch.get_num_threads() == 1
            raise ConfigError("no engine")

        with pytest.raises(ConfigError):
            execute_run(study_of(), new_run(study_of(), tmp_path), nothing)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("error", [ConfigError("no such data"), ValueError("a bug")])
def test_a_run_that_fails_before_its_first_round_leaves_no_folder(tmp_path: Path, error: Exception) -> None:
    def broken() -> Engine:
        raise error

    folder = new_run(study_of(), tmp_path)
    with pytest.raises(type(error), match=str(error)):
        execute_run(study_of(), folder, broken)
    assert not folder.path.exists()


class Silent(InProcess):
    """No site answers in the first round."""

    def deliver(self, envelopes: Any, deadline: float) -> dict[str, ReplyEnvelope]:
        return {}


def test_a_run_that_fails_in_a_round_says_why_and_stays(tmp_path: Path) -> None:
    folder = new_run(study_of(), tmp_path)
    with pytest.raises(QuorumError):
        InProcessTransport(Silent).run(study_of(), folder)
    failure = folder.read_json("failure.json")
    assert failure["exit_code"] == QuorumError.exit_code
    assert "0 of 3 replies accepted" in failure["error"]
    summary = run(study_of(), folder)
    assert summary["rounds"] == 2
    assert folder.read_json("failure.json") is None


def test_somebody_elses_run_is_left_as_it_is(tmp_path: Path) -> None:
    folder = new_run(study_of(), tmp_path)
    other = RunFolder.open(folder.path)
    other.lock()
    try:
        with pytest.raises(RunError, match="in use"):
            run(study_of(), folder)
        assert folder.study_file.is_file()
        assert folder.read_json("failure.json") is None
    finally:
        other.unlock()


def test_notebooks_are_not_taken_over_by_an_engine_whose_sites_keep_their_own(tmp_path: Path) -> None:
    class Elsewhere(InProcess):
        restore = InProcess.__mro__[1].restore  # type: ignore[attr-defined]

    federation = Elsewhere(study_of().load_data(), run="run", seed=1, model="linear")
    federation.restore({})
    with pytest.raises(RunError, match="the engine that it began on"):
        federation.restore({"a": {"labels": [1]}})


def test_a_long_name_is_cut_in_the_folders_and_whole_in_the_study(tmp_path: Path) -> None:
    study = Study.from_table({"name": "very " * 100, "partition": {"name": "iid", "sites": 2}})
    folder = new_run(study, tmp_path)
    assert folder.path.name.endswith("-very" * 10) and len(folder.path.name) < 100
    assert Study.from_file(folder.study_file).name == study.name
