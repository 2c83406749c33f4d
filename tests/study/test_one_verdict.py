"""One verdict for a study: the same bytes idle and loaded, with and without workers, twice in one process."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from fedsift.runs.folder import RunFolder
from fedsift.study.running import new_run, run
from fedsift.study.study import Study
from fedsift.training import processes as processes_module


@contextmanager
def busy(processes: int = 3) -> Iterator[None]:
    """Other work on the machine, ended by its own id."""
    started = [subprocess.Popen([sys.executable, "-c", "while True: sum(range(9999))"]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def own_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of a person's own: 600 digits, a third of the labels wrong at every third one."""
    bunch = load_digits()
    images = np.round(bunch.images[:600] * 15.9375).astype(np.uint8)
    labels = bunch.target[:600].copy()
    labels[::3] = np.random.default_rng(0).integers(0, 10, 200)
    path = tmp_path_factory.mktemp("own") / "own.npz"
    np.savez(path, images=images, labels=labels)
    return path


@pytest.fixture(scope="module", autouse=True)
def no_worker_stays_behind() -> Iterator[None]:
    yield
    processes_module.close_workers()


def study(own_data: Path, **engine: Any) -> Study:
    return Study.from_table(
        {
            "seed": 4,
            "data": {"name": "npz", "path": str(own_data)},
            "partition": {"name": "bernoulli-dirichlet", "sites": 6},
            "noise": {"name": "as-given"},
            "model": {"name": "cnn"},
            "train": {"epochs": 1, "batch_size": 10, "lr": 0.05},
            "method": {"name": "fednoro", "rounds": 3, "warm_up": 2, "detection": "tested"},
            "engine": engine,
        }
    )


def outcome(study: Study, parent: Path) -> tuple[str, RunFolder, dict[str, Any]]:
    """A hash of the model's bytes, the folder and the summary."""
    folder = new_run(study, parent)
    summary = run(study, folder)
    [model] = folder.path.glob("*.safetensors")
    return hashlib.sha256(model.read_bytes()).hexdigest(), folder, summary


VERDICT = ("noisy_sites_found", "findings", "bacc", "trainers")


def test_a_loaded_machine_and_workers_change_nothing(own_data: Path, tmp_path: Path) -> None:
    alone, _, first = outcome(study(own_data), tmp_path)
    with busy():
        for engine in ({}, {"workers": 2}):
            model, _, summary = outcome(study(own_data, **engine), tmp_path)
            assert model == alone
            assert {key: summary[key] for key in VERDICT} == {key: first[key] for key in VERDICT}
    # a third of the labels are wrong at every site: the verdict is that nobody is clean
    assert first["findings"]["no_clean_reference"] and len(first["findings"]["level"]) == 6


def test_the_processs_threads_are_as_before(own_data: Path, tmp_path: Path) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        outcome(study(own_data), tmp_path)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_what_was_measured_is_written_and_repeats_the_run(own_data: Path, tmp_path: Path) -> None:
    measured, folder, summary = outcome(study(own_data, trainer="measure"), tmp_path)
    again = Study.from_file(folder.study_file)
    assert again.engine.cohorts == summary["trainers"] != {}
    repeated, _, _ = outcome(again, tmp_path)
    assert repeated == measured
    assert study(own_data).engine.cohorts == {}
