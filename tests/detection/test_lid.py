"""Local intrinsic dimensionality against a loop over the formula, and at its odd ends."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsift.core.errors import ConfigError, DataError
from fedsift.detection.indicators import lid, nearest_distances, site_lid


def reference(points: np.ndarray, k: int, form: str, eps: float = 1e-6) -> list[float]:
    """One row at a time, every distance sorted."""
    scores = []
    for a, row in enumerate(points):
        r = sorted(math.dist(row, other) for b, other in enumerate(points) if b != a)[:k]
        m = len(r)
        if m == 0 or r[0] == 0:
            scores.append(0.0)
        elif form == "paper":
            total = sum(math.log(x / r[-1]) for x in r)
            scores.append(-m / total if total else math.inf)
        else:
            total = sum(math.log(x / (r[-1] + eps)) for x in r) + eps
            scores.append(-(k if form == "official" else m) / total)
    return scores


@given(seed=st.integers(0, 10_000), n=st.integers(2, 30), k=st.integers(1, 25))
@settings(max_examples=40, deadline=None)
def test_all_forms_follow_the_formula(seed: int, n: int, k: int) -> None:
    rng = np.random.default_rng(seed)
    points = rng.dirichlet(np.ones(4), n)
    points[rng.integers(n)] = points[0]  # now and then a duplicate
    for form in ("paper", "official", "guarded"):
        want = reference(points, k, form)
        np.testing.assert_allclose(lid(points, k, form), want, rtol=1e-6)
        assert site_lid(points, k, form) == pytest.approx(np.mean(want), rel=1e-6)


def test_blocks_do_not_change_the_result() -> None:
    points = np.random.default_rng(0).random((37, 5))
    whole = nearest_distances(points, 6)
    np.testing.assert_array_equal(nearest_distances(points, 6, held=100), whole)
    assert (np.diff(whole, axis=1) >= 0).all()


def test_saturated_float32_predictions_score_zero() -> None:
    logits = np.array([[200.0, 0, 0], [210, 0, 0], [0, 200, 0], [0, 220, 0]], dtype=np.float32)
    e = np.exp(logits - logits.max(1, keepdims=True))
    assert (lid((e / e.sum(1, keepdims=True)).astype(np.float32), 2) == 0).all()


def test_few_samples() -> None:
    assert lid(np.ones((1, 3))).tolist() == [0.0]
    assert lid(np.ones((0, 3))).tolist() == []
    assert site_lid(np.ones((0, 3))) == 0.0
    assert math.isinf(lid([[0.0, 1.0], [1.0, 0.0]], 3, "paper")[0])


def test_equidistant_rows_diverge_in_the_paper_and_stay_finite_in_the_release() -> None:
    assert np.isinf(lid(np.eye(5), 3, "paper")).all()
    assert np.isfinite(lid(np.eye(5), 3, "official")).all()


def test_bad_input_is_refused() -> None:
    with pytest.raises(DataError, match="NaN"):
        lid([[0.0, np.nan], [1.0, 0.0]])
    with pytest.raises(DataError, match="one row a sample"):
        lid([0.0, 1.0])
    with pytest.raises(ConfigError, match="neighbour"):
        lid(np.eye(3), 0)
    with pytest.raises(ConfigError, match="form"):
        lid(np.eye(3), 1, "other")  # type: ignore[arg-type]
