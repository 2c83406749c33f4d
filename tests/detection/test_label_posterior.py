"""The site-aware posterior against hand-derived numbers, a plain transcription, and a toy with known truth."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsift.core.errors import DataError
from fedsift.detection import label_posterior
from fedsift.detection.any_wrong_labels import any_wrong, fit_site, gain_of_wrong
from fedsift.detection.label_posterior import (
    FOLLOWS,
    FURTHEST,
    GRID,
    LabelModel,
    SiteFit,
    error_shape,
    fit_with_wrong,
    judge,
    matched_to_rate,
    mistaken_for,
    probability_wrong,
    similar_names,
)
from fedsift.detection.label_rates import site_rate
from fedsift.label_audit.messages import first_reply, last_fit, second_reply, shared_model, start_model


def cloud(
    rng: np.random.Generator, rates: list[float], samples: int = 400, classes: int = 3, apart: float = 2.2
) -> tuple[list[np.ndarray], list[np.ndarray], list[np.ndarray]]:
    """Sites of normal clouds with symmetric noise: P(given | x) exactly, as a perfect model would learn it from all
    sites, given labels and true ones."""
    corners = apart * np.eye(classes)
    p, given, true = [], [], []
    mean_rate = float(np.mean(rates))
    for rate in rates:
        label = rng.integers(classes, size=samples)
        x = corners[label] + rng.normal(size=(samples, classes))
        q = np.exp(x @ corners.T)
        q /= q.sum(1, keepdims=True)
        p.append((1 - mean_rate) * q + mean_rate * (1 - q) / (classes - 1))
        wrong = rng.random(samples) < rate
        given.append(np.where(wrong, (label + rng.integers(1, classes, samples)) % classes, label))
        true.append(label)
    return p, given, true


def audit(p: list[np.ndarray], given: list[np.ndarray], min_count: int = 10) -> tuple[LabelModel, list[SiteFit]]:
    classes = p[0].shape[1]
    start = start_model([first_reply(labels, classes, min_count) for labels in given])
    own = [second_reply(one, labels, start, min_count) for one, labels in zip(p, given, strict=True)]
    shared = shared_model(own, start)
    return shared.model, [last_fit(a, b, shared, c) for a, b, c in zip(p, given, own, strict=True)]


def test_one_step_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two classes, shares 1/2, a = 1, one sample p = (.8, .2) given class 1.

    Start: pi_s = (0 + 10 / 2, 1 + 10 / 2) / 11 = (5, 6) / 11 and T = [[.85, .15], [.15, .85]], so
    q = (.8 * 5, .2 * 6) / 5.2 = (10, 3) / 13. If class 0 is true, the odds of a mistake are .15 / .85 times
    (3 / 10)^d; if class 1 is, they are .15 / .85 times (10 / 3)^d, and the label is none.
    """
    monkeypatch.setattr(label_posterior, "ITERATIONS", 0)
    fit = fit_with_wrong([[0.8, 0.2]], [1], LabelModel.start([1, 1]))
    mistaken = 0.15 * 0.3**FOLLOWS / (0.85 + 0.15 * 0.3**FOLLOWS)
    right = 0.85 / (0.85 + 0.15 * (10 / 3) ** FOLLOWS)
    total = 10 * mistaken + 3 * right
    np.testing.assert_allclose(fit.posterior, [[10 * mistaken / total, 3 * right / total]])
    np.testing.assert_allclose(fit.log_likelihood, np.log(total / 13))
    np.testing.assert_allclose(fit.doubt([1]), [10 * mistaken / total])


