"""FedMLP's prototypes, difficulty and tagging."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsift.core.errors import ConfigError
from fedsift.methods.fedmlp import (
    UNTAGGED,
    Prototypes,
    cosine,
    global_difficulty,
    global_prototypes,
    local_difficulty,
    local_prototypes,
    tag,
)


def test_local_prototypes_are_means_of_each_side() -> None:
    rng = np.random.default_rng(0)
    features, labels = rng.normal(size=(20, 3)), rng.integers(0, 2, (20, 4))
    labels[:, 3] = 0
    found = local_prototypes(features, labels, [0, 2, 3])
    for c in (0, 2):
        for side in (0, 1):
            np.testing.assert_allclose(found.get(c, side), features[labels[:, c] == side].mean(0))
    assert found.get(1, 0) is None  # not annotated
    assert found.get(3, 1) is None  # no positive
    assert np.isfinite(found.vectors).all()


def test_a_client_lacking_a_side_is_left_out_of_its_average() -> None:
    first = Prototypes(np.array([[[1.0, 0.0], [4.0, 4.0]]]), np.array([[True, True]]))
    second = Prototypes(np.array([[[0.0, 1.0], [0.0, 0.0]]]), np.array([[True, False]]))
    equal = global_prototypes([first, second], [1, 3], "equal")
    assert equal.vectors[0].tolist() == [[0.5, 0.5], [4.0, 4.0]]
    by_size = global_prototypes([first, second], [1, 3], "size")
    assert by_size.vectors[0].tolist() == [[0.25, 0.75], [4.0, 4.0]]
    nobody = global_prototypes([second, second], [1, 1])
    assert nobody.get(0, 1) is None
    with pytest.raises(ConfigError, match="weighting"):
        global_prototypes([first], [1], "best")  # type: ignore[arg-type]


def test_difficulty_is_strict_at_both_ends() -> None:
    assert local_difficulty([[0.3, 0.29], [0.7, 0.71], [0.5, 0.5], [0.1, 0.9]]).tolist() == [0.25, 0.75]
    assert local_difficulty(np.zeros((0, 2))).tolist() == [0.0, 0.0]


def test_global_difficulty_weighs_the_right_sites() -> None:
    local, sizes = [[0.2, 0.4], [0.6, 0.8]], [1, 3]
    active = [[True, False], [False, False]]
    np.testing.assert_allclose(global_difficulty(local, sizes, active), [0.6, (0.4 + 3 * 0.8) / 4])
    np.testing.assert_allclose(global_difficulty(local, sizes, active, "active"), [0.2, 1.0])
    assert global_difficulty(local, sizes, [[True, True]] * 2).tolist() == [1.0, 1.0]
    with pytest.raises(ConfigError, match="difficulty_over"):
        global_difficulty(local, sizes, active, "all")  # type: ignore[arg-type]


def test_cosine_with_a_zero_vector_is_zero() -> None:
    np.testing.assert_allclose(cosine([3.0, 4.0], [[3.0, 4.0], [0.0, 0.0], [-4.0, 3.0]]), [1.0, 0.0, 0.0], atol=1e-15)
    assert cosine([0.0, 0.0], [[1.0, 1.0]]).tolist() == [0.0]


@given(seed=st.integers(0, 10_000), n=st.integers(1, 25), least=st.integers(0, 2))
@settings(max_examples=40, deadline=None)
def test_rounds_of_tagging(seed: int, n: int, least: int) -> None:
    rng = np.random.default_rng(seed)
    tags = np.full(n, UNTAGGED)
    for _ in range(4):
        features, p0, p1 = rng.normal(size=(n, 3)), rng.normal(size=3), rng.normal(size=3)
        d, t0, t1 = rng.random(3)
        now = tag(features, p0, p1, tags, d, t0, t1, least)
        unit = features / np.linalg.norm(features, axis=1, keepdims=True)
        z = unit @ (p0 / np.linalg.norm(p0)) - unit @ (p1 / np.linalg.norm(p1))
        left = [j for j in range(n) if tags[j] == UNTAGGED]
        negative, positive = [j for j in left if z[j] >= 0], [j for j in left if z[j] < 0]
        n0 = min(len(negative), max(int(d * t0 * len(negative) + 1e-9), least))
        n1 = min(len(positive), max(int(d * t1 * len(positive) + 1e-9), least))
        assert now.negative.tolist() == sorted(negative, key=lambda j: -z[j])[:n0]
        assert now.positive.tolist() == sorted(positive, key=lambda j: z[j])[:n1]
        assert np.isnan(now.score).tolist() == [j not in left for j in range(n)]
        assert (now.tags[tags != UNTAGGED] == tags[tags != UNTAGGED]).all()  # for good
        tags = now.tags


def test_positives_are_kept_when_no_negative_is_selected() -> None:
    now = tag([[0.0, 1.0], [0.0, 2.0]], [1.0, 0.0], [0.0, 1.0], [UNTAGGED, UNTAGGED], 1.0, 0.5, 0.5)
    assert now.negative.tolist() == []
    assert now.positive.tolist() == [0]


def test_nothing_is_tagged_without_both_prototypes() -> None:
    now = tag([[0.0, 1.0]], None, [0.0, 1.0], [UNTAGGED], 1.0, 1.0, 1.0, min_select=1)
    assert now.tags.tolist() == [UNTAGGED]
    assert np.isnan(now.score).all()


def test_at_least_one_never_stalls() -> None:
    rng = np.random.default_rng(1)
    features, tags = rng.normal(size=(12, 2)), np.full(12, UNTAGGED)
    stalled = tag(features, [1.0, 0.0], [0.0, 1.0], tags, 1.0, 0.005, 0.01)
    assert (stalled.tags == UNTAGGED).all()
    for _ in range(12):
        tags = tag(features, [1.0, 0.0], [0.0, 1.0], tags, 1.0, 0.005, 0.01, min_select=1).tags
    assert (tags != UNTAGGED).all()
