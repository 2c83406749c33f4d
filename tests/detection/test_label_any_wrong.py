"""Whether a site has wrong labels at all: numbers by hand, and sites whose pictures or labels are not the others'."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm
from tests.detection.test_label_posterior import audit, cloud

from fedsift.detection.any_wrong_labels import (
    MARGIN,
    VAGUE,
    chance_of_wrong,
    faithful_each,
    faithful_likelihoods,
    fit_site,
    margin_of,
    sample_gains,
)
from fedsift.detection.label_posterior import GRID, LabelModel, fit_with_wrong
from fedsift.detection.label_rates import SURE, rate_of, site_rate
from fedsift.label_audit.messages import second_reply


def test_the_chance_by_hand() -> None:
    """Gains 1 and 3 twice over: sum 8, variance 1, n = 4; the cost is log(1 + 4 / 6.5) / 2, and 4 times the margin."""
    z = (8 - 0.5 * np.log(1 + 4 / 6.5) - 4 * MARGIN) / np.sqrt(4 * 1 + VAGUE**2)
    assert chance_of_wrong([1, 3, 1, 3]) == pytest.approx(norm.cdf(z))
    assert chance_of_wrong([]) == 0.5


def test_a_small_misfit_is_no_evidence_however_many_samples_show_it() -> None:
    assert chance_of_wrong(np.full(100_000, 0.9 * MARGIN)) < 0.5 < chance_of_wrong(np.full(100_000, 1.1 * MARGIN))


def test_how_many_other_sites_are_noisy_has_no_say() -> None:
    p, labels, _ = cloud(np.random.default_rng(3), [0.0], samples=300)
    few, many = (replace(LabelModel.start([1, 1, 1]), noisy_sites=w, calibrated=1.0) for w in (0.1, 0.9))
    assert fit_site(p[0], labels[0], few).surely_wrong == fit_site(p[0], labels[0], many).surely_wrong


def test_a_model_that_is_surer_than_right_needs_more_evidence() -> None:
    """At an exponent of 0.55 the margin is 0.0075 + 0.1 (0.95 - 0.55) = 0.0475 nats a sample."""
    start = LabelModel.start([1, 1])
    assert margin_of(replace(start, calibrated_at_best=1.1)) == MARGIN == 0.0075
    assert margin_of(replace(start, calibrated_at_best=0.55)) == pytest.approx(0.0475)
    p, labels, _ = cloud(np.random.default_rng(3), [0.0] * 5 + [0.1], apart=4.0, samples=600)
    shared, _ = audit(p, labels)
    sure = [fit_site(p[-1], labels[-1], replace(shared, calibrated_at_best=c)).surely_wrong for c in (1.0, 0.5, 0.1)]
    assert sure[0] > sure[1] > sure[2]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(-50, 50), min_size=1, max_size=40), st.floats(0.01, 3.0))
def test_more_gain_is_more_chance_and_a_wider_scatter_is_less_sure(gains: list[float], more: float) -> None:
    values = np.array(gains)
    assert chance_of_wrong(values + more) >= chance_of_wrong(values)
    scattered = values + 30 * np.where(np.arange(len(values)) % 2 == 0, 1.0, -1.0) * (len(values) % 2 == 0)
    close, wide = (
        chance_of_wrong(np.full(len(values), values.mean())),
        chance_of_wrong(scattered),
    )
    if len(values) % 2 == 0:
        assert abs(wide - 0.5) <= abs(close - 0.5) + 1e-9


def test_scaled_weights_expect_as_many_of_each_class_as_were_given() -> None:
    """p says 0.6 / 0.4 of every picture, 30 of 100 labels are of class 0. Without a prior, b makes it 0.3 / 0.7."""
    p, labels = np.tile([0.6, 0.4], (100, 1)), np.repeat([0, 1], [30, 70])
    model = replace(LabelModel.start([1, 1]), concentration=1e-9)
    scaled = faithful_each(p, labels, model, [1.0], 50)[0]
    np.testing.assert_allclose(np.exp(scaled[[0, -1]]), [0.3, 0.7], atol=1e-6)
    # the given labels' shares alone: 0.6 * 0.3 against 0.4 * 0.7
    plain = faithful_each(p, labels, model, [1.0])[0]
    np.testing.assert_allclose(np.exp(plain[[0, -1]]), [0.18 / 0.46, 0.28 / 0.46], atol=1e-6)
    assert faithful_likelihoods(p, labels, model, [1.0]) == pytest.approx(plain.sum())


def test_scaling_never_explains_the_labels_worse() -> None:
    p, labels, _ = cloud(np.random.default_rng(8), [0.0, 0.3])
    model = LabelModel.start(np.ones(3))
    for one, given_ in zip(p, labels, strict=True):
        plain = faithful_each(one, given_, model, [0.75, 1.0, 1.5]).sum(1)
        scaled = faithful_each(one, given_, model, [0.75, 1.0, 1.5], 30).sum(1)
        assert (scaled >= plain - 0.5).all()  # the prior's weight of ten samples is not in these sums
        alike, different = sample_gains(one, given_, model)
        assert different.sum() <= alike.sum() + 0.5


def test_a_site_whose_pictures_look_different_is_not_told_of_wrong_labels() -> None:
    """The model's scores lean to the first class at the last site, by two nats; all labels are right there."""
    rng = np.random.default_rng(11)
    p, labels, _ = cloud(rng, [0.0] * 7 + [0.3, 0.0], apart=2.5, samples=800)
    leaning = p[-1] * np.exp([2.0, 0.0, 0.0])
    p[-1] = leaning / leaning.sum(1, keepdims=True)
    _, fits = audit(p, labels)
    assert fits[-1].surely_wrong < 0.5
    assert not site_rate(fits[-1], labels[-1]).evidence
    assert fits[7].surely_wrong > SURE and site_rate(fits[7], labels[7]).evidence


