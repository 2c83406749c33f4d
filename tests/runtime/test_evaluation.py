"""Evaluation at the sites: what a minimum count withholds makes an interval, which holds the truth."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits

from fedsift.report.words import headline
from fedsift.runs.reading import read_run
from fedsift.study.running import new_run, run
from fedsift.study.study import Study

SMALL: dict[str, Any] = {
    "partition": {"name": "bernoulli-dirichlet", "sites": 12, "p": 0.7, "alpha": 1.0},
    "model": {"name": "linear"},
    "train": {"epochs": 1, "batch_size": 16, "lr": 0.05},
    "evaluate": {"held_out": 0.3},
}


def played(tmp_path: Path, method: str, min_count: int) -> Any:
    digits = load_digits()
    np.savez(tmp_path / "own.npz", images=(16 * digits.images).clip(max=255).astype(np.uint8), labels=digits.target)
    table = {**SMALL, "method": {"name": method, "rounds": 2}, "federation": {"min_count": min_count}}
    study = Study.from_table({**table, "data": {"name": "npz", "path": str(tmp_path / "own.npz")}})
    folder = new_run(study, tmp_path)
    run(study, folder)
    return read_run(folder.path)


@pytest.mark.parametrize("method", ["fedavg", "local"])
def test_a_minimum_count_leaves_intervals_that_hold_the_truth(tmp_path: Path, method: str) -> None:
    free, careful = (played(tmp_path, method, count) for count in (0, 3))
    assert free.intervals == []
    assert careful.curves == []
    for name in careful.intervals:
        for (_, true), (_, low, high) in zip(free.curve(name), careful.band(name), strict=True):
            assert low <= true <= high
            assert low < high
    assert "%" in headline(free)
    assert "%" not in headline(careful)
