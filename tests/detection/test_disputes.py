"""FedClean's two corrections against sets worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from fedsift.methods.fedclean import collaborative_loss, settle_by_agreement, settle_by_model, upper_group


def log_p(margins: np.ndarray, other: int = 1, classes: int = 3) -> np.ndarray:
    """Log-probabilities whose class `other` is ahead of class 0 by these margins; the third class is far behind."""
    logits = np.full((len(margins), classes), -50.0)
    logits[:, 0], logits[:, other] = 0.0, margins
    return logits - np.log(np.exp(logits).sum(1, keepdims=True))


def test_the_collaborative_loss_is_the_margin_of_the_logits() -> None:
    margins = np.array([0.5, 3.0, 2000.0])
    rows = np.stack([np.zeros(3), margins], 1) - margins[:, None]
    got = collaborative_loss(rows, [0, 0, 0], [1, 1, 1])
    assert got.tolist() == margins.tolist(), "p_y = e^-2000 underflows, its logarithm does not"


MARGINS = np.r_[np.linspace(0.1, 0.3, 8), np.linspace(4.0, 5.0, 6)]
"""Eight disputed samples on which the global model hardly differs, six on which it is sure of class 1."""


def test_the_surest_half_of_the_upper_part_is_corrected() -> None:
    found = settle_by_agreement(log_p(MARGINS), np.zeros(14, int), np.ones(14, int), np.ones(14, bool), 0.5)
    assert found.corrected.tolist() == [11, 12, 13], "floor(0.5 * 6) largest of G1"
    assert found.labels.tolist() == [0] * 11 + [1] * 3
    np.testing.assert_allclose(found.score, MARGINS)
    some = settle_by_agreement(log_p(MARGINS), np.zeros(14, int), np.ones(14, int), np.ones(14, bool), 0.49)
    assert some.corrected.tolist() == [12, 13]


def test_only_disputed_samples_on_which_both_models_agree_are_looked_at() -> None:
    local, disputed = np.ones(14, int), np.ones(14, bool)
    local[13], disputed[12] = 2, False
    found = settle_by_agreement(log_p(MARGINS), np.zeros(14, int), local, disputed, 1.0)
    assert np.isnan(found.score[[12, 13]]).all()
    assert found.corrected.tolist() == [8, 9, 10, 11]


@pytest.mark.parametrize("margins", [MARGINS[-9:], np.full(20, 4.0), np.linspace(0.1, 0.5, 30), MARGINS[:0]])
def test_few_constant_near_or_no_values_are_left_alone(margins: np.ndarray) -> None:
    n = len(margins)
    found = settle_by_agreement(log_p(margins).reshape(n, 3), np.zeros(n, int), np.ones(n, int), np.ones(n, bool), 1.0)
    assert len(found.corrected) == 0 and found.labels.tolist() == [0] * n
    assert upper_group(margins) is None


def test_the_second_step_clears_corrects_and_leaves_open() -> None:
    """Given label 0. Eight are fitted well, six contradicted: of the four largest losses the one whose answer is unsure
    stays open, and so do the two of the smaller losses."""
    rows = log_p(np.r_[np.full(8, -3.0) - np.linspace(0, 0.5, 8), [3.0, 3.1, 4.0, 4.1, 4.2, 4.3]])
    rows[13] = np.log([0.01, 0.5, 0.49])
    found = settle_by_model(rows, np.zeros(14, int), np.ones(14, bool), 0.7, 0.9)
    assert found.cleared.tolist() == list(range(8))
    assert found.corrected.tolist() == [10, 11, 12]
    assert found.labels[10:13].tolist() == [1, 1, 1] and found.labels[13] == 0
    np.testing.assert_allclose(found.score, -rows[:, 0])


@pytest.mark.parametrize(("margin", "cleared"), [(-3.0, 12), (3.0, 0)])
def test_one_group_is_cleared_if_the_model_believes_it(margin: float, cleared: int) -> None:
    found = settle_by_model(log_p(np.full(12, margin)), np.zeros(12, int), np.ones(12, bool), 0.5, 0.5)
    assert len(found.cleared) == cleared and len(found.corrected) == 0


def test_nothing_left_is_nothing_done() -> None:
    found = settle_by_model(log_p(MARGINS), np.zeros(14, int), np.zeros(14, bool), 0.5, 0.5)
    assert len(found.cleared) == len(found.corrected) == 0
