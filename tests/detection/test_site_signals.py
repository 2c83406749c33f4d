"""Per-class losses, confidence and the ramp."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsift.core.errors import ConfigError, DataError
from fedsift.detection.indicators import confidence, means_of_sums, normalise, per_class_mean, per_class_sums
from fedsift.methods.fednoro import rampup


@given(seed=st.integers(0, 10_000), n=st.integers(0, 40))
@settings(max_examples=30, deadline=None)
def test_per_class_mean_is_a_mean_of_each_class(seed: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    losses, labels = rng.random(n), rng.integers(0, 5, n)
    got = per_class_mean(losses, labels, 5)
    for c in range(5):
        own = losses[labels == c]
        assert (math.isnan(got[c]) and not len(own)) or got[c] == pytest.approx(own.mean())


def test_sums_of_sites_add_up() -> None:
    first = per_class_sums([1.0, 2.0], [0, 2], 3)
    second = per_class_sums([5.0], [2], 3)
    means = means_of_sums(first[0] + second[0], first[1] + second[1])
    assert means[0] == 1.0
    assert math.isnan(means[1])
    assert means[2] == 3.5


def test_a_label_outside_the_classes_is_refused() -> None:
    with pytest.raises(DataError, match="3 classes"):
        per_class_mean([1.0, 1.0], [0, 3], 3)
    with pytest.raises(DataError, match="-1"):
        per_class_mean([1.0], [-1], 3)


@given(seed=st.integers(0, 10_000), sites=st.integers(1, 8))
@settings(max_examples=30, deadline=None)
def test_normalise_follows_equation_3(seed: int, sites: int) -> None:
    rng = np.random.default_rng(seed)
    table = rng.random((sites, 4))
    table[rng.random((sites, 4)) < 0.3] = np.nan
    got = normalise(table)
    for c in range(4):
        known = table[~np.isnan(table[:, c]), c]
        if len(known) == 0:
            assert np.isnan(got.filled[:, c]).all()
            assert (got.values[:, c] == 0).all()
            continue
        column = np.where(np.isnan(table[:, c]), known.min(), table[:, c])
        np.testing.assert_array_equal(got.filled[:, c], column)
        if known.max() - known.min() > 1e-12:
            np.testing.assert_allclose(got.values[:, c], (column - known.min()) / np.ptp(known))
            assert c in got.informative
        else:
            assert (got.values[:, c] == 0).all()
            assert c not in got.informative


def test_a_missing_entry_counts_as_the_cleanest() -> None:
    got = normalise([[np.nan, 1.0], [2.0, 3.0], [4.0, 2.0]])
    assert got.values[0].tolist() == [0.0, 0.0]
    assert got.values[:, 0].tolist() == [0.0, 0.0, 1.0]


def test_one_site_and_constant_columns_say_nothing() -> None:
    assert len(normalise([[0.3, 0.5]]).informative) == 0
    assert normalise([[1.0, 0.1], [1.0, 0.2]]).informative.tolist() == [1]


def test_a_diverged_site_is_named_as_such() -> None:
    with pytest.raises(DataError, match="diverged"):
        normalise([[np.inf, 1.0], [0.0, 1.0]])


def test_the_table_is_not_changed() -> None:
    table = np.array([[np.nan, 1.0], [2.0, 3.0]])
    normalise(table)
    assert np.isnan(table[0, 0])


def test_confidence() -> None:
    p = [[0.7, 0.2, 0.1], [0.3, 0.3, 0.4]]
    assert confidence(p, [1, 2]).tolist() == [0.2, 0.4]
    assert confidence(p, [1, 2], "max").tolist() == [0.7, 0.4]
    assert confidence(np.zeros((0, 3)), np.zeros(0)).shape == (0,)
    with pytest.raises(ConfigError, match="given"):
        confidence(p, [1, 2], "mean")  # type: ignore[arg-type]


def test_ramp_values_of_the_release() -> None:
    got = [rampup(t, 10, 49, 0.8) for t in (10, 15, 20, 29, 39, 49)]
    np.testing.assert_allclose(got, [0.0054, 0.018, 0.050, 0.215, 0.576, 0.8], atol=6e-4)


def test_ramp_is_flat_outside_and_rises_inside() -> None:
    assert rampup(-5, 10, 20) == rampup(10, 10, 20) == pytest.approx(math.exp(-5))
    assert rampup(20, 10, 20) == rampup(500, 10, 20) == 1.0
    inside = [rampup(t, 10, 20) for t in range(10, 21)]
    assert inside == sorted(inside)


def test_ramp_without_a_span_is_a_step() -> None:
    assert rampup(12, 12, 12, 0.8) == rampup(13, 12, 12, 0.8) == 0.8
    assert rampup(11, 12, 12, 0.8) == pytest.approx(0.8 * math.exp(-5))
