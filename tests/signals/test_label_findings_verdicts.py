"""Several findings a picture, and what verdicts change."""

from __future__ import annotations

import numpy as np
import pytest

from fedsift.contract.errors import DataError
from fedsift.signals.label_findings import fit_findings, never_annotated, two_columns
from fedsift.signals.label_posterior import LabelModel, fit_site, probability_wrong
from fedsift.signals.label_verdicts import (
    Recalibration,
    after_verdict,
    reader_error_of,
    recalibrated,
    with_known,
)


def test_a_finding_is_a_two_class_audit_and_an_unannotated_one_is_only_predicted() -> None:
    rng = np.random.default_rng(0)
    p = rng.random((60, 2))
    labels = (rng.random((60, 2)) < p).astype(np.int64)
    models = [LabelModel.start([3, 1]), LabelModel.start([1, 1])]
    fit = fit_findings(p, labels, [True, False], models)
    alone = fit_site(two_columns(p[:, 0]), labels[:, 0], models[0])
    np.testing.assert_allclose(fit.present[:, 0], alone.posterior[:, 1])
    np.testing.assert_allclose(fit.wrong[:, 0], probability_wrong(alone, labels[:, 0]))
    assert np.isnan(fit.wrong[:, 1]).all() and fit.fits[1] is None
    np.testing.assert_allclose(fit.present[:, 1], p[:, 1])  # equal shares, a = 1: what the model says
    with pytest.raises(DataError):
        fit_findings(p, labels[:, :1], [True, False], models)


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
    assert reader_error_of([], []) == 0.05


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


def test_known_labels_are_certain() -> None:
    made = with_known([[0.6, 0.4], [0.2, 0.8]], [-1, 0])
    assert made.tolist() == [[0.6, 0.4], [1.0, 0.0]]
    with pytest.raises(DataError):
        with_known([[0.6, 0.4]], [2])
