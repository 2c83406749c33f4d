"""E-values and confidence sequences of reviews: numbers by hand, and every short review enumerated."""

from __future__ import annotations

import math
from collections import Counter
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsift.formulas.intervals import (
    ALLOWED,
    CLEARED,
    EVIDENCE,
    MOST_READER_ERROR,
    ExpectedEnd,
    conviction,
    expected_end,
    reading_likelihoods,
    share_read,
    withdrawal,
    wrong_of_all,
)

KINDS = ((0, 1), (1, 2), (2, 3), (3, 3))
"""A label is read until somebody calls it right, or three have called it wrong."""


def chances(share: float, error: float) -> list[float]:
    """Of each kind: by the readers' answers to a wrong and to a right label."""
    wrong = [error * (1 - error) ** k for k in range(3)] + [(1 - error) ** 3]
    right = [(1 - error) * error**k for k in range(3)] + [error**3]
    return [share * w + (1 - share) * r for w, r in zip(wrong, right)]


def test_one_label_called_wrong_or_right() -> None:
    # convicting shares have mean .215 and readers' errors .065: P(called wrong) = .215 (1 - .13) + .065 = .25205;
    # the null's largest is .15 + .02 (1 - .3) = .164
    assert math.exp(conviction({(1, 1): 1})) == pytest.approx(0.25205 / 0.164)
    # withdrawing ones .003 and .073: P(called right) = 1 - .003 (1 - .146) - .073 = .924438; the null's largest is .88
    assert math.exp(withdrawal({(0, 1): 1})) == pytest.approx(0.924438 / 0.88)
    assert [conviction({}), withdrawal({})] == pytest.approx([0.0, 0.0], abs=1e-12)


def test_two_readers_who_agree_weigh_far_more_than_one() -> None:
    # E(1 - r)² = (.9409 + .81) / 2 and E r² = (.0009 + .01) / 2: .215 x .87545 + .785 x .00545 = .1925;
    # the null's largest is .02 x .85² + .98 x .15² = .0365
    assert math.exp(conviction({(2, 2): 1})) == pytest.approx(0.1925 / 0.0365)


def test_likelihood_by_hand() -> None:
    # t = .2, r = .1, one of three called it wrong: .2 x .9 x .01 + .8 x .1 x .81
    [log_l] = reading_likelihoods({(1, 3): 2}, np.array([0.2]), np.array([0.1]))
    assert log_l == pytest.approx(2 * math.log(0.2 * 0.9 * 0.01 + 0.8 * 0.1 * 0.81))


def mean_e(log_e: object, share: float, error: float, labels: int, stop: float = math.inf) -> float:
    """E[e] where one stops at e >= stop, or after so many labels: over every review there is."""
    chance, total = chances(share, error), 0.0
    known: dict[tuple[tuple[tuple[int, int], int], ...], float] = {}

    def e(kinds: tuple[int, ...]) -> float:
        counts = Counter(KINDS[k] for k in kinds)
        key = tuple(sorted(counts.items()))
        if key not in known:
            known[key] = math.exp(log_e(dict(counts)))  # type: ignore[operator]
        return known[key]

    for kinds in product(range(4), repeat=labels):
        p = math.prod(chance[k] for k in kinds)
        end = next((n for n in range(1, labels) if e(kinds[:n]) >= stop), labels)
        total += p * e(kinds[:end])
    return total


@settings(deadline=None, max_examples=15)
@given(st.floats(0, 1), st.floats(0, MOST_READER_ERROR), st.sampled_from([math.inf, 1.5, 3.0]))
def test_the_mean_is_at_most_one_under_the_null_whenever_one_stops(u: float, error: float, stop: float) -> None:
    # the null's maximum is taken over a grid, so that a truth between its points may exceed one by a trifle
    for labels in (1, 3, 5):
        assert mean_e(conviction, ALLOWED * u, error, labels, stop) <= 1.002
        assert mean_e(withdrawal, CLEARED + (1 - CLEARED) * u, error, labels, stop) <= 1.002


def test_the_mean_is_above_one_where_the_answer_is_right() -> None:
    assert mean_e(conviction, 0.2, 0.1, 5) > 1.5
    assert mean_e(withdrawal, 0.0, 0.1, 5) > 1.1