def test_the_fit_is_weighed_by_the_mean_of_both_answers() -> None:
    p, labels, _ = cloud(np.random.default_rng(3), [0.3], samples=150)
    model = replace(LabelModel.start([1, 1, 1]), calibrated=1.0).with_tempering(1.5)
    fit = fit_site(p[0], labels[0], model)
    alike, different = (chance_of_wrong(gains, margin_of(model)) for gains in sample_gains(p[0], labels[0], model))
    assert fit.any_wrong == pytest.approx((alike + different) / 2)
    assert fit.surely_wrong == pytest.approx(min(alike, different))


def test_a_site_is_told_only_if_it_is_sure_either_way() -> None:
    doubt = np.full(400, 0.3)
    assert rate_of(doubt, 1.0, surely=SURE + 0.01).evidence
    told = rate_of(doubt, 0.8, surely=SURE - 0.01)
    assert not told.evidence and told.low == 0 and told.high > 120


def test_a_site_of_nearly_one_class_is_not_taken_for_swapped_codes() -> None:
    """19 of 20 pictures are of class 0 and four in ten of their labels are mistaken; most labels still agree with the
    model, so that no codes were swapped."""
    rng = np.random.default_rng(4)
    true = (rng.random(1500) < 0.05).astype(int) * rng.integers(1, 4, 1500)
    noise = rng.dirichlet(np.full(4, 0.4), 1500)
    p = 0.55 * np.eye(4)[true] + 0.45 * noise
    wrong = rng.random(1500) < 0.4
    given_ = np.where(wrong, (true + rng.integers(1, 4, 1500)) % 4, true)
    model = LabelModel.start([10, 2, 2, 2])
    for a in (0.5, 1.0, 2.0):
        assert not fit_with_wrong(p, given_, model.with_tempering(a)).swapped


def test_likelihoods_of_the_second_exchange_give_the_same_fit() -> None:
    p, labels, _ = cloud(np.random.default_rng(5), [0.2], samples=300)
    start = LabelModel.start(np.ones(3))
    own = second_reply(p[0], labels[0], start)
    model = replace(start, noisy_sites=0.4, calibrated=1.0).with_tempering(1.6)
    told, counted = fit_site(p[0], labels[0], model, own.nats), fit_site(p[0], labels[0], model)
    np.testing.assert_array_equal(told.posterior, counted.posterior)
    nothing = fit_site(p[0], labels[0], model, np.zeros(len(GRID)))  # of a site below the minimum count
    np.testing.assert_array_equal(nothing.posterior, counted.posterior)
