"""When the page says that a method learns, and what it says of one that is behind: by hand."""

from __future__ import annotations

import math

import pytest
from benchmarks.learns import reasons
from benchmarks.learns.chance import balanced_deviation, hanley_mcneil, lower_end
from benchmarks.learns.page import TESTS, judged, page, read


def test_lower_ends_by_hand() -> None:
    """Wilson of 30 in 100; two classes of 4 and 16: sqrt(1/16 + 1/64) / 2; AUC 1/2 with one of each: sqrt(1/4)."""
    assert lower_end("accuracy", 0.3, 100, []) == pytest.approx(0.21895, abs=1e-5)
    assert balanced_deviation([4, 16, 0]) == pytest.approx(math.sqrt(5 / 64) / 2)
    assert lower_end("bacc", 0.5, 20, [4, 16]) == pytest.approx(0.5 - 1.96 * math.sqrt(5 / 64) / 2, abs=1e-4)
    assert hanley_mcneil(0.5, 1, 1) == pytest.approx(0.5)
    # A = 0.8: Q1 = 0.8 / 1.2, Q2 = 1.28 / 1.8
    spread = 0.16 + 9 * (2 / 3 - 0.64) + 19 * (1.28 / 1.8 - 0.64)
    assert hanley_mcneil(0.8, 10, 20) == pytest.approx(math.sqrt(spread / 200))
    assert lower_end("auc", 0.8, 30, [10, 0, 30]) == pytest.approx(
        0.8 - 1.96 * math.sqrt(spread / 200), abs=1e-4
    )
    with pytest.raises(ValueError, match="'f1'"):
        lower_end("f1", 0.5, 10, [])


def test_what_learns_and_what_is_near() -> None:
    def cell(method: str, clean: float, noisy: float) -> dict[str, object]:
        return {
            "kind": "cifar10",
            "method": method,
            "metric": "accuracy",
            "chance": 0.1,
            "clean": clean,
            "noisy": noisy,
        }

    cells = [cell("fedavg", 0.5, 0.4), cell("a", 0.471, 0.115), cell("b", 0.469, 0.105)]
    assert [judged(one, cells)[:2] for one in cells] == [(True, True), (True, True), (False, False)]


def test_a_reason_stands_with_its_figures_or_is_called_supposed() -> None:
    tried = {"what": "more rounds", "fair": True, "value": 0.48, "reference_value": 0.5}
    reason = {"words": "it is slow", "seed": 7, "tries": [tried]}
    assert reasons.words(reason) == "it is slow (more rounds: 48.0 where FedAvg has 50.0; seed 7)"
    assert reasons.catches_up(reason) == "more rounds"
    for change in ({"value": 0.46}, {"fair": False}, {"value": None}):
        assert reasons.catches_up({**reason, "tries": [{**tried, **change}]}) is None
    assert reasons.words({**reason, "tries": []}) == "supposed, not shown by a run: it is slow"
    assert reasons.catches_up(None) is None


def test_every_row_that_is_behind_has_been_looked_into() -> None:
    assert "not looked into" not in page()
    assert {cell["kind"] for cell in read()} == set(TESTS)
