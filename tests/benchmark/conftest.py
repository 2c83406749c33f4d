"""Runs that several tests read."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedsift.benchmark import running
from fedsift.benchmark.running import TableOutcome, run_table
from tests.benchmark.small import here, in_this_process, small_table

__all__ = ["in_this_process"]


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[TableOutcome, Path]:
    """The small table, computed once, and the folder in which it lies."""
    out = tmp_path_factory.mktemp("bench")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(running, "run_jobs", here)
        return run_table(small_table(), out), out
