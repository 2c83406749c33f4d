"""The shared model from censored tables, the exponent, rates with intervals and the rules."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given as over
from hypothesis import settings
from hypothesis import strategies as st
from scipy.special import expit, logit

from fedsift.core.errors import DataError
from fedsift.detection.label_posterior import GRID, LabelModel, SiteFit
from fedsift.detection.label_rates import (
    SURE,
    SiteRate,
    applied,
    choose_tempering,
    fit_concentration,
    fit_rate_prior,
    fit_shared,
    flagged,
    rate_of,
    shares_of,
    site_rate,
)
from fedsift.formulas.small_counts import censored

CONFUSION = np.array([[0.0, 0.8, 0.2], [0.5, 0.0, 0.5], [0.1, 0.9, 0.0]])


def counted(rng: np.random.Generator, rates: np.ndarray, samples: int) -> list[np.ndarray]:
    tables = []
    for rate in rates:
        cells = np.full(3, 1 / 3)[:, None] * ((1 - rate) * np.eye(3) + rate * CONFUSION)
        tables.append(rng.multinomial(samples, cells.ravel()).reshape(3, 3))
    return tables


@pytest.mark.parametrize("min_count", [0, 10])
def test_who_is_mistaken_for_whom_survives_the_minimum_count(min_count: int) -> None:
    """At 150 samples and 15 % wrong most cells off the diagonal are below 10: lumped, not lost."""
    tables = counted(np.random.default_rng(0), np.full(40, 0.15), 150)
    withheld = np.mean([(censored(t, min_count).cells < 0)[~np.eye(3, dtype=bool)].mean() for t in tables])
    assert (withheld > 0.5) == (min_count == 10)
    model = fit_shared([censored(table, min_count) for table in tables], LabelModel.start(np.ones(3)))
    assert np.abs(model.confusion - CONFUSION).max() < (0.08 if min_count == 0 else 0.25)
    np.testing.assert_allclose(model.confusion.sum(1), 1)
    np.testing.assert_allclose(model.shares, 1 / 3, atol=0.05)
    alpha, beta = model.rate_prior
    assert alpha / (alpha + beta) == pytest.approx(0.15, abs=0.06)


def test_a_table_without_a_minimum_count_gives_its_own_shares() -> None:
    """One site, nothing lumped: B is the cells off the diagonal plus one each, pi the rows plus one half."""
    table = np.array([[80, 15, 5], [4, 90, 6], [9, 1, 90]])
    model = fit_shared([censored(table, 0)], LabelModel.start(np.ones(3)))
    np.testing.assert_allclose(model.confusion[0], [0, 16 / 22, 6 / 22])
    np.testing.assert_allclose(model.shares, (np.array([100, 100, 100]) + 0.5) / 301.5)


def test_classes_of_careless_sites_do_not_seem_mistakable() -> None:
    """A careless site with 900 of class 0 and 100 of class 1, 30 % of either wrong; a careful one the other way round,
    none wrong. By its site's rate each class is mistaken as often as expected: 270 of 270, 30 of 30."""
    careless, careful = np.array([[630, 270], [30, 70]]), np.array([[100, 0], [0, 900]])
    tables = [censored(careless, 0), censored(careful, 0)]
    model = fit_shared(tables, LabelModel.start(np.ones(2)), any_wrong=[1.0, 0.0])
    np.testing.assert_allclose(model.relative_rates, [1.0, 1.0], atol=1e-9)


def test_silent_sites_leave_the_start_as_it_is() -> None:
    start = LabelModel.start([1, 2, 3])
    assert fit_shared([censored(np.ones((3, 3)), 10)], start) is start


def test_shares_of_given_labels() -> None:
    sites = [censored([[30, 40, 30]], 10), censored([[60, 36, 4]], 10)]
    assert sites[1].remainders.tolist() == [40]
    shares = shares_of(sites)
    # of the second site's 40 lumped ones the first site's 40 : 30 and the rest decide: most are of class 1
    assert shares[0] == pytest.approx(90.5 / 201.5)
    assert shares[1] > shares[2] and shares.sum() == pytest.approx(1)


def test_the_exponent_is_stretched_from_the_calibrated_one() -> None:
    grid = np.array(GRID)
    fitted = -((grid - 1.8) ** 2)[None] * 100
    faithful = -((grid - 1.1) ** 2)[None] * 100
    assert choose_tempering(fitted, faithful, stretch=1.5) == pytest.approx(1.1 + 1.5 * 0.7)
    # wrong labels that would need a flatter model are no wrong labels
    assert choose_tempering(faithful, fitted) == pytest.approx(1.8)
    with pytest.raises(DataError):
        choose_tempering(fitted[:, 1:], faithful)