def test_what_decides() -> None:
    # forty labels called right at once: (.88)^40 = .006 under the null, and about .97^40 under the better points
    assert withdrawal({(0, 1): 40}) > math.log(EVIDENCE) > withdrawal({(0, 1): 25})
    # four labels of eleven that two readers call wrong; two that one calls wrong say little
    assert conviction({(0, 1): 7, (2, 2): 4}) > math.log(EVIDENCE) > conviction({(0, 1): 9, (1, 1): 2})
    # one mistaken verdict does not convict, and neither do two among many
    assert conviction({(0, 1): 50, (1, 1): 1}) < 0 and conviction({(0, 1): 50, (1, 1): 2}) < 0


def test_the_share_s_sequence_misses_seldom() -> None:
    """All reviews of six labels, and a level at which that few can tell anything."""
    for share, error in product((0.0, 0.1, 0.5, 1.0), (0.0, 0.1, 0.15)):
        missed, chance = 0.0, chances(share, error)
        known: dict[tuple[int, ...], bool] = {}
        for kinds in product(range(4), repeat=6):
            holds = True
            for n in range(1, 7):
                key = tuple(sorted(kinds[:n]))
                if key not in known:
                    found = share_read(dict(Counter(KINDS[k] for k in key)), level=0.5)
                    known[key] = found.low <= share <= found.high
                holds &= known[key]
            missed += 0.0 if holds else math.prod(chance[k] for k in kinds)
        assert missed <= 0.5


def test_the_share_by_readings() -> None:
    nothing = share_read({})
    assert (nothing.low, nothing.high) == (0.0, 1.0) and nothing.share == pytest.approx(1 / 3, abs=0.01)
    # 1,000 labels of which 200 are wrong, all read without a mistake
    many = share_read({(0, 1): 800, (3, 3): 200})
    assert 0.14 < many.low < 0.2 < many.high < 0.27 and many.share == pytest.approx(0.2, abs=0.01)
    assert many.reader_error < 0.01
    few = share_read({(0, 1): 8, (3, 3): 2})
    assert few.low < many.low and few.high > many.high


def test_without_replacement_by_hand() -> None:
    assert wrong_of_all(0, 0, 5) == (0.0, 1.0)
    # of two labels one was drawn, and it is wrong: that is certain with two wrong, even with one, impossible with none
    assert wrong_of_all(1, 1, 2) == (0.5, 1.0)
    assert wrong_of_all(3, 10, 10) == (0.3, 0.3)
    # of very many: (1 - p)^60 = P(0 of 60) / 20, with P = B(1/2, 60 + 1/2) / B(1/2, 1/2) = 120! / (60! 60! 4^60)
    mixed = math.comb(120, 60) / 4**60
    low, high = wrong_of_all(0, 60, 10**6)
    assert low == 0 and high == pytest.approx(1 - (mixed / 20) ** (1 / 60), abs=1e-4)
    with pytest.raises(ValueError, match="3 of 2"):
        wrong_of_all(3, 2, 9)


@pytest.mark.parametrize("wrong", range(9))
def test_without_replacement_every_order(wrong: int) -> None:
    """At level one half, at most half of all orders of eight labels miss the share at some look."""
    orders = list(combinations(range(8), wrong))
    missed = 0
    for places in orders:
        for n in range(1, 9):
            low, high = wrong_of_all(sum(place < n for place in places), n, 8, level=0.5)
            if not low <= wrong / 8 <= high:
                missed += 1
                break
    assert missed <= 0.5 * len(orders)


def test_what_is_expected_is_what_decides() -> None:
    # nobody was called wrong, so the likeliest is that nobody will be: labels and verdicts are as many
    more = next(n for n in range(400) if withdrawal({(0, 1): 20 + n}) >= math.log(EVIDENCE))
    assert expected_end({(0, 1): 20}, 400) == ExpectedEnd(False, more, more) and 10 < more < 20
    noisy = expected_end({(0, 1): 6, (3, 3): 2}, 400)
    assert noisy is not None and noisy.convicted and noisy.verdicts > noisy.labels
    assert expected_end({(0, 1): 20}, 2) is None
    # four that one reader called wrong: other readers are asked first, and their answers count
    waiting = expected_end({(0, 1): 6, (1, 1): 4}, 400)
    assert waiting is not None and waiting.verdicts >= 4
