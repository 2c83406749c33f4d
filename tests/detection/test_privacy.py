"""Randomised response and what the server recovers from it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedsift.core.errors import ConfigError, DataError
from fedsift.formulas.privacy import (
    posterior,
    project_on_simplex,
    randomised_response,
    response_noise,
    response_probabilities,
    shrink_to_uniform,
)


def response_matrix(epsilon: float | None, classes: int) -> NDArray[np.float64]:
    """T[i][j] = P(released j | own label i)."""
    keep, other = response_probabilities(epsilon, classes)
    return np.where(np.eye(classes, dtype=np.bool_), keep, other)


def inverse(epsilon: float | None, classes: int) -> NDArray[np.float64] | None:
    """(T^T)^-1: what the server's recovery makes of each released label alone."""
    columns = [posterior(unit, epsilon).raw for unit in np.eye(classes)]
    return None if columns[0] is None else np.stack(columns, axis=1)


@given(epsilon=st.floats(0.01, 20), classes=st.integers(2, 30))
@settings(max_examples=40, deadline=None)
def test_matrix_and_its_inverse(epsilon: float, classes: int) -> None:
    t = response_matrix(epsilon, classes)
    e = math.exp(epsilon)
    np.testing.assert_allclose(np.diagonal(t), e / (e + classes - 1))
    np.testing.assert_allclose(t.sum(axis=1), 1.0)
    assert (t.max(axis=0) / t.min(axis=0)).max() == pytest.approx(e)  # what makes it epsilon-private
    found = inverse(epsilon, classes)
    assert found is not None
    np.testing.assert_allclose(found @ t.T, np.eye(classes), atol=1e-9)


def test_extremes_of_epsilon() -> None:
    np.testing.assert_array_equal(response_matrix(None, 3), np.eye(3))
    np.testing.assert_allclose(response_matrix(1e6, 3), np.eye(3))
    found = inverse(1e6, 3)
    assert found is not None
    np.testing.assert_allclose(found, np.eye(3))
    np.testing.assert_allclose(response_matrix(0.0, 4), 0.25)
    assert inverse(0.0, 4) is None
    with pytest.raises(ConfigError, match="epsilon"):
        response_probabilities(-0.1, 3)
    with pytest.raises(ConfigError, match="epsilon"):
        response_probabilities(float("nan"), 3)


def test_released_labels_follow_the_matrix() -> None:
    n, classes, epsilon = 40_000, 4, 0.9
    released = randomised_response(np.full(n, 2), epsilon, classes, np.random.default_rng(0))
    want = response_matrix(epsilon, classes)[2]
    got = np.bincount(released, minlength=classes) / n
    assert (np.abs(got - want) <= 5 * np.sqrt(want * (1 - want) / n)).all()


def test_release_without_noise_and_with_one_class() -> None:
    rng = np.random.default_rng(0)
    assert randomised_response([0, 1, 2], None, 3, rng).tolist() == [0, 1, 2]
    assert randomised_response([0, 0], 0.5, 1, rng).tolist() == [0, 0]


@given(seed=st.integers(0, 10_000), classes=st.integers(2, 12), epsilon=st.sampled_from([0.01, 0.2, 1.0, 5.0]))
@settings(max_examples=40, deadline=None)
def test_posterior(seed: int, classes: int, epsilon: float) -> None:
    counts = np.random.default_rng(seed).integers(1, 200, classes)
    got = posterior(counts, epsilon)
    p = counts / counts.sum()
    np.testing.assert_allclose(got.raw, np.linalg.solve(response_matrix(epsilon, classes).T, p), rtol=1e-6, atol=1e-9)
    assert got.raw is not None
    assert got.raw.sum() == pytest.approx(1.0)
    for shares in (got.clipped, got.projected):
        assert (shares >= 0).all()
        assert shares.sum() == pytest.approx(1.0)


def test_posterior_recovers_what_was_randomised() -> None:
    q = np.array([0.5, 0.3, 0.15, 0.05])
    got = posterior(1e6 * (response_matrix(0.7, 4).T @ q), 0.7)
    np.testing.assert_allclose(got.raw, q, atol=1e-9)
    np.testing.assert_allclose(got.clipped, q, atol=1e-9)
    np.testing.assert_allclose(got.projected, q, atol=1e-9)


def test_epsilon_zero_is_uniform_and_none_is_exact() -> None:
    assert posterior([9, 1], 0.0).raw is None
    assert posterior([9, 1], 0.0).clipped.tolist() == [0.5, 0.5]
    assert posterior([9, 1], None).projected.tolist() == pytest.approx([0.9, 0.1])


def test_an_empty_or_negative_histogram_is_refused() -> None:
    for counts in ([0, 0], [-1, 2], [[1, 2]], [np.nan, 1]):
        with pytest.raises(DataError, match="histogram"):
            posterior(counts, 1.0)


@given(values=st.lists(st.floats(-5, 5), min_size=1, max_size=8))
@settings(max_examples=60, deadline=None)
def test_projection_is_the_nearest_distribution(values: list[float]) -> None:
    v = np.array(values)
    got = project_on_simplex(v)
    assert (got >= 0).all()
    assert got.sum() == pytest.approx(1.0)
    # Optimality: v - got is the same for all kept entries, and not larger for the others.
    gap = v - got
    kept = got > 0
    np.testing.assert_allclose(gap[kept], gap[kept][0], atol=1e-9)
    assert (gap[~kept] <= gap[kept][0] + 1e-9).all()


def test_projection_of_huge_entries() -> None:
    np.testing.assert_allclose(project_on_simplex([4e17, -4e17, 0.0]), [1.0, 0.0, 0.0])
    tiny = posterior([3, 2, 1], 1e-17)
    assert tiny.projected.sum() == pytest.approx(1.0)


def test_noise_of_the_recovered_shares_as_simulated() -> None:
    rng = np.random.default_rng(1)
    labels = np.repeat([0, 1, 2, 3], [60, 30, 10, 0])
    truth = np.bincount(labels, minlength=4) / 100
    errors = []
    for _ in range(2000):
        counts = np.bincount(randomised_response(labels, 1.0, 4, rng), minlength=4)
        raw = posterior(counts, 1.0).raw
        assert raw is not None
        errors.append(float(((raw - truth) ** 2).sum()))
    assert np.mean(errors) == pytest.approx(response_noise(1.0, 4, 100), rel=0.05)
    assert response_noise(None, 4, 100) == 0.0
    assert response_noise(0.0, 4, 100) == math.inf


def test_shrinking_between_all_and_nothing() -> None:
    even = [0.25] * 4
    np.testing.assert_allclose(shrink_to_uniform([0.7, 0.2, 0.1, 0.0], 0.0), [0.7, 0.2, 0.1, 0.0])
    np.testing.assert_allclose(shrink_to_uniform([0.3, 0.2, 0.26, 0.24], 0.01), even)  # all of it can be noise
    np.testing.assert_allclose(shrink_to_uniform([9.0, -8.0, 0.0, 0.0], math.inf), even)
    # entries far out of any distribution: at most 3/4 of signal is believed
    wild = shrink_to_uniform([6.0, -5.5, 0.25, 0.25], 10.0)
    cut = np.maximum(0.25 + np.array([5.75, -5.75, 0, 0]) * 0.75 / 10.75, 0)
    np.testing.assert_allclose(wild, cut / cut.sum())
