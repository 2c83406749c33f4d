"""Metrics against scikit-learn and by hand, with classes that are empty and numbers that are missing."""

from __future__ import annotations

import json
import math
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, balanced_accuracy_score, confusion_matrix, roc_auc_score

from fedsift.core import numbers
from fedsift.core.errors import DataError
from fedsift.formulas import metrics
from fedsift.runs import reading

nan = float("nan")


class TestClassification:
    @given(seed=st.integers(0, 10_000), n=st.integers(1, 60))
    @settings(max_examples=30, deadline=None)
    def test_against_sklearn(self, seed: int, n: int) -> None:
        rng = np.random.default_rng(seed)
        true, predicted = rng.integers(0, 4, n), rng.integers(0, 4, n)
        counts = metrics.confusion(true, predicted, 4)
        np.testing.assert_array_equal(counts, confusion_matrix(true, predicted, labels=range(4)))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            want = balanced_accuracy_score(true, predicted)
        right, total = counts.diagonal(), counts.sum(1)
        assert metrics.balanced_accuracy(right, total) == pytest.approx(want)
        assert metrics.accuracy(right, total) == pytest.approx((true == predicted).mean())

    def test_counts_of_sites_add_up(self) -> None:
        rng = np.random.default_rng(0)
        true, predicted = rng.integers(0, 3, 50), rng.integers(0, 3, 50)
        parts = [metrics.confusion(true[k::2], predicted[k::2], 3) for k in (0, 1)]
        np.testing.assert_array_equal(parts[0] + parts[1], metrics.confusion(true, predicted, 3))

    def test_a_class_without_samples_is_undefined_and_left_out(self) -> None:
        counts = metrics.confusion([0, 0, 1], [0, 2, 1], 3)
        right, total = counts.diagonal(), counts.sum(1)
        recall = metrics.recall_per_class(right, total)
        assert recall[:2].tolist() == [0.5, 1.0]
        assert math.isnan(recall[2])
        assert metrics.balanced_accuracy(right, total) == 0.75

    def test_no_samples_at_all(self) -> None:
        counts = metrics.confusion([], [], 3)
        assert counts.sum() == 0
        right, total = counts.diagonal(), counts.sum(1)
        assert math.isnan(metrics.accuracy(right, total))
        assert math.isnan(metrics.balanced_accuracy(right, total))

    def test_bad_labels_are_refused(self) -> None:
        with pytest.raises(DataError, match="prediction lies outside"):
            metrics.confusion([0, 1], [0, 3], 3)
        with pytest.raises(DataError, match="label lies outside"):
            metrics.confusion([-1, 1], [0, 1], 3)
        with pytest.raises(DataError, match="2 labels but 1"):
            metrics.confusion([0, 1], [0], 3)


class TestMultilabel:
    @given(seed=st.integers(0, 10_000), n=st.integers(2, 40), steps=st.sampled_from([3, 1000]))
    @settings(max_examples=30, deadline=None)
    def test_against_sklearn(self, seed: int, n: int, steps: int) -> None:
        rng = np.random.default_rng(seed)
        labels, scores = rng.integers(0, 2, (n, 3)), rng.integers(0, steps, (n, 3)) / steps
        got = metrics.multilabel_scores(labels, scores)
        for c in range(3):
            y, s = labels[:, c], scores[:, c]
            if 0 < y.sum() < n:
                assert got.auc_per_class[c] == pytest.approx(roc_auc_score(y, s))
                assert got.bacc_per_class[c] == pytest.approx(balanced_accuracy_score(y, s > 0.5))
            else:
                assert math.isnan(got.auc_per_class[c])
                assert math.isnan(got.bacc_per_class[c])
            if y.sum():
                assert got.ap_per_class[c] == pytest.approx(average_precision_score(y, s))
            else:
                assert math.isnan(got.ap_per_class[c])
        defined = got.auc_per_class[~np.isnan(got.auc_per_class)]
        assert numbers.plain(got.auc) == (pytest.approx(defined.mean()) if len(defined) else None)

    def test_the_threshold_is_exclusive(self) -> None:
        assert metrics.binary_counts([[1], [1]], [[0.5], [0.51]]).ravel().tolist() == [1, 1, 0, 0]

    def test_scores_that_are_not_numbers_make_a_class_undefined(self) -> None:
        assert math.isnan(metrics.roc_area([0, 1], [nan, 0.5]))
        assert math.isnan(metrics.average_precision([0, 1], [nan, 0.5]))

    def test_shapes_must_agree(self) -> None:
        with pytest.raises(DataError, match="scores are"):
            metrics.multilabel_scores([[1, 0]], [[0.5]])


