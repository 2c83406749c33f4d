"""FedDiv's filter: EM with a guard for components that nobody is in, and how sites' filters become one."""

from __future__ import annotations

import numpy as np
import pytest

from fedsift.core.errors import DataError
from fedsift.detection.mixtures import (
    LEAST_SHARE,
    LEAST_VARIANCE,
    TwoGaussians,
    clean_share,
    first_filter,
    local_filter,
    pooled,
    scaled_to_one,
)


def mixture(low: float, high: float, variance: float = 0.04, noisy: float = 0.5) -> TwoGaussians:
    return TwoGaussians.of([[low, high], [variance, variance], [1 - noisy, noisy]])


def plain_em(values: np.ndarray, start: TwoGaussians, steps: int) -> np.ndarray:
    """EM by its textbook formulas, one value and one component at a time, in probabilities."""
    m, v, s = (list(row) for row in start.table)
    for _ in range(steps):
        parts = np.zeros((len(values), 2))
        for i, x in enumerate(values):
            dens = [s[g] * np.exp(-((x - m[g]) ** 2) / (2 * v[g])) / np.sqrt(2 * np.pi * v[g]) for g in (0, 1)]
            parts[i] = np.array(dens) / sum(dens)
        for g in (0, 1):
            mass = parts[:, g].sum()
            m[g] = (parts[:, g] * values).sum() / mass
            v[g] = (parts[:, g] * (values - m[g]) ** 2).sum() / mass
            s[g] = mass / len(values)
    return np.array([m, v, s])


def two_groups(seed: int = 0) -> np.ndarray:
    draw = np.random.default_rng(seed)
    return np.r_[draw.normal(0.4, 0.15, 60), draw.normal(2.5, 0.4, 40)]


@pytest.mark.parametrize("steps", [1, 3, 20])
def test_em_is_the_textbook_s(steps: int) -> None:
    values, start = two_groups(), mixture(0.0, 2.0, 0.5)
    np.testing.assert_allclose(local_filter(values, start, steps).table, plain_em(values, start, steps), rtol=1e-9)


def test_em_stops_where_nothing_moves() -> None:
    values = two_groups()
    done = local_filter(values, mixture(0.0, 2.0, 0.5))
    np.testing.assert_allclose(done.table, local_filter(values, done, 1).table, atol=1e-7)
    assert done.shares[1] == pytest.approx(0.4, abs=0.02)


def test_a_component_without_members_keeps_what_was_received() -> None:
    """A clean site: without the guard the M-step's mean of nobody pulls the common filter down within a few rounds."""
    clean = np.random.default_rng(1).normal(0.4, 0.15, 100)
    received = mixture(0.4, 2.5, 0.02)
    own = local_filter(clean, received)
    assert own.means[1] == 2.5 and own.variances[1] == 0.02
    assert own.shares[1] == pytest.approx(LEAST_SHARE, rel=1e-2)
    assert own.means[0] == pytest.approx(clean.mean(), abs=1e-6)


def test_four_members_are_nobody_and_six_are_somebody() -> None:
    for members, moves in ((4, False), (6, True)):
        values = np.r_[np.linspace(0.3, 0.5, 60), np.full(members, 3.0)]
        own = local_filter(values, mixture(0.4, 2.5, 0.2))
        assert (own.means[1] != 2.5) == moves
        assert own.shares[1] == pytest.approx(members / len(values), abs=0.01)


def test_all_samples_flagged_leaves_the_clean_component_as_it_was() -> None:
    own = local_filter(np.random.default_rng(2).normal(2.5, 0.1, 50), mixture(0.4, 2.5))
    assert own.means[0] == 0.4 and own.shares[0] == pytest.approx(LEAST_SHARE, rel=1e-2)


def test_constant_losses_have_a_floor() -> None:
    own = local_filter(np.full(20, 0.4), mixture(0.4, 2.5))
    assert own.variances[0] == LEAST_VARIANCE
    assert np.isfinite(own.table).all()
    assert clean_share(np.full(20, 0.4), first_filter(np.full(20, 0.4))).tolist() == [1.0] * 20
    assert clean_share([3.0], first_filter([3.0])).tolist() == [1.0]
    assert scaled_to_one([0.7, 0.7]).tolist() == [0.0, 0.0]


def test_infinite_losses_are_refused() -> None:
    with pytest.raises(DataError, match="finite losses"):
        first_filter([0.1, np.inf])


def test_the_posterior_by_hand() -> None:
    """Equal variances 0.5 and shares: log odds at x are (x - 2)^2 - (x - 0)^2 = 4 - 4x."""
    filter_ = mixture(0.0, 2.0, 0.5)
    got = clean_share([1.0, 1.5, 0.5], filter_)
    want = 1 / (1 + np.exp(-(4 - 4 * np.array([1.0, 1.5, 0.5]))))
    np.testing.assert_allclose(got, want)
    swapped = TwoGaussians.of(filter_.table[:, ::-1])
    np.testing.assert_allclose(clean_share([1.5], swapped), want[1:2])


def test_a_small_loss_is_never_suspect() -> None:
    """At 0 the wide component's density is larger than the narrow one's; still no label fits better."""
    filter_ = TwoGaussians.of([[0.5, 3.0], [1e-4, 9.0], [0.5, 0.5]])
    assert filter_.posterior(np.array([0.0]))[1][0, 0] < 0.5
    assert clean_share([0.0, 0.5], filter_).tolist() == [1.0, 1.0]


def test_filters_are_averaged_by_size() -> None:
    one, two = mixture(0.0, 2.0, 0.1, 0.2), mixture(1.0, 4.0, 0.3, 0.6)
    common = pooled([one, two], [1, 3])
    np.testing.assert_allclose(common.table, 0.25 * one.table + 0.75 * two.table)


def test_components_are_matched_by_their_means() -> None:
    one, two = mixture(0.0, 2.0), TwoGaussians.of(mixture(0.0, 2.0).table[:, ::-1])
    np.testing.assert_allclose(pooled([one, two], [5, 5]).table, one.table)


def test_the_released_variance_shrinks_with_the_number_of_sites() -> None:
    every = [mixture(0.0, 2.0, 0.4)] * 8
    assert pooled(every, [7] * 8, power=2).variances == pytest.approx([0.05, 0.05])
    assert pooled(every, [7] * 8).variances == pytest.approx([0.4, 0.4])


def test_by_members_a_clean_site_has_no_say_in_the_noisy_component() -> None:
    clean, noisy = mixture(0.2, 0.6, 0.1, noisy=0.001), mixture(0.4, 3.0, 0.1, noisy=0.5)
    common = pooled([clean, noisy], [10, 10], "members")
    assert common.means[1] == pytest.approx((0.001 * 0.6 + 0.5 * 3.0) / 0.501)
    assert common.means[0] == pytest.approx((0.999 * 0.2 + 0.5 * 0.4) / 1.499)
    assert common.shares[1] == pytest.approx(0.2505)


def test_one_site_is_its_own_filter() -> None:
    own = mixture(0.1, 2.0, 0.3, 0.25)
    np.testing.assert_allclose(pooled([own], [9]).table, own.table)
