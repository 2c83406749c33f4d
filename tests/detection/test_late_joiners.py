"""Scores over iterations, also for sites that missed some."""

from __future__ import annotations

import numpy as np
import pytest

from fedsift.core.errors import ConfigError
from fedsift.detection.mixtures import split_values
from fedsift.methods.fedcorr import complete, score_sites, standing

NAN = float("nan")


def test_scores_by_hand() -> None:
    table = [[1.0, 3.0], [2.0, 6.0]]
    assert score_sites(table, "cumulative").tolist() == [3.0, 9.0]
    assert score_sites(table, "mean").tolist() == [1.5, 4.5]
    assert score_sites(table, "latest").tolist() == [2.0, 6.0]
    assert score_sites(table, "completed").tolist() == [3.0, 9.0]


def test_a_missed_iteration_is_filled_by_the_sites_standing() -> None:
    """Iteration 2: mean 4, deviation 2 over (2, 6, 2, 6): the last site stands at +1. Iteration 1 had mean 2 and
    deviation 1 over (1, 3, 2 +- ...), so it would have been at 3."""
    table = np.array([[1.0, 3.0, 1.0, NAN], [2.0, 6.0, 2.0, 6.0]])
    assert standing(table)[3] == pytest.approx(1.0)
    first = np.array([1.0, 3.0, 1.0])
    expected = first.mean() + first.std()
    assert complete(table)[0, 3] == pytest.approx(expected)
    assert score_sites(table)[3] == pytest.approx(6.0 + expected)
    assert score_sites(table)[:3].tolist() == [3.0, 9.0, 3.0]


def test_who_was_never_visited_has_no_score() -> None:
    table = np.array([[1.0, NAN], [2.0, NAN]])
    for kind in ("completed", "cumulative", "mean", "latest"):
        assert np.isnan(score_sites(table, kind)[1])  # type: ignore[arg-type]
    assert np.isnan(score_sites(np.array([[1.0, 2.0], [NAN, 1.0]]), "latest")[0])


def test_an_iteration_without_visits_and_one_without_spread() -> None:
    assert score_sites([[1.0, 2.0], [NAN, NAN]]).tolist() == [1.0, 2.0]
    # everybody alike in iteration 1: the newcomer stands in the middle
    assert score_sites([[2.0, 2.0, NAN], [1.0, 3.0, 3.0]])[2] == pytest.approx(5.0)


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ConfigError, match="score = 'sum'"):
        score_sites([[1.0]], "sum")  # type: ignore[arg-type]


def simulated(rng: np.random.Generator, sites: int, iterations: int, joined: int) -> tuple[np.ndarray, np.ndarray]:
    """LIDs that fall over the iterations, noisy sites (every third) half as large again; the last third joins late."""
    noisy = np.arange(sites) % 3 == 0
    level = np.linspace(9, 4, iterations)[:, None]
    table = level * (1 + 0.5 * noisy) * rng.normal(1, 0.05, (iterations, sites))
    table[: joined - 1, -(sites // 3) :] = np.nan
    return table, noisy


def test_newcomers_pass_as_clean_by_the_sum_and_not_when_completed() -> None:
    """Recall of noisy newcomers and false alarms among clean ones, over 50 federations of 30 sites."""
    found = {kind: [0, 0] for kind in ("completed", "cumulative", "mean")}
    late = slice(20, 30)
    total_noisy = total_clean = 0
    for seed in range(50):
        table, noisy = simulated(np.random.default_rng(seed), 30, 5, joined=4)
        total_noisy += int(noisy[late].sum())
        total_clean += int((~noisy[late]).sum())
        for kind, tally in found.items():
            marked = np.zeros(30, dtype=bool)
            marked[split_values(score_sites(table, kind)).noisy] = True  # type: ignore[arg-type]
            tally[0] += int((marked & noisy)[late].sum())
            tally[1] += int((marked & ~noisy)[late].sum())
    assert found["completed"][0] >= 0.98 * total_noisy
    assert found["completed"][1] <= 0.02 * total_clean
    assert found["cumulative"][0] <= 0.1 * total_noisy
    assert found["mean"][0] <= 0.5 * total_noisy