class TestCurves:
    def test_best_last_and_from(self) -> None:
        got = reading.summarise_curve([0.1, 0.9, 0.5, 0.7, 0.9], last=2, from_round=2)
        assert (got.best, got.best_round, got.last, got.best_from) == (0.9, 1, pytest.approx(0.8), 0.9)

    def test_short_and_empty_curves(self) -> None:
        assert reading.summarise_curve([0.4, 0.6], last=10).last == pytest.approx(0.5)
        assert math.isnan(reading.summarise_curve([0.4], from_round=5).best_from)
        empty = reading.summarise_curve([])
        assert empty.best_round is None
        assert math.isnan(empty.best)

    def test_rounds_without_a_value_are_passed_over(self) -> None:
        got = reading.summarise_curve([nan, 0.2, nan, 0.4, nan], last=2)
        assert (got.best, got.best_round, got.last) == (0.4, 3, pytest.approx(0.3))

    def test_targeted_cost(self) -> None:
        assert reading.targeted_cost([0.2, 0.65, 0.7], [1, 10, 10], 0.65) == 11
        assert reading.targeted_cost([0.2, nan, 0.7], [1, 10, 10], 0.65) == 21
        assert reading.targeted_cost([0.2], [1], 0.5) is None
        assert reading.targeted_cost([], [], 0.5) is None


class TestDetection:
    def test_sets(self) -> None:
        got = metrics.detect_sets([["b", "a"], ["a"], [], ["a", "c"]], ["a", "b"])
        assert got.precision_each == [1.0, 1.0, 0.0, 0.5]
        assert got.recall_each == [1.0, 0.5, 0.0, 0.5]
        assert got.matching_ratio == 0.25
        assert got.precision == 0.625
        assert got.recall == 0.5

    def test_nobody_is_noisy(self) -> None:
        got = metrics.detect_sets([[], [1]], [])
        assert got.exact == [True, False]
        assert got.precision_each == [0.0, 0.0]
        assert math.isnan(metrics.detect_sets([], [1]).precision)

    def test_samples(self) -> None:
        wrong, flagged = [True, True, False, False, False], [True, False, True, False, False]
        got = metrics.detect_samples(wrong, flagged, [0.9, 0.2, 0.8, 0.1, 0.1])
        assert (got.tp, got.fp, got.fn, got.tn) == (1, 1, 1, 2)
        assert (got.precision, got.recall, got.f1) == (0.5, 0.5, 0.5)
        assert got.auroc == pytest.approx(roc_auc_score(wrong, [0.9, 0.2, 0.8, 0.1, 0.1]))

    def test_samples_without_flags_or_scores(self) -> None:
        got = metrics.detect_samples([False, False], [False, False])
        assert (got.precision, got.recall, got.f1) == (0.0, 0.0, 0.0)
        assert math.isnan(got.auroc)


class TestCorrection:
    @given(seed=st.integers(0, 10_000), n=st.integers(0, 40))
    @settings(max_examples=30, deadline=None)
    def test_every_sample_has_one_fate(self, seed: int, n: int) -> None:
        rng = np.random.default_rng(seed)
        true, before, after = rng.integers(0, 3, (3, n))
        got = metrics.correction(true, before, after)
        pairs = list(zip(true, before, after))
        assert got.fixed == sum(b != t and a == t for t, b, a in pairs)
        assert got.harmed == sum(b == t and a != t for t, b, a in pairs)
        assert got.missed_untouched == sum(b != t and a == b for t, b, a in pairs)
        assert got.missed_rewritten == sum(b != t and a not in (t, b) for t, b, a in pairs)
        assert got.missed == got.missed_untouched + got.missed_rewritten
        assert got.touched == sum(b != a for t, b, a in pairs)
        assert got.fixed + got.harmed + got.missed + got.kept == got.n == n
        per_class = metrics.correction_per_class(true, before, after, 3)
        total = per_class[0] + per_class[1] + per_class[2]
        assert total == got
        if n:
            assert got.noise_before == pytest.approx((true != before).mean())
            assert got.noise_after == pytest.approx((true != after).mean())

    def test_multilabel_data_count_by_entry_and_column(self) -> None:
        true, before = np.array([[1, 0], [0, 0]]), np.array([[0, 0], [0, 1]])
        got = metrics.correction(true, before, true)
        assert (got.n, got.fixed, got.kept) == (4, 2, 2)
        columns = metrics.correction_per_class(true, before, true, 2)
        assert [c.n for c in columns] == [2, 2]
        assert [c.fixed for c in columns] == [1, 1]

    def test_no_samples(self) -> None:
        got = metrics.correction([], [], [])
        assert (got.n, got.noise_before, got.noise_after) == (0, 0.0, 0.0)

    def test_flags(self) -> None:
        wrong, flagged = np.array([False, True, True, False]), np.array([False, True, False, True])
        got = metrics.detect_samples(wrong, flagged)
        assert (got.tp, got.fp, got.fn, got.tn) == (1, 1, 1, 1)
        assert metrics.detect_samples([False, True], [False, False]).fn == 1

    def test_shapes_must_agree(self) -> None:
        with pytest.raises(DataError, match="differ in shape"):
            metrics.correction([0, 1], [0, 1], [0])


def test_plain_values_are_json() -> None:
    value = {
        1: np.array([1.0, nan]),
        "curve": reading.summarise_curve([]),
        "pair": (np.int64(3), np.float32(0.5), True, None, "text"),
    }
    text = json.dumps(numbers.plain(value), allow_nan=False)
    assert json.loads(text) == {
        "1": [1.0, None],
        "curve": {"best": None, "best_round": None, "last": None, "best_from": None},
        "pair": [3, 0.5, True, None, "text"],
    }
