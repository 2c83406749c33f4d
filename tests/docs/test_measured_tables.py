"""Tables of docs/deployment.md that measurements make: the page says what the results say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="the benchmarks of a deployment need Flower")

ROOT = Path(__file__).parents[2]


def test_the_page_has_the_measured_phases() -> None:
    from benchmarks.phases.page import SECTION, table_of

    SECTION.check(table_of(json.loads((ROOT / "benchmarks/phases/results/phases.json").read_text("utf-8"))))


def test_the_page_has_the_floors_cost() -> None:
    from benchmarks.floor.__main__ import FLOORS, METHODS, SECTION, SEEDS, table_of

    rows = json.loads((ROOT / "benchmarks/floor/results/floor.json").read_text("utf-8"))
    assert {(r["method"], r["floor"], r["seed"]) for r in rows} == {
        (method, floor, seed) for method in METHODS for floor in FLOORS for seed in SEEDS
    }
    SECTION.check(table_of(rows))
