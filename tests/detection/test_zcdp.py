"""Gaussian noise on clipped updates: lengths, costs and draws, against numbers worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from fedsift.core.errors import ConfigError
from fedsift.formulas.privacy import (
    GRID_BITS,
    clipping_share,
    discrete_gaussian,
    gaussian_zcdp,
    update_zcdp,
    zcdp_epsilon,
)


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


def test_epsilon_of_a_cost_is_the_least_over_all_orders() -> None:
    # rho = 1/2, delta = 1e-5: the derivative of the bound is nought where (alpha - 1)^2 = 2 (ln 1e5 - ln alpha), which
    # alpha = 5.4318 solves; there 2.7159 + (11.5129 + 4.4318 ln 0.81590 - 1.6923) / 4.4318 = 4.7284
    assert zcdp_epsilon(0.5, 1e-5) == pytest.approx(4.7284, abs=1e-4)
    assert zcdp_epsilon(0.5, 1e-5) < 0.5 + 2 * math.sqrt(0.5 * math.log(1e5))  # 5.30, of Bun and Steinke
    # no less than what Gaussian noise of this cost really is: Phi(1/2 - e) - e^e Phi(-1/2 - e), Balle and Wang 2018
    epsilon = zcdp_epsilon(0.5, 1e-5)
    assert stats.norm.cdf(0.5 - epsilon) - math.exp(epsilon) * stats.norm.cdf(-0.5 - epsilon) < 1e-5
    assert zcdp_epsilon(0.0, 1e-6) == 0.0
    assert zcdp_epsilon(math.inf, 1e-6) == math.inf
    for rho in (1e-8, 1e-3, 0.3, 40.0, 1e4):
        for delta in (1e-12, 1e-5, 0.1):
            assert 0 <= zcdp_epsilon(rho, delta) <= rho + 2 * math.sqrt(rho * math.log(1 / delta))
    with pytest.raises(ConfigError, match="delta"):
        zcdp_epsilon(1.0, 0.0)


@pytest.mark.slow
@pytest.mark.parametrize("delta", [1e-9, 1e-5, 1e-2])
@pytest.mark.parametrize("rho", [0.01, 0.5, 8.0])
def test_the_conversion_is_that_of_dp_accounting(rho: float, delta: float) -> None:
    rdp = pytest.importorskip("dp_accounting.rdp.rdp_privacy_accountant", reason="no part of fedsift's dependencies")
    orders = 1 + np.exp(np.linspace(-8, 8, 4001))
    theirs, _ = rdp.compute_epsilon(orders, rho * orders, delta)
    assert zcdp_epsilon(rho, delta) == pytest.approx(max(theirs, 0.0), rel=1e-4)


def test_the_cost_bounds_what_the_noise_hides() -> None:
    """Renyi divergence of order a between N(0, s^2) and N(D, s^2) is a D^2 / (2 s^2): measured by integration."""
    difference, sigma, order = 2.0, 1.5, 3.0
    x = np.linspace(-30, 30, 200_001)
    p, q = stats.norm.pdf(x, 0, sigma), stats.norm.pdf(x, difference, sigma)
    divergence = math.log(np.trapezoid(p**order * q ** (1 - order), x)) / (order - 1)
    assert divergence == pytest.approx(order * gaussian_zcdp(difference, sigma), rel=1e-6)


@pytest.mark.parametrize("bits", [0, 1, 4])
def test_draws_are_of_the_discrete_gaussian(bits: int) -> None:
    """Each whole number as often as exp(-y^2 / (2 sigma^2)) over the sum of all of them says."""
    draws, sigma = discrete_gaussian(np.random.default_rng(7).bytes, 200_000, bits), 2**bits
    whole = np.arange(-60 * sigma, 60 * sigma + 1)
    chance = np.exp(-(whole**2) / (2.0 * sigma**2))
    expected = len(draws) * chance / chance.sum()
    seen = np.bincount(draws + 60 * sigma, minlength=len(whole))
    often = expected > 5
    groups = [np.append(each[often], each[~often].sum()) for each in (seen, expected)]
    assert stats.chisquare(*groups).pvalue > 0.001


def test_on_its_grid_the_noise_is_normal_and_comes_from_the_entropy_alone() -> None:
    draws = discrete_gaussian(np.random.default_rng(7).bytes, 50_001)
    assert draws.shape == (50_001,) and draws.dtype == np.int64
    assert stats.kstest(draws / 2.0**GRID_BITS, "norm").pvalue > 0.001
    last = np.bincount(draws & 15, minlength=16)  # no last digit is rarer than others: none was rounded
    assert stats.chisquare(last).pvalue > 0.001
    np.testing.assert_array_equal(draws, discrete_gaussian(np.random.default_rng(7).bytes, 50_001))
    assert not np.array_equal(draws, discrete_gaussian(np.random.default_rng(8).bytes, 50_001))
    assert discrete_gaussian(np.random.default_rng(8).bytes, 0).shape == (0,)
