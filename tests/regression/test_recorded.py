"""Results of small runs are what they were when they were recorded, to the byte where the machine is of the same kind.

After a change that means to change results, record anew: `python -m tests.regression.record
tests/regression/recorded.json`, and say in the commit what changed and why.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.regression import record

RECORDED: dict[str, Any] = json.loads(Path(__file__).with_name("recorded.json").read_text("utf-8"))
FOUND: dict[str, Any] = RECORDED["found"]
BITS = ("model", "rounds", "sites")
"""Digests of what holds floating-point numbers: compared on the kind of machine that made them."""
HERE = record.machine() == RECORDED["machine"]


def same(found: Any, recorded: Any) -> bool:
    """Equal; on another kind of machine numbers may differ in their last digits and digests say nothing."""
    if HERE:
        return bool(found == recorded)
    if isinstance(recorded, dict) and isinstance(found, dict):
        return found.keys() == recorded.keys() and all(
            key in BITS or same(found[key], recorded[key]) for key in recorded
        )
    if isinstance(recorded, float) and isinstance(found, float):
        return found == pytest.approx(recorded, abs=0.02)
    return True


@pytest.mark.parametrize(
    "part", [part for part in record.PARTS if part is not record.on_flower], ids=lambda part: part.__name__
)
def test_nothing_changed(part: Any) -> None:
    changed = []
    with record.place_for(part) as place:
        for key, value in part(place):
            if not same(value, FOUND[key]):
                changed.append(difference(key, value, FOUND[key]))
    assert not changed, "\n".join(changed)


@pytest.mark.slow
@pytest.mark.flower
def test_nothing_changed_on_flower() -> None:
    pytest.importorskip("ray", reason="Flower's simulation needs ray")
    test_nothing_changed(record.on_flower)


def difference(key: str, value: Any, recorded: Any) -> str:
    if isinstance(value, dict) and isinstance(recorded, dict):
        parts = sorted(part for part in value.keys() | recorded.keys() if value.get(part) != recorded.get(part))
        return f"{key}: " + ", ".join(
            f"{part} ({value.get(part)!s:.40} for {recorded.get(part)!s:.40})" for part in parts[:8]
        )
    return f"{key}: {value!s:.200} for {recorded!s:.200}"
