"""Is there a clean site at all? By hand, and over simulated predictions."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedsift.detection.group_test import (
    best_share,
    blind_share,
    knows_something,
    looked_at,
    no_clean_reference,
)
from fedsift.study.quick_look import quick_scores, small_copies


def test_blind_labels_by_hand() -> None:
    """Four classes; of 80 samples the surest 40 are looked at, whose labels rank 0, 1, 2 and 3: half of them are in the
    lower half, and 1/2 * 4 / 2 = 1. With the last one right, a quarter is: 1/2."""
    sure, unsure = [0.6, 0.2, 0.15, 0.05], [0.3, 0.27, 0.23, 0.2]
    p = [sure] * 40 + [unsure] * 40
    rest = [3] * 40
    assert blind_share(p, [0, 1, 2, 3] * 10 + rest) == 1.0
    assert blind_share(p, [0, 1, 2, 0] * 10 + rest) == 0.5
    assert blind_share(p, [0, 1, 1, 0] * 10 + rest) == 0.0


def test_a_quarter_is_looked_at_but_forty_at_least_and_no_more_than_there_are() -> None:
    assert [looked_at(n) for n in (10, 60, 160, 400)] == [10, 40, 40, 100]


def test_an_odd_number_of_classes_has_a_smaller_lower_half() -> None:
    """Of three classes the last is the lower half: one of four labels there is 1/4 * 3."""
    assert blind_share([[0.5, 0.3, 0.2]] * 4, [0, 2, 0, 0]) == 0.75
    assert blind_share([[0.5, 0.3, 0.2]] * 12, [2, 0, 0, 0, 0, 0] * 2) == pytest.approx(0.5)


def test_nothing_is_said_without_classes_or_samples() -> None:
    assert math.isnan(blind_share([[0.9, 0.1]], [0]))
    assert math.isnan(blind_share(np.zeros((0, 4)), []))
    assert not no_clean_reference([])
    assert not no_clean_reference([math.nan])


@pytest.mark.parametrize("level", [0.0, 0.5, 0.8])
def test_the_share_of_redrawn_labels_is_found_however_hard_the_samples_are(level: float) -> None:
    rng = np.random.default_rng(1)
    for sharpness in (3.0, 8.0):  # right in about half, or nearly all, of the samples
        truth = rng.integers(10, size=4000)
        z = rng.normal(size=(4000, 10))
        z[np.arange(4000), truth] += sharpness / 2
        p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
        given = np.where(rng.random(4000) < level, rng.integers(10, size=4000), truth)
        found = blind_share(p, given)
        assert level - 0.05 < found < level + 0.05 + 0.1 * (sharpness < 8), sharpness


def test_a_tenth_of_the_sites_and_two_at_least_are_the_best() -> None:
    assert best_share([0.5, 0.1, 0.9, math.nan]) == pytest.approx(0.3)
    assert best_share([0.01 * i for i in range(40)]) == pytest.approx(0.015)
    assert no_clean_reference([0.4, 0.5, 0.9])
    assert not no_clean_reference([0.0, 0.3, 0.9, 0.9])
    assert not no_clean_reference([0.95, 0.9, 1.0])  # the network knows nothing


def test_a_model_knows_something_beyond_chance() -> None:
    """100 of 400 samples looked at, q = 1/2: three deviations are 0.15 of them, a share of 0.7."""
    assert knows_something(0.69, 400, 10)
    assert not knows_something(0.71, 400, 10)


def test_small_copies_by_hand() -> None:
    picture = np.arange(16, dtype=np.uint8).reshape(1, 1, 4, 4)
    np.testing.assert_allclose(small_copies(picture, 2), [[2.5, 4.5, 10.5, 12.5]])
    np.testing.assert_allclose(small_copies(picture, 3)[0, :3], [0, 1, 2.5])
    assert small_copies(picture, 12).shape == (1, 16)
    assert small_copies(np.zeros((2, 5), np.float32)).shape == (2, 5)


def test_a_quick_opinion_is_out_of_fold() -> None:
    """It finds the bright corner, and knows nothing of labels that were drawn at random."""
    rng = np.random.default_rng(2)
    labels = rng.integers(4, size=400)
    pictures = rng.integers(0, 60, (400, 1, 8, 8)).astype(np.uint8)
    for row, label in enumerate(labels):
        pictures[row, 0, 4 * (label // 2) :, 4 * (label % 2) :][:4, :4] += 30
    assert (quick_scores(pictures, labels, 4, rng).argmax(1) == labels).mean() > 0.9
    blind = rng.integers(4, size=400)
    assert (quick_scores(pictures, blind, 4, rng).argmax(1) == blind).mean() < 0.35
