"""Every golden case against the product; `--golden DIR` runs another folder of such files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from golden_adapters import all_adapters
from golden_harness import MISSING, VECTORS, MissingEntry, load, run_case

TABLE = all_adapters()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" not in metafunc.fixturenames:
        return
    chosen = metafunc.config.getoption("--golden")
    folder = Path(chosen) if chosen else VECTORS
    found = [
        pytest.param(topic, case, id=f"{topic}-{case['op']}-{case['variant']}-{case['name']}")
        for topic, case in load(folder)
    ]
    if not found:
        raise pytest.UsageError(f"no golden vectors (*.json) in {folder}")
    metafunc.parametrize(("topic", "case"), found)


def test_golden(topic: str, case: dict[str, Any]) -> None:
    try:
        run_case(TABLE, topic, case)
    except MissingEntry as lacking:
        pytest.skip(f"{MISSING}{lacking}")
