"""Runs that several tests read."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedsift.bench import running
from fedsift.bench.running import Outcome, run_table
from tests.bench.small import here, in_this_process, small_table

__all__ = ["in_this_process"]


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Outcome, Path]:
    """The small table, computed once, and the folder in which it lies."""
    out = tmp_path_factory.mktemp("bench")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(running, "carry_out", here)
        return run_table(small_table(), out), out
