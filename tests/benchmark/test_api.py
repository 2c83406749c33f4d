"""`fedsift.bench` from Python."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import fedsift
from fedsift.benchmark.running import TableOutcome
from tests.benchmark.small import CLAIM, COLUMNS, ROWS, SCENARIO, small_table


@pytest.mark.usefixtures("in_this_process")
def test_a_table_from_python(made: tuple[TableOutcome, Path], tmp_path: Path) -> None:
    """The runs are there already; the table is asked for by its content."""
    _, out = made
    shutil.copytree(out / "cells", tmp_path / "cells")
    content = {
        "name": "mine", "scenario": SCENARIO, "all": dict(small_table().everywhere), "rows": ROWS,
        "columns": COLUMNS, "claims": [CLAIM], "figures": ["accuracy.best"],
    }  # fmt: skip
    table = fedsift.bench(content, seeds=[1, 2], out=tmp_path, progress=False)
    assert repr(table) == f"Bench('mine', 8 of 8 runs, folder='{tmp_path / 'mine'}')"
    assert table.entries.column("row") == ["FedAvg", "FedAvg", "FedLA", "FedLA"]
    assert table.entries[0]["printed"] == 80.0
    assert table.claims[0]["text"] == CLAIM["text"]
    assert table.failures == {}
    assert table.markdown() == (tmp_path / "mine" / "table.md").read_text("utf-8")
