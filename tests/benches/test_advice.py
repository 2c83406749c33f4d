"""The leaderboard by situation: ranks by hand, who counts, and that the package carries what the results say."""

from __future__ import annotations

from typing import Any

import pytest

from fedsift.benches.advice import SITUATIONS, advice_for, advice_of, known_advice, situation_of
from fedsift.benches.library import find_table
from fedsift.benches.store import Record
from fedsift.benches.summary import Results, results_of
from fedsift.methods import methods

EVEN = "some sites are clean, all have every class"
FIRST, SECOND = SITUATIONS[EVEN]


def made_up(values: dict[tuple[str, str], float], oracle: tuple[str, ...] = ()) -> Results:
    """A leaderboard of one seed with these accuracies."""
    placed = []
    for (row, column), value in values.items():
        outcome: dict[str, Any] = {
            "scores": {"accuracy": {"last": value, "best": value}}, "curve": {"round": [], "visits": []},
            "participations": 1, "bytes_down": 1, "bytes_up": 1, "rounds": 1,
        }  # fmt: skip
        if row in oracle:
            outcome["oracle"] = "the noise rate"
        placed.append((row, column, 1, Record(f"{row}|{column}", row + column, "1", "2", outcome)))
    return results_of(find_table("leaderboard").changed(seeds=(1,)), placed, len(values))


VALUES = {
    ("FedAvg", FIRST): 0.50, ("FedAvg", SECOND): 0.60,
    ("FedLA", FIRST): 0.55, ("FedLA", SECOND): 0.59,
    ("FedNoRo", FIRST): 0.70, ("FedNoRo", SECOND): 0.58,
    ("RoFL", FIRST): 0.90,
}  # fmt: skip


def test_a_situation_by_hand() -> None:
    """Ranks: FedAvg 3 and 1, FedLA 2 and 2, FedNoRo 1 and 3; RoFL has no result in the second column."""
    [found] = [one for one in advice_of(made_up(VALUES)) if one.situation == EVEN]
    assert (found.methods, found.seeds) == (3, 1)
    assert {best.row: best.mean_rank for best in found.best} == {"FedAvg": 2.0, "FedLA": 2.0, "FedNoRo": 2.0}
    noro = next(best for best in found.best if best.row == "FedNoRo")
    assert (noro.method, noro.accuracy, noro.worst, noro.above_reference) == ("fednoro", 64.0, 58.0, 9.0)
    better = {**VALUES, ("FedNoRo", SECOND): 0.65}
    [found] = [one for one in advice_of(made_up(better)) if one.situation == EVEN]
    assert found.best[0].row == "FedNoRo"


def test_a_row_is_named_with_what_makes_it_another_method() -> None:
    with_loss = {**VALUES, ("GCE", FIRST): 0.95, ("GCE", SECOND): 0.95}
    [found] = [one for one in advice_of(made_up(with_loss)) if one.situation == EVEN]
    best = found.best[0]
    assert (best.method, best.settings, best.named) == ("fedavg", "loss=gce", "fedavg loss=gce")
    assert {other.named for other in found.best[1:]} <= {"fedavg", "fedla", "fednoro"}


def test_who_was_told_the_truth_does_not_count() -> None:
    [found] = [one for one in advice_of(made_up(VALUES, oracle=("FedNoRo",))) if one.situation == EVEN]
    assert "FedNoRo" not in {best.row for best in found.best}


def test_without_results_there_is_no_advice() -> None:
    assert all(one.best == () for one in advice_of(made_up({})))


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("every", [True, False])
def test_every_situation_is_known_by_its_name(clean: bool, every: bool) -> None:
    name = situation_of(clean_sites=clean, every_class=every)
    assert name in SITUATIONS
    assert advice_for(clean_sites=clean, every_class=every).situation == name


def test_columns_and_methods_are_those_of_the_leaderboard() -> None:
    table = find_table("leaderboard")
    named = [column for columns in SITUATIONS.values() for column in columns]
    assert sorted(named) == sorted(column.label for column in table.columns)
    assert all(row.settings["method"]["name"] in methods for row in table.rows)
    assert all(best.method in methods for one in known_advice() for best in one.best)
