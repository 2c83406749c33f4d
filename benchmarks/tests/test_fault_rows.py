"""Faults of real processes on loopback, as the page on faults has them: the functions are the benchmark's own."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("flwr")
from benchmarks.faults import references
from benchmarks.faults.__main__ import ALONE, ON_DIGITS
from benchmarks.faults.stand import standing
from benchmarks.faults.studies import study_of

TOGETHER = (
    "site killed, fednoro",
    "coordinator killed, fednoro",
    "messages read, fednoro",
    "start killed",
    "coordinator restored",
    "slow site",
    "only ca.crt",
    "plain text",
    "unlisted key",
    "foreign certificate",
    "expired certificate",
    "hostile app",
    "hostile coordinator",
    "hostile site",
    "oversize at the gateway",
    "corrupt bytes at the gateway",
    "flood",
    "superlink killed, fednoro",
)
SHORT = (
    "killed while writing",
    "disk changes bytes",
    "truncated data",
    "label out of range",
    "hostile pictures",
    "data that unpack",
    "long temporary path",
)


@pytest.mark.slow
@pytest.mark.flower
def test_a_consortium_lives_through_what_happens_to_its_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(references, "REFERENCES", tmp_path / "references.json")  # this machine's own
    with standing(tmp_path / "consortium", study_of("rhfl", tmp_path)) as stand:
        rows = [row for name in TOGETHER for row in ON_DIGITS[name](stand)]
    assert {row.name: row.outcome for row in rows if not row.passed} == {}
    assert {"site killed, fednoro", "pinned app looks for data"} <= {row.name for row in rows}


@pytest.mark.slow
@pytest.mark.parametrize("name", SHORT)
def test_one_program_alone(name: str, tmp_path: Path) -> None:
    rows = list(ALONE[name](tmp_path / "alone"))
    assert {row.name: row.outcome for row in rows if not row.passed} == {}
