"""The pages of results: what is required is there before it is computed, and the leaderboard tells its settings."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.tables import page as pages
from benchmarks.tables.standings import settings
from fedsift.benchmark.table import find_table


def test_a_required_table_is_on_the_page_before_a_run_of_it_is_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(pages, "HERE", tmp_path)
    text = pages.page()
    for required in pages.REQUIRED:
        table = find_table(required)
        part = text[text.index(f": {required}\n") :].partition("\n## ")[0]
        assert f"\n0 of {table.runs} runs: open." in part
        assert part.count("**open**") == len(table.claims) > 0
    assert set(re.findall(r"^## .*: ([a-z0-9-]+)$", text, re.M)) == set(pages.REQUIRED)


def test_the_leaderboard_tells_every_setting_of_its_file() -> None:
    table = find_table("leaderboard")
    told = " ".join(settings(table).split())
    for key, value in table.everywhere["train"].items():
        assert f"{key} {value}" in told or key == "augment"
    for part in ("RoFL: pseudo_from 13", "FedNoRo: rounds 10, warm_up 4", "FedELC: warm_up 13", "crop 0"):
        assert part in told
    assert "FedAvg:" not in told, "it has what all rows have"
