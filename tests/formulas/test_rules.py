"""Krum, the geometric median, clipping, and the promise of all rules: a minority cannot carry the model away."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from fedsift.formulas.aggregation import (
    clipped_average,
    geometric_median,
    krum_choice,
    krum_scores,
    rules,
    shares_of,
    update_length,
)
from fedsift.protocol.messages import Weights

RULES = tuple(rules.names())


def aggregate_by(
    rule: str, models: Sequence[Weights], sizes: Sequence[float], start: Weights, hostile: float = 0.2
) -> Weights:
    return rules.get(rule)(models, sizes, start, hostile)


def model(*values: float) -> Weights:
    return {"w": torch.tensor(values, dtype=torch.float64), "steps": torch.tensor(3)}


def test_krum_scores_by_hand() -> None:
    # on a line at 0, 1, 2, 10: m = 4, f = 1, so one nearest neighbour counts
    places = torch.tensor([0.0, 1.0, 2.0, 10.0], dtype=torch.float64)
    squared = (places[:, None] - places[None, :]).square()
    assert krum_scores(squared, 1).tolist() == [1.0, 1.0, 1.0, 64.0]
    # f = 0: two neighbours: 0 has 1 + 4, 1 has 1 + 1, 2 has 1 + 4, 10 has 64 + 81
    assert krum_scores(squared, 0).tolist() == [5.0, 2.0, 5.0, 145.0]


def test_krum_takes_the_model_in_the_middle_of_the_others() -> None:
    models = [model(value) for value in (0.0, 1.0, 2.0, 10.0)]
    assert krum_choice(models, 0) == [1]
    assert krum_choice(models, 0, keep=3) == [0, 1, 2]
    assert krum_choice(models[:2], 1) == [0]
    assert krum_choice(models[:1], 1) == [0]


def test_the_geometric_median_of_three_corners_is_the_fermat_point() -> None:
    # the right-angled corners (0, 0), (1, 0), (0, 1): the point that sees every side under 120 degrees
    found = geometric_median([model(0, 0), model(1, 0), model(0, 1)], [1, 1, 1])["w"]
    side = (3 - 3**0.5) / 6
    assert torch.allclose(found, torch.tensor([side, side], dtype=torch.float64), atol=1e-6)


@given(seed=st.integers(0, 10_000), m=st.integers(3, 7), width=st.integers(1, 4))
@settings(max_examples=25, deadline=None)
def test_the_geometric_median_beats_every_neighbouring_point(seed: int, m: int, width: int) -> None:
    draw = np.random.default_rng(seed)
    points, sizes = draw.normal(size=(m, width)), draw.integers(1, 9, m)

    def cost(v: np.ndarray) -> float:
        return float((sizes * np.linalg.norm(points - v, axis=1)).sum())

    found = geometric_median([model(*row) for row in points], sizes.tolist())["w"].numpy()
    best = minimize(cost, points.mean(0), method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-12}).fun
    nearest = min(cost(row) for row in points)
    assert cost(found) <= min(best, nearest) * (1 + 1e-3)


def test_clipping_shortens_what_is_longer_than_the_median_and_nothing_else() -> None:
    start = model(0.0, 0.0)
    models = [model(3.0, 4.0), model(0.0, 1.0), model(0.0, -2.0)]
    assert [update_length(own, start) for own in models] == [5.0, 1.0, 2.0]
    # the median length is 2: the first becomes (1.2, 1.6)
    found = clipped_average(models, shares_of([1, 1, 1]), start)
    assert torch.allclose(found["w"], torch.tensor([1.2 / 3, 0.6 / 3], dtype=torch.float64))
    assert int(found["steps"]) == 3
    everything = clipped_average(models, shares_of([1, 1, 1]), start, longest=100.0)
    assert torch.allclose(everything["w"], torch.tensor([1.0, 1.0], dtype=torch.float64))


@pytest.mark.parametrize("rule", RULES)
def test_equal_models_stay_what_they_are(rule: str) -> None:
    models = [model(1.0, -2.0) for _ in range(5)]
    found = aggregate_by(rule, models, [5, 1, 1, 1, 1], model(0.0, 0.0))
    assert torch.allclose(found["w"], models[0]["w"], rtol=1e-14)
    assert found["steps"].dtype == torch.int64


@pytest.mark.parametrize("rule", RULES)
def test_one_model_is_taken_as_it_is(rule: str) -> None:
    assert torch.equal(aggregate_by(rule, [model(1.5)], [7], model(0.0))["w"], model(1.5)["w"])


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule != "mean"])
@pytest.mark.parametrize("attack", [1e6, -1e6])
def test_one_hostile_site_of_ten_moves_a_robust_rule_little(rule: str, attack: float) -> None:
    draw = np.random.default_rng(3)
    honest = [model(*(1.0 + 0.1 * draw.normal(size=6))) for _ in range(9)]
    start = model(*[0.0] * 6)
    found = aggregate_by(rule, [*honest, model(*[attack] * 6)], [10.0] * 10, start, hostile=0.2)
    alone = aggregate_by("mean", honest, [10.0] * 9, start)
    assert update_length(found, alone) < 0.6  # the honest updates are about 2.4 long


def test_the_mean_is_carried_away() -> None:
    """So that the test above cannot pass for a reason of its own."""
    found = aggregate_by("mean", [model(1.0)] * 9 + [model(1e6)], [10.0] * 10, model(0.0))
    assert float(found["w"][0]) > 1e4
