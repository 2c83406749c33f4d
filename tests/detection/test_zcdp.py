"""Gaussian noise on clipped updates: lengths, costs and draws, against numbers worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from fedsift.core.errors import ConfigError, DataError
from fedsift.formulas.privacy import clipping_share, gaussian_draws, gaussian_zcdp, update_zcdp, zcdp_epsilon


def test_only_what_is_too_long_is_shortened() -> None:
    assert clipping_share(0.0, 1.0) == clipping_share(1.0, 1.0) == 1.0
    assert clipping_share(5.0, 2.0) == pytest.approx(0.4)
    with pytest.raises(ConfigError, match="clip"):
        clipping_share(1.0, 0.0)


def test_costs_of_releases() -> None:
    assert gaussian_zcdp(1.0, 1.0) == 0.5
    assert gaussian_zcdp(3.0, 2.0) == pytest.approx(9 / 8)
    assert gaussian_zcdp(1.0, 0.0) == math.inf
    # two vectors no longer than C differ by 2 C at most: (2 C)^2 / (2 (z C)^2) = 2 / z^2
    assert update_zcdp(4.0) == pytest.approx(2 / 16)
    assert update_zcdp(4.0, updates=3) == pytest.approx(6 / 16)


def test_epsilon_of_a_cost() -> None:
    # rho = 1/4, delta = e^-16: 1/4 + 2 sqrt(16 / 4) = 4.25
    assert zcdp_epsilon(0.25, math.exp(-16.0)) == pytest.approx(4.25)
    assert zcdp_epsilon(0.0, 1e-6) == 0.0
    with pytest.raises(ConfigError, match="delta"):
        zcdp_epsilon(1.0, 0.0)


def test_the_cost_bounds_what_the_noise_hides() -> None:
    """Renyi divergence of order a between N(0, s^2) and N(D, s^2) is a D^2 / (2 s^2): measured by integration."""
    difference, sigma, order = 2.0, 1.5, 3.0
    x = np.linspace(-30, 30, 200_001)
    p, q = stats.norm.pdf(x, 0, sigma), stats.norm.pdf(x, difference, sigma)
    divergence = math.log(np.trapezoid(p**order * q ** (1 - order), x)) / (order - 1)
    assert divergence == pytest.approx(order * gaussian_zcdp(difference, sigma), rel=1e-6)


def test_draws_are_normal_and_come_from_the_entropy_alone() -> None:
    entropy = np.random.default_rng(7).bytes(16 * 10_001)
    draws = gaussian_draws(entropy, 20_001)
    assert draws.shape == (20_001,)
    assert np.isfinite(draws).all()
    assert stats.kstest(draws, "norm").pvalue > 0.01
    np.testing.assert_array_equal(draws, gaussian_draws(entropy, 20_001))
    assert np.isfinite(gaussian_draws(bytes(16), 2)).all()  # zeros are no infinity
    with pytest.raises(DataError, match="bytes"):
        gaussian_draws(b"short", 2)
