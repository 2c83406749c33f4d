"""When the page says that a method learns, and what it says of one that is behind: by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest

from benchmarks.learns import own, reasons, runs
from benchmarks.learns.__main__ import SEED
from benchmarks.learns.chance import balanced_deviation, hanley_mcneil, lower_end
from benchmarks.learns.page import TESTS, judged, own_line, page, read


def test_lower_ends_by_hand() -> None:
    """Wilson of 30 in 100; two classes of 4 and 16: sqrt(1/16 + 1/64) / 2; AUC 1/2 with one of each: sqrt(1/4)."""
    assert lower_end("accuracy", 0.3, 100, []) == pytest.approx(0.21895, abs=1e-5)
    assert balanced_deviation([4, 16, 0]) == pytest.approx(math.sqrt(5 / 64) / 2)
    assert lower_end("bacc", 0.5, 20, [4, 16]) == pytest.approx(0.5 - 1.96 * math.sqrt(5 / 64) / 2, abs=1e-4)
    assert hanley_mcneil(0.5, 1, 1) == pytest.approx(0.5)
    # A = 0.8: Q1 = 0.8 / 1.2, Q2 = 1.28 / 1.8
    federated = 0.16 + 9 * (2 / 3 - 0.64) + 19 * (1.28 / 1.8 - 0.64)
    assert hanley_mcneil(0.8, 10, 20) == pytest.approx(math.sqrt(federated / 200))
    assert lower_end("auc", 0.8, 30, [10, 0, 30]) == pytest.approx(0.8 - 1.96 * math.sqrt(federated / 200), abs=1e-4)
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


def kept(method: str, figure: float, seed: int, **more: Any) -> dict[str, Any]:
    made = {"kind": "cifar10", "method": {"name": method}, "set": [], "seed": seed, "wrong_labels": False}
    return {**made, "metric": "accuracy", "values": {"accuracy": figure, "bacc": figure / 2}, **more}


def book(*every: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {
        runs.Trial(one["kind"], one["method"], one["set"], one["seed"], one["wrong_labels"]).key: one for one in every
    }


def test_a_reason_stands_with_its_figures_or_is_called_supposed() -> None:
    tried = {"what": "without its guard", "method": {"name": "a"}, "reference": {"name": "fedavg"}}
    reason = {"kind": "cifar10", "words": "it is slow", "seed": 7, "tries": [tried]}
    known = book(kept("a", 0.48, 7), kept("fedavg", 0.5, 7))
    assert reasons.words(reason, known) == "it is slow (without its guard: 48.0 where FedAvg has 50.0; seed 7)"
    by_class = {**reason, "tries": [{**tried, "metric": "bacc", "beside": "its row"}]}
    assert reasons.words(by_class, known) == "it is slow (without its guard: 24.0 where its row has 25.0; seed 7)"
    for missing in (book(kept("a", 0.48, 7)), book(kept("a", 0.48, 8), kept("fedavg", 0.5, 7)), {}):
        assert reasons.words(reason, missing) == "supposed, not shown by a run: it is slow"


def test_the_best_on_the_tuning_seed_is_reported_on_the_other() -> None:
    a, b = (own.Candidate(name, {"name": name}) for name in ("a", "b"))
    entry = own.Entry("cifar10", "row", "fedavg", (a, b))
    tuning = [kept("a", 0.3, own.TUNING), kept("b", 0.4, own.TUNING)]
    assert entry.chosen(book(tuning[0])) is None  # as long as one was not tried nothing is chosen
    reported = [kept("a", 0.9, own.REPORTED), kept("b", 0.2, own.REPORTED)]
    assert entry.chosen(book(*tuning, *reported)) is b
    noisy = kept("b", 0.1, own.REPORTED, wrong_labels=True)
    assert entry.reported(book(*tuning, *reported, noisy)) == (0.2, 0.1)
    beside = own.Entry("cifar10", "fedavg", None, (own.Candidate("f", {"name": "f"}),))
    known = book(*tuning, *reported, noisy, kept("f", 0.22, own.REPORTED))
    like = {"kind": "cifar10", "metric": "accuracy", "chance": 0.1}
    line, well = own_line(entry, [entry, beside], known, like)
    assert "| b | 20.0 | -2.0 | 10.0 (9.0) | **no** | yes |" in line and not well


def test_no_row_is_chosen_on_the_seed_that_is_reported() -> None:
    assert own.TUNING != own.REPORTED == SEED
    assert {entry.reference for entry in own.read()} - {None} <= {entry.row for entry in own.read()}


def test_every_row_that_is_behind_has_a_reason_that_a_run_shows() -> None:
    text = page()
    for words in ("not looked into", "not shown by a run", "not run"):
        assert words not in text
    assert {cell["kind"] for cell in read()} == set(TESTS)
