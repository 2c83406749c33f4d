"""k models at once equal one model at a time, and the gradient is the equation's."""

from __future__ import annotations

import numpy as np
import pytest

from fedsift.core.errors import DataError
from fedsift.label_audit.linear_crossfit import (
    CrossfitSettings,
    as_probabilities,
    averaged,
    crossfit_step,
    fold_numbers,
    held_out_likelihoods,
    out_of_fold,
    own_scale,
    share_shift,
    standardised,
)

ONE_STEP = CrossfitSettings(epochs=1, least_steps=1, batch=1000, lr=0.5, momentum=0.0)


def some(seed: int = 0, n: int = 30) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, 5)).astype(np.float32), rng.integers(3, size=n), rng.integers(4, size=n)


def test_one_step_is_the_gradient_of_the_mean_loss() -> None:
    """w - lr (X' (softmax(x w + shift) - y) / m + ridge w), over the samples outside the model's fold."""
    x, y, fold = some()
    w = np.random.default_rng(1).normal(size=(5, 2, 3)).astype(np.float32)
    shift = np.array([0.3, -0.2, 0.1])
    rng = np.random.default_rng(2)
    made = crossfit_step(w, x, y, fold, np.array([1, -1]), [0.1, 0.2], rng, shift=shift, settings=ONE_STEP)
    for model, (left_out, ridge) in enumerate([(1, 0.1), (-1, 0.2)]):
        rows = fold != left_out
        z = x[rows] @ w[:, model] + shift
        p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
        slope = x[rows].T @ (p - np.eye(3)[y[rows]]) / rows.sum() + ridge * w[:, model]
        np.testing.assert_allclose(made[:, model], w[:, model] - 0.5 * slope, atol=1e-5)


def test_small_sites_make_more_epochs() -> None:
    usual = CrossfitSettings()
    assert [usual.epochs_for(n) for n in (1, 64, 120, 600, 5000)] == [20, 20, 10, 2, 2]


def test_unannotated_findings_are_not_trained() -> None:
    x, _, fold = some()
    labels = np.random.default_rng(3).integers(2, size=(30, 3))
    w = np.ones((5, 1, 3), np.float32)
    options = {"annotated": [True, False, True], "settings": ONE_STEP}
    made = crossfit_step(w, x, labels, fold, np.array([-1]), [0.1], np.random.default_rng(0), **options)
    np.testing.assert_array_equal(made[:, 0, 1], w[:, 0, 1])  # not even shrunk by the ridge
    p = 1 / (1 + np.exp(-x.sum(1)))
    slope = x.T @ (p - labels[:, 0]) / 30 + 0.1
    np.testing.assert_allclose(made[:, 0, 0], 1 - 0.5 * slope, atol=1e-5)


def test_a_sample_s_own_label_does_not_reach_its_score() -> None:
    x, y, fold = some()
    held = np.arange(4)
    w = np.zeros((5, 4, 3), np.float32)
    one = crossfit_step(w, x, y, fold, held, np.full(4, 0.01), np.random.default_rng(0))
    changed = y.copy()
    changed[7] = (y[7] + 1) % 3
    other = crossfit_step(w, x, changed, fold, held, np.full(4, 0.01), np.random.default_rng(0))
    mine = out_of_fold(one, x, fold, held)[7]
    np.testing.assert_array_equal(out_of_fold(other, x, fold, held)[7], mine)
    assert not np.array_equal(one, other)


def test_soft_targets_of_certainty_are_labels() -> None:
    x, y, fold = some()
    w = np.zeros((5, 2, 3), np.float32)
    hard = crossfit_step(w, x, y, fold, np.array([0, 1]), [0.1, 0.1], np.random.default_rng(0))
    soft = crossfit_step(w, x, np.eye(3)[y], fold, np.array([0, 1]), [0.1, 0.1], np.random.default_rng(0))
    np.testing.assert_array_equal(hard, soft)


def test_a_site_standardises_by_itself() -> None:
    rows = np.random.default_rng(4).normal(5, 3, (400, 6)).astype(np.float32)
    rows[:, 2] = 7.0  # says nothing: becomes zero, not noise
    found = standardised(rows, own_scale(rows))
    np.testing.assert_allclose(found[:, :-1].mean(0), 0, atol=1e-5)
    np.testing.assert_allclose(found[:, [0, 1, 3]].std(0), 4 / np.sqrt(6), rtol=1e-3)
    assert not found[:, 2].any() and (found[:, -1] == 1).all()
    with pytest.raises(DataError):
        own_scale(rows[:0])


def test_sites_with_other_mixes_of_classes_standardise_nearly_alike() -> None:
    # 900 of one class at 0 and 100 of another at 1, and the other way round: plain means are 0.1 and 0.9, by classes
    # of weight n / (n + 10) they are (100 / 110) / (900 / 910 + 100 / 110) = 0.479 and 1 - 0.479
    for many, mean in ((0, 0.479), (1, 0.521)):
        given = np.repeat([many, 1 - many], [900, 100])
        centre, deviation = own_scale(given[:, None].astype(np.float32), given)
        assert centre[0] == pytest.approx(mean, abs=1e-3)
        assert deviation[0] == pytest.approx(0.5, abs=1e-3)


def test_no_label_shows_in_a_likelihood_by_more_than_ten() -> None:
    weights = np.zeros((2, 1, 2), np.float32)
    weights[1, 0] = [500.0, -500.0]  # certain of the first class
    features = np.ones((12, 2), np.float32)
    for wrong in (0, 1, 2):
        given = np.array([1] * wrong + [0] * (12 - wrong))
        assert held_out_likelihoods(weights, features, given, np.zeros(12, int), np.zeros(1, int)) == [-10.0 * wrong]


def test_groups_are_never_parted_and_folds_are_even() -> None:
    groups = np.repeat(np.arange(40), np.arange(40) % 4 + 1)
    fold = fold_numbers(groups, len(groups), 5, np.random.default_rng(0))
    assert all(len(np.unique(fold[groups == g])) == 1 for g in range(40))
    assert np.ptp(np.bincount(fold)) <= 1
    assert np.bincount(fold_numbers(None, 11, 5, np.random.default_rng(0))).tolist() == [3, 2, 2, 2, 2]


def test_shift_average_and_held_out_likelihood() -> None:
    np.testing.assert_allclose(share_shift([20, 0], [0.5, 0.5]), np.log([30 / 40 / 0.5, 10 / 40 / 0.5]), rtol=1e-6)
    ones, threes = np.ones((2, 1, 2), np.float32), 3 * np.ones((2, 1, 2), np.float32)
    np.testing.assert_allclose(averaged([ones, threes], [3, 1]), 1.5)
    x, y, fold = some()
    zero = np.zeros((5, 2, 3), np.float32)
    sums = held_out_likelihoods(zero, x, y, fold, np.array([0, 2]))
    np.testing.assert_array_equal(sums, np.rint([-(fold == 0).sum() * np.log(3), -(fold == 2).sum() * np.log(3)]))
    np.testing.assert_allclose(as_probabilities([[0.0, np.log(3)]]), [[0.25, 0.75]])
    np.testing.assert_allclose(as_probabilities([[0.0]], sigmoid=True), [[0.5]])
    assert np.isnan(out_of_fold(zero, x, fold, np.array([0, 2]))[fold == 1]).all()
