"""The debiased calibration error by hand and on calibrated probabilities."""

from __future__ import annotations

import numpy as np
import pytest

from fedsift.core.errors import DataError
from fedsift.formulas.metrics import calibration_error


def test_two_bins_by_hand() -> None:
    """Bins (.1 .1 .1 .1) with none and (.9 .9 .9 .9) with two: gaps .01 and .16 - 1/12, mean .0433..."""
    p, y = np.repeat([0.1, 0.9], 4), np.array([0, 0, 0, 0, 1, 1, 0, 0])
    expected = np.sqrt((0.01 + 0.16 - 0.25 / 3) / 2)
    assert calibration_error(p, y, bins=2) == pytest.approx(expected)


def test_calibrated_probabilities_have_almost_none() -> None:
    rng = np.random.default_rng(0)
    p = rng.random(20000)
    assert calibration_error(p, rng.random(20000) < p) < 0.01
    assert calibration_error(p, rng.random(20000) < p**2) > 0.1


def test_odd_cases() -> None:
    assert np.isnan(calibration_error([0.5] * 5, [1] * 5))
    with pytest.raises(DataError):
        calibration_error([0.5], [1, 0])
