"""FedRN's scores by hand."""

from __future__ import annotations

import numpy as np
import pytest

from fedsift.methods.fedrn import reliability, reliable, scaled


def test_scaling() -> None:
    assert scaled([2.0, 4.0, 3.0]).tolist() == [0.0, 1.0, 0.5]
    assert scaled([0.7, 0.7]).tolist() == [1.0, 1.0]  # 0 / 0 in the release
    assert scaled([0.3]).tolist() == [1.0]
    assert scaled([]).tolist() == []


def test_scores_by_hand() -> None:
    """Cosines with the first: 1, 0.6, 0; scaled they stay. Expertise 0.5, 0.9, 0.7 becomes 0, 1, 0.5."""
    outputs = np.array([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]])
    found = reliability([0.5, 0.9, 0.7], outputs, 0, alpha=0.6)
    assert found.tolist() == pytest.approx([0.4, 0.6 + 0.4 * 0.6, 0.3])
    alike = reliability([0.5, 0.5, 0.5], np.ones((3, 2)), 1, alpha=0.6)
    assert alike.tolist() == pytest.approx([1.0] * 3)


def test_the_choice_leaves_the_site_itself_out() -> None:
    assert reliable([0.9, 0.5, 0.7, 0.7], 0, 2) == [2, 3]
    assert reliable([0.9, 0.5], 1, 3) == [0]  # one neighbour
    assert reliable([0.9], 0, 2) == []
    assert reliable([0.9, 0.5], 0, 0) == []
