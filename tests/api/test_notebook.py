"""docs/first-steps.ipynb runs from top to bottom and shows what it says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

BOOK = Path(__file__).parents[2] / "docs" / "first-steps.ipynb"

CHECKS = """
assert run.noisy_sites == ["hospital 3"], run.noisy_sites
assert run.summary["detection"]["exact"]
assert run.summary["accuracy"]["final"] > 0.8
assert own.study["noise"] == {"name": "__main__:Lazy", "sites": 2}
assert [site["truth_noisy"] for site in own.sites] == [True, True, False, False, False]
"""


def test_the_cells_run_in_order(tmp_path: Path) -> None:
    book = json.loads(BOOK.read_text("utf-8"))
    assert (book["nbformat"], book["nbformat_minor"]) == (4, 5)
    cells = ["".join(cell["source"]) for cell in book["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] for cell in book["cells"] if cell["cell_type"] == "code")
    script = tmp_path / "cells.py"
    script.write_text("\n\n".join([*cells, CHECKS]), "utf-8")
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "digits.safetensors").is_file()
    assert (tmp_path / "report.html").is_file()
