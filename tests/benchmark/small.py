"""A small table of real runs, and how tests compute it: in this process, or as a person would."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from fedsift.benchmark import running
from fedsift.benchmark.pool import JobNews, TableJob, do
from fedsift.benchmark.rows import read_rows
from fedsift.benchmark.table import Table, table_of

SCENARIO = "extra/freeloader-small"
STUDY: dict[str, Any] = {
    "data": {"name": "digits"},
    "partition": {"name": "iid", "sites": 3},
    "model": {"name": "linear"},
    "train": {"epochs": 1, "batch_size": 64, "lr": 0.05},
}
STUDY_FILE = """
[data]
name = "digits"
[partition]
name = "iid"
sites = 3
[model]
name = "linear"
[train]
epochs = 1
lr = 0.05
"""
"""The same as a person writes it, without a method."""
ROWS = [
    {"label": "FedAvg", "method": {"name": "fedavg", "rounds": 2}, "printed": [80.0, 70.0]},
    {"label": "FedLA", "method": {"name": "fedla", "rounds": 2}},
]
COLUMNS = [
    {"label": "clean"},
    {"label": "noisy", "noise": {"name": "fedcorr", "rho": 0.7, "tau": 0.5}},
]
CLAIM = {"text": "FedLA is above FedAvg", "order": ["FedLA", "FedAvg"]}


def small_table(**changes: Any) -> Table:
    """Two methods, two columns, two seeds on handwritten digits: a second in all."""
    content = {
        "what": "Digits",
        "scenario": SCENARIO,
        "all": {**STUDY, "noise": {"name": "clean"}, "method": {"name": "fedavg"}},
        "seeds": [1, 2],
        "figures": ["accuracy.best"],
        "rows": ROWS,
        "columns": COLUMNS,
        "claims": [CLAIM],
    }
    return table_of("digits", {**content, **changes})


def same_files(folder: Path) -> dict[str, Any]:
    """What the files of a table say that are the same for the same runs: all but the seconds."""
    rows = [
        {name: value for name, value in row.items() if name != "seconds"} for row in read_rows(folder / "table.csv")
    ]
    return {"table.csv": rows, **{name: (folder / name).read_bytes() for name in ("table.md", "table.tex")}}


def here(jobs: Sequence[TableJob], processes: int) -> Iterator[JobNews]:
    """The jobs one after the other in this process."""
    for job in jobs:
        yield do(job)


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "run_jobs", here)