def test_only_mistakes_that_follow_no_picture_are_evidence() -> None:
    """20 of 200 labels probably wrong: evidence, unless nearly all of them go with what is hard or looks alike."""
    doubt = np.repeat([0.95, 0.005], [20, 180])
    assert rate_of(doubt).evidence and rate_of(doubt, at_random=0.06).evidence
    told = rate_of(doubt, at_random=0.02)
    assert not told.evidence and told.low == 0 and told.wrong == 20


def test_concentration_tells_equal_sites_from_skewed_ones() -> None:
    rng = np.random.default_rng(1)
    pi = np.array([0.5, 0.3, 0.2])
    equal = rng.multinomial(300, pi, 20)
    skewed = np.stack([rng.multinomial(300, rng.dirichlet(6 * pi)) for _ in range(60)])
    assert fit_concentration(equal, pi) > 200
    assert fit_concentration(skewed, pi) == pytest.approx(6, rel=0.4)


def test_rate_prior_has_the_sites_mean_and_is_never_drawn_to_nothing() -> None:
    rng = np.random.default_rng(2)
    alpha, beta = fit_rate_prior(rng.binomial(400, rng.beta(4, 12, 60)), np.full(60, 400))
    assert alpha / (alpha + beta) == pytest.approx(0.25, abs=0.05)
    clean = fit_rate_prior(np.zeros(20), np.full(20, 400))
    assert clean == pytest.approx((1.0, 199.0))


def fit_of(doubt: np.ndarray) -> tuple[SiteFit, np.ndarray]:
    posterior = np.stack([1 - doubt, doubt], axis=1)
    given = np.zeros(len(doubt), np.int64)
    return SiteFit(posterior, np.zeros((2, 2)), np.ones(2) / 2, np.eye(2), float(doubt.mean()), 0.0, False), given


def test_the_interval_by_hand() -> None:
    """100 of 400 certainly wrong: Louis' information is complete, variance of the log-odds 1 / (400 * 3 / 16)."""
    fit, given = fit_of(np.repeat([1.0, 0.0], [100, 300]))
    rate = site_rate(fit, given, model_error=0.0)
    ends = expit(logit(0.25) + np.array([-1, 1]) * 1.959964 * np.sqrt(16 / 1200))
    assert (rate.low, rate.high) == (int(np.floor(400 * ends[0])), int(np.ceil(400 * ends[1])))
    assert rate.wrong == 100 and rate.share == 0.25 and rate.evidence
    wider = site_rate(fit, given)
    assert wider.low < rate.low and wider.high > rate.high


def test_few_doubts_are_no_evidence_and_leave_zero_possible() -> None:
    fit, given = fit_of(np.full(300, 0.01))
    rate = site_rate(fit, given)
    assert not rate.evidence and rate.low == 0 and rate.high >= 3
    assert not flagged([0.99] * 3, rate).any()


def test_a_site_that_is_told_is_not_told_that_there_may_be_none() -> None:
    """Wrong labels are the better explanation in the mean (0.8), which leaves a fifth to "none". The interval was 0 to
    27 then, beside the words "wrong labels"; it begins where the words do, at 2 % of 100."""
    doubt = np.repeat([0.95, 0.005], [20, 80])
    told = rate_of(doubt, 0.8, surely=SURE + 0.01)
    assert told.evidence and (told.low, told.wrong) == (2, 16) and told.high > 20
    assert rate_of(doubt, 0.8, surely=SURE - 0.01).low == 0


@settings(deadline=None, max_examples=300)
@over(
    st.lists(st.floats(0, 1), min_size=1, max_size=60),
    st.floats(0, 1),
    st.floats(0, 1),
    st.floats(0, 1),
    st.sampled_from([1, 7, 40]),
)
def test_the_answer_and_the_interval_agree(
    doubts: list[float], chance: float, surely: float, at_random: float, times: int
) -> None:
    rate = rate_of(np.repeat(doubts, times), chance, at_random=at_random, surely=surely)
    assert 0 <= rate.low <= rate.wrong <= rate.high <= rate.samples
    assert (rate.low > 0) == rate.evidence


def test_rules() -> None:
    rate = SiteRate(100, 30, 20, 40, True)
    assert flagged([0.4, 0.6, 0.9], rate).tolist() == [False, True, True]
    assert applied([0.6, 0.9, 0.9], [0, 0, 1], [1, 1, 1], rate).tolist() == [False, True, False]
