"""Every golden case against the product; `--golden DIR` runs another folder of such files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from golden_adapters import all_adapters
from golden_harness import MISSING, VECTORS, MissingEntry, parameters, run_case

TABLE = all_adapters()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" not in metafunc.fixturenames:
        return
    chosen = metafunc.config.getoption("--golden")
    folder = Path(chosen) if chosen else VECTORS
    metafunc.parametrize(("topic", "case"), parameters(folder))


def test_golden(topic: str, case: dict[str, Any]) -> None:
    try:
        run_case(TABLE, topic, case)
    except MissingEntry as lacking:
        pytest.fail(f"{MISSING}{lacking}", pytrace=False)
