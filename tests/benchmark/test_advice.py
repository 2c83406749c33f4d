"""The leaderboard by situation: ranks by hand, who counts, and that the package carries what the results say."""

from __future__ import annotations

from typing import Any

import pytest

from fedsift.benchmark.advice import (
    SHOWN,
    SITUATIONS,
    SituationRanking,
    advice_for,
    known_rankings,
    rankings_of,
    situation_of,
)
from fedsift.benchmark.store import RunRecord
from fedsift.benchmark.summary import Results, results_of
from fedsift.benchmark.table import find_table
from fedsift.methods._base import methods

EVEN = "some sites are clean, all have every class"
FIRST, SECOND = SITUATIONS[EVEN]


def made_up(*seeds: dict[tuple[str, str], float], oracle: tuple[str, ...] = ()) -> Results:
    """A leaderboard with these accuracies, one dict a seed."""
    placed = []
    for seed, values in enumerate(seeds, 1):
        for (row, column), value in values.items():
            outcome: dict[str, Any] = {
                "scores": {"accuracy": {"last": value, "best": value}}, "curve": {"round": [], "visits": []},
                "participations": 1, "bytes_down": 1, "bytes_up": 1, "rounds": 1,
            }  # fmt: skip
            if row in oracle:
                outcome["oracle"] = "the noise rate"
            record = RunRecord(f"{row}|{column}|{seed}", row + column, "1", "2", outcome)
            placed.append((row, column, seed, record))
    table = find_table("leaderboard").changed(seeds=tuple(range(1, len(seeds) + 1)))
    return results_of(table, placed, len(placed))


def even(results: Results) -> SituationRanking:
    return next(one for one in rankings_of(results) if one.situation == EVEN)


VALUES = {
    ("FedAvg", FIRST): 0.50, ("FedAvg", SECOND): 0.60,
    ("FedLA", FIRST): 0.55, ("FedLA", SECOND): 0.59,
    ("FedNoRo", FIRST): 0.70, ("FedNoRo", SECOND): 0.58,
    ("RoFL", FIRST): 0.90,
}  # fmt: skip


def test_a_situation_by_hand() -> None:
    """Ranks: FedAvg 3 and 1, FedLA 2 and 2, FedNoRo 1 and 3; RoFL has no result in the second column."""
    found = even(made_up(VALUES))
    assert {row.row: row.mean_rank for row in found.rows} == {"FedAvg": 2.0, "FedLA": 2.0, "FedNoRo": 2.0}
    noro = next(row for row in found.rows if row.row == "FedNoRo")
    assert (noro.method, noro.accuracy, noro.worst, noro.by_seed) == ("fednoro", 64.0, 58.0, {"1": 64.0})
    advice = found.advice()
    assert (advice.methods, advice.reference) == (3, "FedAvg")
    best = next(one for one in advice.best if one.method == "fednoro")
    assert (best.above_reference, best.low, best.high, best.seeds) == (9.0, None, None, 1)
    assert even(made_up({**VALUES, ("FedNoRo", SECOND): 0.65})).rows[0].row == "FedNoRo"


def with_more(*rows: tuple[str, float]) -> dict[tuple[str, str], float]:
    """The values, and rows that are as good in both columns."""
    return {**VALUES, **{(row, column): value for row, value in rows for column in (FIRST, SECOND)}}


def test_a_row_is_named_with_what_makes_it_another_method() -> None:
    best, *others = even(made_up(with_more(("GCE", 0.95)))).advice().best
    assert (best.method, best.named) == ("fedavg", "fedavg loss=gce")
    assert {other.named for other in others} <= {"fedavg", "fedla", "fednoro"}


def test_rows_that_the_first_was_not_told_apart_from_are_known() -> None:
    """GCE is above FedLA by 1, 3 and 2 points (t interval from -0.5), and above SCE by 10, 11 and 12."""
    seeds = [
        with_more(("GCE", 0.90), ("FedLA", gap), ("SCE", far))
        for gap, far in ((0.89, 0.80), (0.87, 0.79), (0.88, 0.78))
    ]
    found = even(made_up(*seeds))
    assert found.rows[0].row == "GCE"
    assert [row.row for row in found.level()] == ["FedLA"]
    assert SituationRanking(EVEN, "FedAvg", ()).level() == ()


def test_what_does_not_fit_makes_room_for_the_next() -> None:
    """The best three are left out, and three others are named: the whole ranking is known, not its head."""
    values = with_more(("FedELC", 0.95), ("FedCorr", 0.94), ("FedCorr+LA", 0.93), ("JointOpt", 0.92))
    ranking = even(made_up(values))
    assert [best.method for best in ranking.advice().best] == ["fedelc", "fedcorr", "fedcorr"]
    assert len(ranking.rows) == 7
    left = ranking.advice(unfit=["fedelc", "fedcorr"]).best
    assert len(left) == SHOWN
    assert left[0].method == "joint-opt"
    assert not {"fedelc", "fedcorr"} & {best.method for best in left}
    everyone = {row.method for row in ranking.rows}
    assert ranking.advice(unfit=everyone).best == ()


def test_the_gain_has_an_interval_over_seeds_and_close_rows_are_not_separated() -> None:
    """Gains of 34, 36 and 38 points: 36 ± 4.303 x 2 / sqrt(3). SCE beats or loses to GCE; FedLA is far behind."""
    seeds = [with_more(("GCE", 0.55 + gce), ("SCE", 0.55 + sce)) for gce, sce in
             ((0.34, 0.33), (0.36, 0.36), (0.38, 0.385))]  # fmt: skip
    first, second, *_ = even(made_up(*seeds)).advice().best
    assert (first.named, second.named) == ("fedavg loss=gce", "fedavg loss=sce")
    assert (first.above_reference, first.seeds) == (pytest.approx(36.0), 3)
    assert (first.low, first.high) == (pytest.approx(31.0317, abs=1e-3), pytest.approx(40.9683, abs=1e-3))
    assert even(made_up(*seeds)).advice().separated is False
    alone = [
        {place: value for place, value in values.items() if place[0] not in ("SCE", "FedNoRo")} for values in seeds
    ]
    assert even(made_up(*alone)).advice().separated is True
    assert even(made_up(VALUES)).advice().separated is False, "one seed separates nothing"


def test_who_was_told_the_truth_does_not_count() -> None:
    assert "FedNoRo" not in {row.row for row in even(made_up(VALUES, oracle=("FedNoRo",))).rows}


def test_without_results_there_is_no_advice() -> None:
    for ranking in rankings_of(made_up({})):
        assert ranking.rows == ()
        assert ranking.advice().best == ()


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
    known = known_rankings()
    assert all(row.method in methods for one in known for row in one.rows)
    assert all(len(one.rows) > SHOWN for one in known), "the whole ranking is kept, not its head"
