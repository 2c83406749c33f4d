"""Mixtures: clear groups are found whatever the seed, and nothing is found where there is nothing to find."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsift.core.errors import ConfigError, DataError
from fedsift.detection.mixtures import noisy_component, split_by_vote, split_matrix, split_values, vote


@given(seed=st.integers(0, 1000), clean=st.integers(3, 20), noisy=st.integers(3, 20))
@settings(max_examples=15, deadline=None)
def test_two_clear_groups(seed: int, clean: int, noisy: int) -> None:
    rng = np.random.default_rng(seed)
    values = np.concatenate([rng.normal(1, 0.1, clean), rng.normal(5, 0.1, noisy)])
    order = rng.permutation(len(values))
    split = split_values(values[order], seed=seed)
    assert set(split.noisy.tolist()) == set(np.flatnonzero(order >= clean).tolist())
    assert split.fraction == pytest.approx(noisy / (clean + noisy))
    assert sorted([*split.noisy.tolist(), *split.clean.tolist()]) == list(range(clean + noisy))
    assert split.means is not None
    assert split.means[0, 0] < split.means[1, 0]


@pytest.mark.parametrize("values", [[], [1.9], [2.0] * 7, [1.0, 1.0 + 1e-9], [0.0, 1e-12, 2e-12]])
def test_nothing_to_part_means_nobody_is_noisy(values: list[float]) -> None:
    split = split_values(values)
    assert split.noisy.tolist() == []
    assert split.fraction == 0.0
    assert split.clean.tolist() == list(range(len(values)))


def test_two_values_are_two_groups() -> None:
    assert split_values([3.0, 1.0]).noisy.tolist() == [0]


def test_an_empty_component_means_nobody_is_noisy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "fedsift.detection.mixtures._fit",
        lambda rows, *_: (np.zeros(len(rows), dtype=int), np.array([[1.0], [0.0]])),
    )
    assert split_values([1.0, 2.0, 3.0]).noisy.tolist() == []


def test_rule_decides_between_sum_and_norm() -> None:
    means = [[0.9, 0.0, 0.0], [0.4, 0.4, 0.3]]
    assert noisy_component(means, "sum") == 1
    assert noisy_component(means, "norm") == 0
    rng = np.random.default_rng(0)
    rows = np.concatenate([rng.normal(mean, 0.01, (8, 3)) for mean in means])
    assert split_matrix(rows, "sum").noisy.tolist() == list(range(8, 16))
    assert split_matrix(rows, "norm").noisy.tolist() == list(range(8))
    with pytest.raises(ConfigError, match="noisy_by"):
        noisy_component(means, "max")  # type: ignore[arg-type]


def test_all_sites_alike_or_no_column() -> None:
    assert split_matrix(np.zeros((5, 3))).noisy.tolist() == []
    assert split_matrix(np.zeros((5, 0))).noisy.tolist() == []
    assert split_matrix(np.zeros((1, 3))).noisy.tolist() == []


def test_missing_values_are_refused() -> None:
    with pytest.raises(DataError, match="fill"):
        split_matrix([[0.0, np.nan], [1.0, 1.0]])


def test_vote() -> None:
    assert vote([[1, 2], [3], [2, 1], [3]]) == ([1, 2], 2)
    assert vote([[3], [1, 2], [2, 1], [3]]) == ([3], 2)
    assert vote([[], [], [1]]) == ([], 2)
    assert vote([]) == ([], 0)


def test_vote_over_seeds_reports_every_fit() -> None:
    rng = np.random.default_rng(1)
    rows = np.concatenate([rng.normal(0.1, 0.03, (7, 4)), rng.normal(0.8, 0.03, (5, 4))])
    found = split_by_vote(rows)
    assert found.noisy.tolist() == [7, 8, 9, 10, 11]
    assert len(found.sets) == 9
    assert found.votes == found.sets.count((7, 8, 9, 10, 11))


def test_a_fit_gives_the_same_result_again_and_leaves_the_thread_count_alone() -> None:
    values = np.random.default_rng(2).normal(size=60)
    before = torch.get_num_threads()
    assert split_values(values, 3).noisy.tolist() == split_values(values, 3).noisy.tolist()
    assert torch.get_num_threads() == before
