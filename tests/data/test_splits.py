"""Splits: the fraction, the classes and the groups."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsift.core.errors import ConfigError
from fedsift.core.numbers import floor_count
from fedsift.data.splits import shares_to_counts, split, units_of


def rng():
    return np.random.default_rng(0)


def test_every_class_is_split_in_proportion():
    labels = np.repeat([0, 1, 2], [400, 100, 20])
    train, test = split(labels, 0.25, rng())
    assert np.bincount(labels[test]).tolist() == [100, 25, 5]
    assert len(train) + len(test) == 520


@given(st.lists(st.integers(0, 5), min_size=1, max_size=120), st.floats(0, 0.9), st.booleans())
@settings(max_examples=150, deadline=None)
def test_two_sides_make_the_whole_and_the_fraction_is_met(labels, fraction, grouped):
    array = np.array(labels)
    groups = np.arange(len(array)) // 4 if grouped else None
    train, test = split(array, fraction, rng(), groups)
    assert np.array_equal(np.sort(np.concatenate([train, test])), np.arange(len(array)))
    assert len(train) >= 1
    largest = 4 if grouped else 1
    assert abs(len(test) - fraction * len(array)) <= largest
    if groups is not None:
        assert not set(groups[train]) & set(groups[test])


def test_multi_label_rows_are_stratified_by_their_rarest_class():
    labels = np.zeros((400, 3), np.int64)
    labels[:, 0] = 1
    labels[:40, 1] = 1
    labels[:8, 2] = 1
    _, test = split(labels, 0.25, rng())
    assert labels[test].sum(axis=0).tolist() == [100, 10, 2]


def test_at_least_one_is_spared_where_possible():
    _, test = split(np.zeros(2, np.int64), 0.05, rng(), at_least_one=True)
    assert len(test) == 1
    _, test = split(np.zeros(1, np.int64), 0.5, rng(), at_least_one=True)
    assert len(test) == 0
    _, test = split(np.zeros(6, np.int64), 0.5, rng(), np.array(["only"] * 6), at_least_one=True)
    assert len(test) == 0


def test_fractions_outside_zero_and_one_are_refused():
    with pytest.raises(ConfigError):
        split(np.zeros(3, np.int64), 1.0, rng())


def test_counts_forgive_one_rounding_error():
    assert 0.29 * 100 < 29
    assert floor_count(0.29 * 100) == 29
    assert floor_count(0.29 * 100, forgiving=False) == 28
    assert floor_count(2.999) == 2


@given(st.lists(st.floats(0.001, 10), min_size=1, max_size=20), st.integers(0, 500))
@settings(deadline=None)
def test_shares_become_whole_numbers_that_sum_up(shares, total):
    array = np.array(shares)
    counts = shares_to_counts(array, total)
    assert counts.sum() == total
    assert (np.abs(counts - array / array.sum() * total) < 1 + 1e-6).all()


@pytest.mark.parametrize("missing", ["", "nan", np.nan])
def test_samples_without_a_group_are_not_one_group(missing: object) -> None:
    """Sixty of eighty samples have no patient: split by patient they must not all go to one side."""
    names = np.array([missing] * 60 + [7.0 if missing is np.nan else "p7"] * 20)
    units = units_of(names)
    assert len(set(units[:60].tolist())) == 60 and set(units[60:].tolist()) == {units[60]}
    assert units[60] not in units[:60]
    _, test = split(np.zeros(80, np.int64), 0.25, rng(), names)
    assert 0 < (test < 60).sum() < 60 and len(test) == pytest.approx(20, abs=1)
