"""RHFL's confidence weights: the sign cases, and equations 9-13 step by step."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsift.core.errors import ConfigError, DataError
from fedsift.methods.rhfl import credibility, held_out_credibility, shares_of_confidence


@given(seed=st.integers(0, 10_000), sites=st.integers(2, 6), mode=st.sampled_from(["official", "abs", "clip"]))
@settings(max_examples=40, deadline=None)
def test_equations_9_to_13(seed: int, sites: int, mode: str) -> None:
    rng = np.random.default_rng(seed)
    before, now = rng.random(sites) + 0.5, rng.random(sites) + 0.5
    got = credibility(now, before, 0.5, mode)  # type: ignore[arg-type]
    q, p = 1 / now, before - now
    f = q * p
    positive = np.maximum(f, 0)
    total = {"official": f.sum(), "abs": np.abs(f).sum(), "clip": positive.sum()}[mode]
    share = (positive if mode == "clip" else f) / total if abs(total) >= 1e-12 else 0 * f
    w = 1 / (sites - 1) + 0.5 * share
    np.testing.assert_allclose(got.confidence, f)
    np.testing.assert_allclose(got.raw, w)
    np.testing.assert_allclose(got.weights, np.exp(w) / np.exp(w).sum())
    assert got.weights.sum() == pytest.approx(1.0)


def test_first_round_has_no_history() -> None:
    got = credibility([1.0, 2.0, 4.0])
    assert got.weights.tolist() == [0.5, 0.5, 0.5]
    assert got.drop is got.confidence is got.raw is None
    assert got.quality.tolist() == [1.0, 0.5, 0.25]


def test_eta_zero_is_uniform_over_all() -> None:
    np.testing.assert_allclose(credibility([1.0, 2.0, 3.0], [3.0, 2.0, 1.0], eta=0.0).weights, 1 / 3)


def test_when_all_losses_rise() -> None:
    before, now = [1.0, 1.0, 1.0], [1.1, 1.2, 2.0]
    official = credibility(now, before, mode="official").weights
    assert official.argmax() == 2  # as printed, the worst site teaches most
    assert credibility(now, before, mode="abs").weights.argmin() == 2
    np.testing.assert_allclose(credibility(now, before, mode="clip").weights, 1 / 3)


def test_a_vanishing_normaliser_drops_the_term() -> None:
    assert shares_of_confidence([0.25, -0.25]).tolist() == [0.0, 0.0]
    np.testing.assert_allclose(credibility([1.0, 1.0], [1.0, 1.0]).weights, 0.5)


def test_one_site_and_a_perfect_one() -> None:
    assert credibility([1.0], [2.0]).weights.tolist() == [1.0]
    assert np.isfinite(credibility([0.0, 1.0], [1.0, 1.0]).weights).all()


def test_bad_input_is_refused() -> None:
    with pytest.raises(DataError, match="finite"):
        credibility([1.0, np.nan])
    with pytest.raises(ConfigError, match="ccr_mode"):
        credibility([1.0, 2.0], [1.0, 2.0], mode="max")  # type: ignore[arg-type]


def test_held_out_confidence_by_hand() -> None:
    """Chance 2: losses 0.5, 1 and 3 give skills 3/4, 1/2 and 0; W = 3/2 of their shares 3/5, 2/5 and 0."""
    got = held_out_credibility([0.5, 1.0, 3.0], chance=2.0)
    np.testing.assert_allclose(got.quality, [0.75, 0.5, 0.0])
    np.testing.assert_allclose(got.weights, [0.9, 0.6, 0.0])


def test_held_out_confidence_is_that_of_equal_sites_where_nobody_differs() -> None:
    np.testing.assert_allclose(held_out_credibility([1.0, 1.0, 1.0], 2.0).weights, 1 / 2)
    np.testing.assert_allclose(held_out_credibility([9.0, 2.0, 5.0], 2.0).weights, 1 / 2)  # nobody above chance
    assert held_out_credibility([0.3], 2.0).weights.tolist() == [1.0]


def test_a_huge_held_out_loss_moves_no_other_weight_beyond_its_bound() -> None:
    """The attacker's view: no loss that a site can tell gives anybody more than S / (S - 1)."""
    for lie in (0.0, 1e-300, 1e300):
        weights = held_out_credibility([1.0, 1.5, lie], 2.0).weights
        assert np.isfinite(weights).all()
        assert (weights >= 0).all() and (weights <= 1.5).all()
    with pytest.raises(DataError, match="finite"):
        held_out_credibility([1.0, np.inf], 2.0)
