"""How many of a site's labels are wrong: the estimates by hand, and on losses of right labels of a hard task."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedsift.detection.mixtures import suspects
from fedsift.formulas.losses import confidence_and_rank
from fedsift.methods._forgetting import disowned_share, noise_rate


def test_of_the_surest_tenth_and_twenty_at_least_the_disowned() -> None:
    sure = np.linspace(1.0, 0.1, 300)
    rank = np.zeros(300)
    rank[[0, 7, 29, 30, 200]] = [1, 5, 9, 1, 1]  # the last two are not asked
    assert disowned_share(sure, rank) == pytest.approx(3 / 30)
    assert disowned_share(sure[:40], rank[:40]) == pytest.approx(2 / 20)
    assert disowned_share([0.9, 0.8], [0, 1]) == 0.5
    assert disowned_share([], []) == 0.0


def test_right_labels_of_a_hard_task_are_left_in() -> None:
    """Sure of a tenth, right about half of the rest: the mixture alone would leave out many right labels."""
    rng = np.random.default_rng(1)
    confidence = np.r_[np.full(50, 0.95), rng.uniform(0.3, 0.6, 450)]
    right = rng.random(500) < confidence
    right[:50] = True
    losses = np.where(right, -np.log(confidence), rng.uniform(1.5, 4.0, 500))
    assert len(suspects(losses)) > 150
    for classes in (2, 10):
        assert noise_rate(losses, confidence, np.where(right, 0, 1), classes)[0] == 0.0


def test_a_network_that_disowns_right_labels_holds_them_for_second_or_third() -> None:
    """It disowns a third of what it is surest of, all of it right: with ten classes no label looks blind. Of two, a
    label that is not the network's own can only be the other, and is counted."""
    confidence, rank = np.linspace(0.9, 0.5, 400), np.tile([0, 0, 1, 0, 2, 0, 0, 1, 0], 45)[:400]
    losses = np.where(rank > 0, 3.0 + confidence, 0.2 * confidence)
    assert disowned_share(confidence, rank) > 0.3
    assert noise_rate(losses, confidence, rank, 10)[0] == 0.0
    assert noise_rate(losses, confidence, np.minimum(rank, 1), 2)[0] == pytest.approx(13 / 40)


def test_a_network_that_knows_nothing_speaks_against_no_label() -> None:
    """Ranks as a guess gives them: half in the lower half, so that all labels look blind."""
    rng = np.random.default_rng(3)
    confidence, rank = rng.uniform(0.11, 0.14, 400), rng.integers(10, size=400)
    losses = np.where(rank > 1, rng.uniform(3, 4, 400), 0.5)
    assert len(suspects(losses)) > 250 and disowned_share(confidence, rank) > 0.8
    assert noise_rate(losses, confidence, rank, 10)[0] == 0.0


def test_blind_labels_bound_the_rate_by_hand() -> None:
    """160 samples, the surest 40 are looked at: four of them rank 5 or lower among ten, 4 / 40 * 2 = 0.2; of the surest
    twenty ten are disowned, and the mixture has found 50 of 160."""
    confidence = np.linspace(0.9, 0.3, 160)
    rank = np.zeros(160, dtype=int)
    rank[:20:2] = 1
    rank[[0, 4, 8, 12]] = [5, 9, 6, 7]
    losses = np.where(np.arange(160) < 50, 4.0, 0.1) + confidence / 10
    assert suspects(losses).tolist() == list(range(50))
    assert noise_rate(losses, confidence, rank, 10)[0] == pytest.approx(0.2)


def test_redrawn_labels_are_counted() -> None:
    rng = np.random.default_rng(2)
    wrong = rng.random(500) < 0.4
    confidence = rng.uniform(0.8, 0.99, 500)
    losses = np.where(wrong, rng.uniform(3, 6, 500), -np.log(confidence))
    rank = np.where(wrong, rng.integers(1, 10, 500), 0)
    for classes in (2, 10):
        rate, noisy = noise_rate(losses, confidence, rank, classes)
        assert rate == pytest.approx(0.4, abs=0.12)
        assert noisy.tolist() == np.flatnonzero(wrong).tolist()


@pytest.mark.parametrize("samples", [0, 1])
def test_a_site_of_hardly_any_sample_leaves_nothing_out(samples: int) -> None:
    assert noise_rate([3.0] * samples, [0.9] * samples, [4] * samples, 10)[0] == 0.0


def test_sureness_by_hand_for_one_site_and_a_cohort() -> None:
    logits = torch.log(torch.tensor([[0.7, 0.2, 0.1], [0.3, 0.6, 0.1], [0.2, 0.5, 0.3]]))
    target = torch.eye(3)[[0, 2, 2]]
    expected = torch.tensor([[0.7, 0.0], [0.6, 2.0], [0.5, 1.0]])
    torch.testing.assert_close(confidence_and_rank(logits, target), expected)
    torch.testing.assert_close(
        confidence_and_rank(logits.repeat(2, 1, 1), target.repeat(2, 1, 1)), expected.repeat(2, 1, 1)
    )
