"""FedDiv's debiased labels and the running mean prediction, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from fedsift.methods.feddiv import LEAST, debiased, running_prior


def test_the_usual_answer_is_held_back() -> None:
    """F = f - xi log p: with xi = 0.5 a class of share 0.64 gets 0.223, one of share 0.04 gets 1.609."""
    scores = debiased([[1.0, 0.0]], [0.64, 0.04], 0.5)
    np.testing.assert_allclose(scores, [[1 - 0.5 * np.log(0.64), -0.5 * np.log(0.04)]])
    assert scores.argmax() == 1
    assert debiased([[1.0, 0.0]], [0.64, 0.04], 0.0).argmax() == 0


def test_an_absent_class_gets_no_endless_bonus() -> None:
    bonus = debiased(np.zeros((1, 3)), [0.7, 0.3, 1e-30], 0.5)[0]
    assert bonus[2] == pytest.approx(-0.5 * np.log(LEAST)) and bonus[2] < 4.7
    held = debiased(np.zeros((1, 3)), [0.7, 0.3, 1e-30], 0.5, [True, True, False])[0]
    assert held[2] == held[0] == pytest.approx(-0.5 * np.log(0.7))


def test_the_running_mean() -> None:
    p = np.array([[0.8, 0.2], [0.4, 0.6]])
    np.testing.assert_allclose(running_prior([0.5, 0.5], p, 0.2), [0.2 * 0.5 + 0.8 * 0.6, 0.1 + 0.8 * 0.4])
    np.testing.assert_allclose(running_prior([0.5, 0.5], p, 0.2, [True, False]), [0.74, 0.26])
    np.testing.assert_allclose(running_prior([0.5, 0.5], p, 0.2, [False, False]), [0.5, 0.5])
