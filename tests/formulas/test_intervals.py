"""Intervals and sample sizes against numbers derived by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsift.formulas.intervals import (
    CountedPart,
    cohen_kappa,
    combined_share,
    draw_totals,
    needed,
    share_missed,
    wilson,
)

Z = 1.959963985


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def test_half_of_a_hundred_is_known_to_ten_points_and_of_385_to_five() -> None:
    assert [round(100 * end) for end in wilson(51, 100)] == [41, 61]
    assert [round(100 * end) for end in wilson(196, 385)] == [46, 56]


def test_none_of_sixty_means_at_most_six_percent() -> None:
    # with p = 0 Wilson's upper end is z² / (n + z²) = 3.8415 / 63.8415
    low, high = wilson(0, 60)
    assert low == 0.0
    assert high == pytest.approx(3.8414588 / 63.8414588, abs=1e-7)
    assert wilson(60, 60) == pytest.approx((1 - high, 1.0))


def test_nothing_counted_says_nothing_and_nonsense_is_refused() -> None:
    assert wilson(0, 0) == (0.0, 1.0)
    with pytest.raises(ValueError, match="3 of 2"):
        wilson(3, 2)


@settings(deadline=None)
@given(st.integers(1, 400), st.data())
def test_wilson_holds_the_share_and_solves_its_equation(n: int, data: st.DataObject) -> None:
    k = data.draw(st.integers(0, n))
    low, high = wilson(k, n)
    assert 0 <= low <= k / n <= high <= 1
    for end in {low, high} - {0.0, 1.0}:  # |p - e| = z sqrt(e (1 - e) / n), what Wilson's ends are defined by
        assert abs(k / n - end) == pytest.approx(Z * math.sqrt(end * (1 - end) / n), rel=1e-6)


@settings(deadline=None)
@given(st.floats(0, 1), st.floats(0.01, 0.3))
def test_needed_is_the_smallest(share: float, within: float) -> None:
    n = needed(share, within)

    def half(m: int) -> float:
        return Z * math.sqrt(share * (1 - share) / m + Z * Z / (4 * m * m)) / (1 + Z * Z / m)

    assert half(n) <= within + 1e-9
    assert n == 1 or half(n - 1) > within - 1e-9


def test_needed_for_five_points_is_close_to_the_textbooks_385() -> None:
    # z² / (4 w²) = 384.1 is Wald's; Wilson's middle is drawn to 1/2, which saves z² = 3.84
    assert needed(0.5, 0.05) == math.ceil(Z * Z / (4 * 0.05**2) - Z * Z)
    with pytest.raises(ValueError, match="between 0 and 0.5"):
        needed(0.5, 0.5)


def test_a_part_that_was_read_to_its_end_is_certain() -> None:
    assert set(draw_totals(CountedPart(60, 60, 7), rng())) == {7.0}


def test_draws_follow_jeffreys_beta() -> None:
    # 0 of 60, of very many: Beta(0.5, 60.5) has mean 0.5 / 61; its 97.5 % point is 0.0405
    draws = draw_totals(CountedPart(10**9, 60, 0), rng(), 200_000) / 1e9
    assert draws.mean() == pytest.approx(0.5 / 61, rel=0.02)
    assert np.quantile(draws, 0.975) == pytest.approx(0.0405, abs=0.001)


def test_precision_of_the_list_weighs_its_parts_by_their_size() -> None:
    # 100 worst, 90 wrong, all read; 300 others, 40 of 100 wrong: (90 + 300 * 0.4) / 400 = 0.525
    found = combined_share([CountedPart(100, 100, 90), CountedPart(300, 100, 40)], rng())
    assert found.share == pytest.approx(0.525)
    # only the 200 unread others are uncertain: sd(p) ≈ sqrt(.4 * .6 / 101) with the binomial of the unread on top
    spread = math.sqrt(0.24 / 102 * 200**2 + 200 * 0.24 * 101 / 102) / 400
    assert found.low == pytest.approx(0.525 - Z * spread, abs=0.01)
    assert found.high == pytest.approx(0.525 + Z * spread, abs=0.01)


def test_share_missed_by_hand() -> None:
    # F = 200 at p = .5, U = 1800 at q = 2 / 60: 60 of 160 wrong labels are not on the list
    found = share_missed([CountedPart(200, 100, 50)], CountedPart(1800, 60, 2), rng())
    assert found.share == pytest.approx(60 / 160)
    assert found.low < 0.375 < found.high
    nothing = share_missed([CountedPart(200, 100, 50)], CountedPart(1800, 60, 0), rng())
    assert nothing.share == 0.0
    # 0 of 60 still allows 4 % of 1800 = 73 beside 100 found
    assert nothing.high == pytest.approx(0.0405 * 1740 / (100 + 0.0405 * 1740), abs=0.03)


def test_what_nobody_looked_at_is_not_known() -> None:
    for found in (
        share_missed([CountedPart(10, 0, 0)], CountedPart(10, 5, 1), rng()),
        share_missed([CountedPart(10, 5, 1)], CountedPart(10, 0, 0), rng()),
        combined_share([], rng()),
        combined_share([CountedPart(5, 0, 0)], rng()),
        share_missed([CountedPart(4, 4, 0)], CountedPart(4, 4, 0), rng()),
    ):
        assert math.isnan(found.share)


def test_an_empty_part_changes_nothing() -> None:
    assert combined_share([CountedPart(0, 0, 0), CountedPart(10, 10, 5)], rng()).share == 0.5
    assert share_missed([CountedPart(10, 10, 5)], CountedPart(0, 0, 0), rng()).share == 0.0


def test_kappa_by_hand() -> None:
    # 50 samples: 20 yes/yes, 5 yes/no, 10 no/yes, 15 no/no: p_o = .7, p_e = .5 * .6 + .5 * .4 = .5, kappa .4
    first = ["y"] * 25 + ["n"] * 25
    second = ["y"] * 20 + ["n"] * 5 + ["y"] * 10 + ["n"] * 15
    assert cohen_kappa(first, second) == pytest.approx(0.4)
    assert cohen_kappa(["a", "b"], ["a", "b"]) == 1.0
    assert cohen_kappa(["a", "b"], ["b", "a"]) == -1.0
    assert math.isnan(cohen_kappa(["a", "a"], ["a", "a"]))
    assert math.isnan(cohen_kappa([], []))
    with pytest.raises(ValueError, match="1 readings beside 2"):
        cohen_kappa(["a"], ["a", "b"])
