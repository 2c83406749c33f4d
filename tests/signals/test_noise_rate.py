"""How many of a site's labels are wrong: both estimates by hand, and on losses of right labels of a hard task."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedsift.local.losses import sureness
from fedsift.signals.mixture import suspects
from fedsift.signals.noise_rate import disowned_share, noise_rate


def test_of_the_surest_tenth_and_twenty_at_least_the_disowned() -> None:
    sure = np.linspace(1.0, 0.1, 300)
    owned = np.ones(300)
    owned[[0, 7, 29, 30, 200]] = 0  # the last two are not asked
    assert disowned_share(sure, owned) == pytest.approx(3 / 30)
    assert disowned_share(sure[:40], owned[:40]) == pytest.approx(2 / 20)
    assert disowned_share([0.9, 0.8], [1, 0]) == 0.5
    assert disowned_share([], []) == 0.0


def test_right_labels_of_a_hard_task_are_left_in() -> None:
    """Sure of a tenth, right about half of the rest: the mixture alone would leave out many right labels."""
    rng = np.random.default_rng(1)
    confidence = np.r_[np.full(50, 0.95), rng.uniform(0.3, 0.6, 450)]
    right = rng.random(500) < confidence
    right[:50] = True
    losses = np.where(right, -np.log(confidence), rng.uniform(1.5, 4.0, 500))
    assert len(suspects(losses)) > 150
    assert noise_rate(losses, confidence, right)[0] == 0.0


def test_redrawn_labels_are_counted() -> None:
    rng = np.random.default_rng(2)
    wrong = rng.random(500) < 0.4
    confidence = rng.uniform(0.8, 0.99, 500)
    losses = np.where(wrong, rng.uniform(3, 6, 500), -np.log(confidence))
    rate, noisy = noise_rate(losses, confidence, ~wrong)
    assert rate == pytest.approx(0.4, abs=0.12)
    assert noisy.tolist() == np.flatnonzero(wrong).tolist()


def test_sureness_by_hand_for_one_site_and_a_cohort() -> None:
    logits = torch.log(torch.tensor([[0.7, 0.2, 0.1], [0.3, 0.6, 0.1]]))
    target = torch.eye(3)[[0, 2]]
    expected = torch.tensor([[0.7, 1.0], [0.6, 0.0]])
    torch.testing.assert_close(sureness(logits, target), expected)
    torch.testing.assert_close(
        sureness(logits.repeat(2, 1, 1), target.repeat(2, 1, 1)), expected.repeat(2, 1, 1)
    )
