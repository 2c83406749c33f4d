"""Several findings a picture, and what verdicts change."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedsift.core.errors import DataError
from fedsift.detection.any_wrong_labels import fit_site
from fedsift.detection.label_posterior import FOLLOWS, FURTHEST, LabelModel, SiteFit
from fedsift.detection.label_rates import site_rate
from fedsift.label_audit.multilabel import (
    fit_annotator,
    fit_questions,
    never_annotated,
    site_rates,
    two_columns,
)
from fedsift.label_audit.recalibration import (
    Recalibration,
    after_verdict,
    reader_error_of,
    recalibrated,
    with_known,
)


def answered(
    rng: np.random.Generator, errors: list[list[float]], n: int = 500, findings: int = 6
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """P(true) `[n, Q, 2]` by Bayes' rule, the true answers, and those of an annotator with T = errors."""
    true = (rng.random((n, findings)) < 0.15).astype(np.int64)
    score = rng.normal(4.0 * true - 2.0, 1.4)
    p = 1 / (1 + np.exp(-(4.0 / 1.4**2 * score + np.log(0.15 / 0.85))))
    given = np.where(rng.random(true.shape) < np.array(errors)[true, 1 - true], 1 - true, true)
    return two_columns(p), true, given


def test_one_question_is_the_picture_s_label_and_an_unannotated_finding_has_no_fit() -> None:
    rng = np.random.default_rng(0)
    p, _, given = answered(rng, [[0.9, 0.1], [0.2, 0.8]], 60, 2)
    models = [LabelModel.start([3, 1]), LabelModel.start([1, 1])]
    [alone] = fit_questions(p[:, :1], given[:, :1], [True], models[:1])
    assert alone is not None
    np.testing.assert_array_equal(alone.posterior, fit_site(p[:, 0], given[:, 0], models[0]).posterior)
    first, second = fit_questions(p, given, [True, False], models)
    assert first is not None and second is None
    assert fit_questions(p, given, [False, False], models) == [None, None]
    with pytest.raises(DataError):
        fit_questions(p, given[:, :1], [True, False], models)


def test_a_site_s_annotator_solves_its_own_equations() -> None:
    """At the end q T(x) is the posterior, T the drawn counts of all findings, pi_s the drawn shares of each."""
    rng = np.random.default_rng(1)
    p, _, given = answered(rng, [[0.95, 0.05], [0.3, 0.7]])
    models = [LabelModel.start([0.85, 0.15]).with_tempering(1.2) for _ in range(6)]
    fits = fit_annotator([p[:, q] for q in range(6)], given, models)
    total = np.zeros((2, 2))
    for q, (fit, model) in enumerate(zip(fits, models)):
        evidence = p[:, q] ** 1.2 / model.given_shares
        own = evidence * fit.shares
        own /= own.sum(1, keepdims=True)
        harder = np.exp(FOLLOWS * np.clip(np.log(1 / own - 1), -FURTHEST, FURTHEST))
        row = np.diag(fit.errors) + (1 - np.diag(fit.errors)) * harder
        right = given[:, q, None] == np.arange(2)
        own *= np.where(right, np.diag(fit.errors), fit.errors.T[given[:, q]] * harder) / row
        np.testing.assert_allclose(fit.posterior, own / own.sum(1, keepdims=True), rtol=1e-9)
        drawn = fit.posterior.sum(0) + model.concentration * model.shares
        np.testing.assert_allclose(fit.shares, drawn / drawn.sum(), atol=2e-4)
        assert fit.rate == pytest.approx(1 - np.trace(fit.counts) / 500)
        for c in range(2):
            wrong = fit.posterior[given[:, q] != c, c].sum() * fit.posterior[:, c].sum()
            wrong /= (fit.posterior * harder / row)[:, c].sum()
            total[c, 1 - c] += wrong
            total[c, c] += fit.posterior[:, c].sum() - wrong
    # 1.5 / 6.5 wrong is the start's mean rate, for both kinds of mistake
    base = np.array([[5 / 6.5, 1.5 / 6.5], [1.5 / 6.5, 5 / 6.5]])
    wanted = total + np.array([[200.0], [50.0]]) * base
    np.testing.assert_allclose(fits[0].errors, wanted / wanted.sum(1, keepdims=True), atol=2e-4)


def test_one_annotator_is_told_from_a_careful_one() -> None:
    rng = np.random.default_rng(2)
    model = replace(LabelModel.start([0.85, 0.15]), rate_prior=(1.0, 40.0))
    found = {}
    for name, errors in (("careless", [[0.93, 0.07], [0.3, 0.7]]), ("careful", [[1.0, 0.0], [0.0, 1.0]])):
        p, true, given = answered(rng, errors)
        fits = fit_questions(p, given, [True] * 6, [model] * 6)
        rates = site_rates(fits, given)
        found[name] = {rate.evidence for rate in rates if rate is not None}
        estimated = sum(rate.wrong for rate in rates if rate is not None) / given.size
        assert estimated == pytest.approx((given != true).mean(), abs=0.02)
    assert found == {"careless": {True}, "careful": {False}}  # asked once, of all findings together


