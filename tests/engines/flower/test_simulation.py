"""Flower's simulation gives what the in-process engine gives, also when it was killed and gone on with."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from fedsift.contract.errors import ConfigError, RunError
from fedsift.engines.flower import processes
from fedsift.engines.flower.notebooks import NotebookStore
from fedsift.runs import RunFolder
from fedsift.study import Study
from fedsift.study.on_flower import simulate_many
from fedsift.study.running import new_run, run

pytest.importorskip("ray", reason="Flower's simulation is not installed: pip install 'fedsift[flower]'")

UNEQUAL = ("seconds",)
"""The only value of a round's line that may differ between engines."""


def study_of(method: str, engine: str, **tables: Any) -> Study:
    table = {
        "name": f"{method} {engine}",
        "data": {"name": "digits"},
        "partition": {"name": "bernoulli-dirichlet", "sites": 5, "p": 0.9, "alpha": 2.0},
        "noise": {"name": "fedcorr", "rho": 0.4, "tau": 0.5},
        "model": {"name": "mlp"},
        "train": {"epochs": 1, "batch_size": 16, "lr": 0.05},
        "method": {"name": method},
        "engine": {"name": engine, "trainer": "one"},  # as at a real site; a cohort differs in the last bits
        **tables,
    }
    study = Study.from_table(table)
    return dataclasses.replace(study, method=study.method.tiny())


def lines(folder: RunFolder) -> list[dict[str, Any]]:
    return [{key: value for key, value in row.items() if key not in UNEQUAL} for row in folder.rounds()]


def relative_difference(first: Path, second: Path) -> float:
    mine, theirs = load_file(first), load_file(second)
    assert mine.keys() == theirs.keys()
    pairs = [(mine[key].double(), theirs[key].double()) for key in mine]
    return max(float((a - b).abs().max() / a.abs().max().clamp(min=1e-12)) for a, b in pairs)


class Enough(Exception):
    """Raised by a listener to stop a run in the middle, as a person's Ctrl-C would."""


def stop_after(number: int, job: int) -> Callable[[int, dict[str, Any]], None]:
    def listen(which: int, row: dict[str, Any]) -> None:
        if which == job and row["round"] == number:
            raise Enough

    return listen


@pytest.mark.flower
def test_the_simulation_equals_the_in_process_run_even_after_a_kill(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    methods = ("fedavg", "fednoro")
    expected = {}
    for method in methods:
        study = study_of(method, "inprocess")
        expected[method] = new_run(study, tmp_path / "in process")
        run(study, expected[method])
    jobs = [(study := study_of(method, "flower"), new_run(study, tmp_path / "flower")) for method in methods]
    odd = study_of("fedavg", "flower", model={"name": "mlp", "sites": {"site-00": "lenet5"}})
    jobs.append((odd, new_run(odd, tmp_path / "flower")))  # cannot run; must not keep the others from it

    with pytest.raises(Enough):
        simulate_many(jobs[1:2], stop_after(2, job=0))
    half_way = jobs[1][1]
    assert half_way.checkpoint_file.is_file()
    assert not half_way.finished

    told: list[tuple[int, int]] = []
    outcomes = simulate_many(jobs, lambda job, row: told.append((job, row["round"])))
    assert [number for job, number in told if job == 0] == [1, 2, 3]
    assert [number for job, number in told if job == 1][-1] == 4
    assert (1, 1) not in told  # a finished round is not asked again
    for (_, folder), method, summary in zip(jobs, methods, outcomes):
        assert isinstance(summary, dict)
        assert lines(folder) == lines(expected[method])
        mine, theirs = folder.path, expected[method].path
        assert relative_difference(mine / "model.safetensors", theirs / "model.safetensors") <= 1e-5
        for table in ("sites.csv", "truth.csv"):
            assert (mine / table).read_text() == (theirs / table).read_text()
    assert outcomes[1]["detection"]["truth"]  # the launcher knows the truth; the sites' folders do not
    assert isinstance(outcomes[2], ConfigError)
    assert not jobs[2][1].path.exists()  # a run that fails before its first round leaves no folder
    [first_site] = sorted((half_way.path / "sites").glob("00000-*"))
    kept = NotebookStore(first_site / "notebook", half_way.id, "site-00").versions()
    assert kept[-1].startswith("3.0:")


def test_without_flower_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "find_spec", lambda name: None)
    study = study_of("fedavg", "flower")
    with pytest.raises(ConfigError, match=r"pip install 'fedsift\[flower\]'"):
        run(study, new_run(study, tmp_path))


def test_a_deployed_run_is_not_gone_on_with_as_a_simulation(tmp_path: Path) -> None:
    study = study_of("fedavg", "flower")
    folder = new_run(study, tmp_path)
    folder.write_text("federation.toml", "sites = []\n")
    with pytest.raises(RunError, match="fedsift flower start"):
        run(study, folder)


def test_another_device_than_the_processor_is_refused(tmp_path: Path) -> None:
    study = study_of("fedavg", "flower")
    study = dataclasses.replace(study, engine=dataclasses.replace(study.engine, device="cuda"))
    with pytest.raises(ConfigError, match="trains on the CPU"):
        run(study, new_run(study, tmp_path))
