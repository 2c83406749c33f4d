"""Folds keep groups whole and classes even; copies are found by their bytes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsift.training.crossfit import copies, deal_folds, disagreeing_copies, joined


def random(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_single_samples_are_dealt_as_evenly_as_can_be_in_every_class() -> None:
    strata = np.repeat([0, 1, 2], [50, 23, 4])
    folds = deal_folds(strata, 5, random())
    for k, size in enumerate((50, 23, 4)):
        held = np.bincount(folds[strata == k], minlength=5)
        assert held.max() - held.min() <= 1
        assert held.sum() == size
    total = np.bincount(folds, minlength=5)
    assert total.max() - total.min() <= 1


@given(
    n=st.integers(1, 60),
    folds=st.integers(1, 6),
    classes=st.integers(1, 4),
    units=st.integers(1, 30),
    seed=st.integers(0, 1000),
)
def test_a_group_is_never_in_two_folds(n: int, folds: int, classes: int, units: int, seed: int) -> None:
    draw = random(seed)
    strata, groups = draw.integers(0, classes, n), draw.integers(0, units, n)
    found = deal_folds(strata, folds, random(seed), groups)
    assert found.shape == (n,)
    assert set(found.tolist()) <= set(range(folds))
    for group in np.unique(groups):
        assert len(set(found[groups == group].tolist())) == 1


def test_another_seed_deals_otherwise_and_the_same_seed_alike() -> None:
    strata = np.zeros(40, np.int64)
    assert (deal_folds(strata, 5, random(1)) == deal_folds(strata, 5, random(1))).all()
    assert (deal_folds(strata, 5, random(1)) != deal_folds(strata, 5, random(2))).any()


def test_fewer_samples_than_folds_leave_folds_empty() -> None:
    assert sorted(deal_folds(np.array([0, 0]), 5, random()).tolist()) == [0, 1]
    assert deal_folds(np.zeros(0, np.int64), 5, random()).tolist() == []
    with pytest.raises(ValueError, match="at least one"):
        deal_folds(np.zeros(3, np.int64), 0, random())


def test_copies_are_equal_to_the_byte_and_links_pass_through() -> None:
    pictures = np.array([[1, 2], [3, 4], [1, 2], [3, 5]], np.uint8)
    found = copies(pictures)
    assert len(set(found.tolist())) == 3
    assert found[0] == found[2]
    # patients 7, 7, 8, 9; pictures 0 and 2 are copies: so patients 7 and 8 stay together
    units = joined(np.array([7, 7, 8, 9]), found)
    assert units[0] == units[1] == units[2] != units[3]


def test_copies_with_different_labels_are_named_both() -> None:
    units = np.array([0, 0, 1, 1, 2])
    assert disagreeing_copies(units, np.array([3, 4, 5, 5, 0])).tolist() == [True, True, False, False, False]
    rows = np.array([[0, 1], [0, 1], [1, 1], [0, 1], [0, 0]])
    assert disagreeing_copies(units, rows).tolist() == [False, False, True, True, False]
    assert disagreeing_copies(np.zeros(0, np.int64), np.zeros(0, np.int64)).tolist() == []