def test_the_fit_is_a_fixed_point_of_the_equations_written_out() -> None:
    rng = np.random.default_rng(3)
    p, given_, _ = cloud(rng, [0.3], samples=150)
    model = LabelModel.start([1, 1, 1]).with_tempering(1.5)
    fit = fit_with_wrong(p[0], given_[0], model)
    expected = np.zeros((3, 3))
    counts, harder = np.zeros((3, 3)), np.zeros(3)
    for i, label in enumerate(given_[0]):
        q = np.array([fit.shares[c] * p[0][i, c] ** 1.5 / model.given_shares[c] for c in range(3)])
        q /= q.sum()
        weight, factor = [], []
        for c in range(3):
            odds = np.exp(np.clip(np.log((1 - q[c]) / q[c]), -FURTHEST, FURTHEST)) ** FOLLOWS
            row = [fit.errors[c, j] * (odds if j != c else 1.0) for j in range(3)]
            weight.append(q[c] * row[label] / sum(row))
            factor.append(odds / sum(row))
        posterior = np.array(weight) / sum(weight)
        np.testing.assert_allclose(fit.posterior[i], posterior, rtol=1e-6)
        counts[:, label] += posterior
        harder += posterior * factor
    # errors: wrong labels of a class by its mean factor, drawn to 100 samples' worth of the shape at the fitted rate
    mean = harder / counts.sum(1)
    for c in range(3):
        wrong = {j: counts[c, j] / mean[c] for j in range(3) if j != c}
        expected[c] = [wrong.get(j, counts[c].sum() - sum(wrong.values())) for j in range(3)]
    alike = mistaken_for(model.confusion, similar_names(p[0], model.given_shares))
    drawn = expected + 100 * error_shape(fit.rate, alike, model.relative_rates)
    np.testing.assert_allclose(fit.errors, drawn / drawn.sum(1, keepdims=True), atol=5e-3)
    shares = (fit.posterior.sum(0) + 10 * model.shares) / 160
    np.testing.assert_allclose(fit.shares, shares, atol=2e-3)


@pytest.mark.parametrize("rates", [[0.2, 0.2], [0.05, 0.4], [0.4, 0.4]])
def test_rates_of_a_toy_with_known_truth(rates: list[float]) -> None:
    """Where all sites have the same symmetric noise and the model is perfectly calibrated, ambiguous pictures explain
    the labels as well as wrong ones do: the rate *if there are any* is right, and the interval leaves both open."""
    p, labels, true = cloud(np.random.default_rng(1), rates * 3, samples=500)
    _, fits = audit(p, labels)
    for fit, given_, truth in zip(fits, labels, true, strict=True):
        rate, wrong = site_rate(fit, given_), given_ != truth
        assert abs(fit.doubt_if_any(given_).mean() - wrong.mean()) < 0.1
        assert rate.low <= wrong.sum() <= rate.high
        if rates[0] != rates[1]:
            assert abs(rate.share - wrong.mean()) < 0.1
    told = np.concatenate([f.doubt_if_any(g) for f, g in zip(fits, labels, strict=True)])
    wrong = np.concatenate(labels) != np.concatenate(true)
    assert told[wrong].mean() > told[~wrong].mean() + 0.4


def test_a_site_whose_pictures_are_hard_is_not_told_of_wrong_labels() -> None:
    """Twelve sites with clouds far apart, four of them with wrong labels, and one whose clouds overlap: the model is
    right as often as it claims there too, and all of the site's labels are right."""
    rng = np.random.default_rng(6)
    p, labels, _ = cloud(rng, [0.0] * 8 + [0.3] * 4, apart=4.0, samples=800)
    hard, hard_labels, _ = cloud(rng, [0.0], apart=1.2, samples=800)
    _, fits = audit([*p, hard[0]], [*labels, hard_labels[0]])
    assert fits[-1].any_wrong < 0.2
    assert not site_rate(fits[-1], hard_labels[0]).evidence
    assert min(fit.any_wrong for fit in fits[8:12]) > 0.9


def test_whether_any_label_is_wrong_by_hand() -> None:
    """gain 5, n = 300 = ENOUGH, Beta weight 6.5, half of the sites: odds exp((5 - log(1 + 300 / 6.5) / 2) / 2)."""
    model = LabelModel.start([1, 1])
    odds = np.exp((5 - np.log(1 + 300 / 6.5) / 2) / 2)
    assert any_wrong(5.0, 300, model) == pytest.approx(odds / (1 + odds))
    assert any_wrong(-1e9, 0, replace(model, noisy_sites=0.8)) == pytest.approx(0.8)


def test_without_wrong_labels_no_exponent_below_the_calibrated_one_is_allowed() -> None:
    model = replace(LabelModel.start([1, 1]), calibrated=1.0)
    faithful = np.where(np.array(GRID) < 1.0, 0.0, -50.0)
    assert gain_of_wrong(np.full(len(GRID), -10.0), faithful, model) == 40.0
    assert gain_of_wrong(np.full(len(GRID), -10.0), faithful, replace(model, calibrated=0.5)) == -10.0