def test_no_finding_s_interval_lies_above_nothing_at_a_site_that_is_not_told() -> None:
    """One of ten findings has 6 % of its answers wrong, which is 0.6 % of all: asked of all together, no evidence."""
    doubt = np.zeros((400, 10))
    doubt[:24, 0] = 1.0
    answers = np.zeros((400, 10), np.int64)
    fits = [
        SiteFit(np.stack([1 - d, d], 1), np.zeros((2, 2)), np.ones(2) / 2, np.eye(2), float(d.mean()), 0.0, False)
        for d in doubt.T
    ]
    assert site_rate(fits[0], answers[:, 0]).low > 0  # asked of this one alone
    rates = [rate for rate in site_rates(fits, answers) if rate is not None]
    assert not any(rate.evidence or rate.low for rate in rates) and rates[0].wrong == 24


def test_never_annotated_needs_enough_samples() -> None:
    labels = np.zeros((200, 3), np.int64)
    labels[0, 1] = 1
    # (1 - .05)^200 < .01: would have shown; (1 - .001)^200 = .82 says nothing
    assert never_annotated(labels, [0.05, 0.05, 0.001]).tolist() == [True, False, False]


def test_no_verdict_changes_nothing() -> None:
    assert recalibrated([], []) == Recalibration()
    np.testing.assert_allclose(Recalibration()([0.1, 0.7]), [0.1, 0.7])


def test_verdicts_that_agree_leave_it_and_others_move_it() -> None:
    rng = np.random.default_rng(1)
    told = rng.random(4000)
    same = recalibrated(told, rng.random(4000) < told)
    assert abs(same.offset) < 0.15 and same.slope == pytest.approx(1, abs=0.15)
    sure = recalibrated(told, rng.random(4000) < 1 / (1 + np.exp(-(0.5 * np.log(told / (1 - told)) - 1))))
    assert sure.offset == pytest.approx(-1, abs=0.15) and sure.slope == pytest.approx(0.5, abs=0.1)


def test_a_reader_s_errors_are_allowed_for() -> None:
    rng = np.random.default_rng(2)
    told = rng.random(4000)
    seen = (rng.random(4000) < told) ^ (rng.random(4000) < 0.1)
    assert recalibrated(told, seen, reader_error=0.1).slope == pytest.approx(1, abs=0.15)
    assert recalibrated(told, seen).slope < 0.85
    with pytest.raises(DataError):
        recalibrated(told, seen, reader_error=0.5)


def test_the_verdicts_tell_how_often_they_are_mistaken() -> None:
    rng = np.random.default_rng(5)
    told = np.clip(rng.beta(0.2, 0.2, 3000), 0.01, 0.99)
    right = rng.random(3000) < told
    for error in (0.02, 0.1, 0.2):
        seen = right ^ (rng.random(3000) < error)
        assert reader_error_of(told, seen) == pytest.approx(error, abs=0.03)
    assert reader_error_of([], []) == pytest.approx(0.1, abs=0.005)  # no verdict: the mean of Beta(2, 18)


def test_a_verdict_by_hand() -> None:
    """P = (.7, .2, .1), class 1 said by one reader who is mistaken in a tenth: (.7 * .05, .2 * .9, .1 * .05)."""
    after = after_verdict([[0.7, 0.2, 0.1]], [1], [1], 0.1)
    np.testing.assert_allclose(after, [np.array([0.035, 0.18, 0.005]) / 0.22])
    twice = after_verdict(after, [1], [1], 0.1)
    np.testing.assert_allclose(after_verdict([[0.7, 0.2, 0.1]], [1], [2], 0.1), twice)


def test_arms_count_by_what_they_stand_for() -> None:
    """Half of the reviewed have weight 9: their verdicts (never wrong) decide over the others' (always wrong)."""
    told, found = np.full(100, 0.5), np.repeat([1.0, 0.0], 50)
    assert recalibrated(told, found)([0.5])[0] == pytest.approx(0.5)
    weighted = recalibrated(told, found, np.repeat([1.0, 9.0], 50), prior_weight=0.0)([0.5])[0]
    assert weighted == pytest.approx(0.1, abs=1e-3)


def test_the_order_of_the_list_never_turns() -> None:
    told = np.linspace(0.05, 0.95, 200)
    curve = recalibrated(told, told < 0.5)
    assert (np.diff(curve(told)) > 0).all()


def test_known_labels_are_as_certain_as_their_readers() -> None:
    erring = with_known([[0.6, 0.4], [0.2, 0.8]], [-1, 0], [1, 2], reader_error=0.1)
    # 2 to 8, times 9 for each of two readers
    np.testing.assert_allclose(erring, [[0.6, 0.4], [81 / 85, 4 / 85]])
    made = with_known([[0.6, 0.4], [0.2, 0.8]], [-1, 0])
    assert made.tolist() == [[0.6, 0.4], [1.0, 0.0]]
    with pytest.raises(DataError):
        with_known([[0.6, 0.4]], [2])