def test_the_fit_is_weighed_by_whether_any_label_is_wrong() -> None:
    p, labels, _ = cloud(np.random.default_rng(3), [0.3], samples=150)
    model = LabelModel.start([1, 1, 1]).with_tempering(1.5)
    plain, weighed = fit_with_wrong(p[0], labels[0], model), fit_site(p[0], labels[0], model)
    w = weighed.any_wrong
    assert 0 < w < 1
    np.testing.assert_allclose(weighed.posterior, w * plain.posterior + (1 - w) * np.eye(3)[labels[0]], atol=1e-12)
    np.testing.assert_allclose(weighed.doubt_if_any(labels[0]), plain.doubt(labels[0]), atol=1e-9)
    np.testing.assert_allclose(
        probability_wrong(weighed, labels[0]), w * probability_wrong(plain, labels[0]), atol=1e-9
    )
    later, doubt = judge(p[0], labels[0], model, weighed, labels[0])
    np.testing.assert_allclose(later, weighed.posterior, atol=1e-4)
    np.testing.assert_allclose(doubt, probability_wrong(weighed, labels[0]), atol=1e-4)


def test_clean_sites_have_no_evidence() -> None:
    p, labels, _ = cloud(np.random.default_rng(2), [0.0] * 4)
    _, fits = audit(p, labels)
    assert not any(site_rate(fit, given_).evidence for fit, given_ in zip(fits, labels, strict=True))


def test_swapped_codes_are_found_and_named() -> None:
    rng = np.random.default_rng(4)
    p, labels, true = cloud(rng, [0.0] * 6, apart=3.0)
    labels[2] = (labels[2] + 1) % 3
    _, fits = audit(p, labels)
    assert [fit.swapped for fit in fits] == [False, False, True, False, False, False]
    assert (fits[2].proposed == true[2]).mean() > 0.9
    assert site_rate(fits[2], labels[2]).share > 0.9


def test_names_of_classes_do_not_matter() -> None:
    p, labels, _ = cloud(np.random.default_rng(5), [0.3])
    order = np.array([2, 0, 1])
    model = LabelModel.start([3, 2, 1]).with_tempering(1.7)
    turned = LabelModel.start(np.array([3, 2, 1])[order]).with_tempering(1.7)
    one = fit_site(p[0], labels[0], model)
    other = fit_site(p[0][:, order], np.argsort(order)[labels[0]], turned)
    np.testing.assert_allclose(other.posterior, one.posterior[:, order], atol=1e-8)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 40), st.integers(2, 5), st.floats(0.5, 4.0))
def test_a_posterior_is_one(seed: int, samples: int, classes: int, a: float) -> None:
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.full(classes, 0.3), samples)
    labels = rng.integers(classes, size=samples)
    fit = fit_site(p, labels, LabelModel.start(np.ones(classes)).with_tempering(a))
    np.testing.assert_allclose(fit.posterior.sum(1), 1, atol=1e-9)
    np.testing.assert_allclose(fit.errors.sum(1), 1, atol=1e-9)
    np.testing.assert_allclose(fit.counts.sum(), samples)
    told = probability_wrong(fit, labels)
    assert ((told >= 0) & (told <= 1)).all()
    np.testing.assert_allclose(told.mean(), fit.doubt(labels).mean(), atol=1e-6)


@pytest.mark.parametrize("samples", [0, 1, 30])
def test_a_site_of_one_class_or_no_sample(samples: int) -> None:
    fit = fit_site(np.full((samples, 4), 0.25), np.full(samples, 2), LabelModel.start(np.ones(4)))
    assert np.isfinite(fit.posterior).all() and fit.posterior.shape == (samples, 4)
    assert site_rate(fit, np.full(samples, 2)).samples == samples


def test_certain_probabilities_stay_finite() -> None:
    fit = fit_site(np.eye(3)[[0, 1, 2, 0]], [0, 1, 2, 1], LabelModel.start(np.ones(3)).with_tempering(4.0))
    assert np.isfinite(fit.posterior).all()
    assert fit.doubt([0, 1, 2, 1]).argmax() == 3


def test_what_does_not_fit_is_refused() -> None:
    model = LabelModel.start(np.ones(3))
    with pytest.raises(DataError, match="do not fit"):
        fit_site(np.ones((2, 2)), [0, 1], model)
    with pytest.raises(DataError, match="classes from 0 to 2"):
        fit_site(np.ones((1, 3)), [3], model)
    with pytest.raises(DataError, match="diverged"):
        fit_site(np.full((1, 3), np.nan), [0], model)


def test_matching_keeps_the_order_and_the_mean() -> None:
    doubt = np.array([0.01, 0.2, 0.5, 0.9])
    made = matched_to_rate(doubt, 0.3, 0.75)
    assert (np.diff(made) > 0).all()
    np.testing.assert_allclose(made.mean(), 0.3, atol=1e-9)
    np.testing.assert_allclose(matched_to_rate(doubt, float(doubt.mean())), doubt, atol=1e-6)
