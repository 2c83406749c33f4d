"""What the audit's page says of a small difference between seeds."""

from __future__ import annotations

import math
from typing import Any

import pytest

from benchmarks.audit.page import _no_worse
from benchmarks.audit.summary import difference


def seeds(rises: list[float], ap: float = 0.01) -> list[dict[str, Any]]:
    return [
        {
            "before": {"all": {"ap": 0.8, "calibration_error": 0.02}},
            "after": {"all": {"ap": 0.8 + ap, "calibration_error": 0.02 + rise}},
        }
        for rise in rises
    ]


def test_a_paired_difference_by_hand() -> None:
    """1, 2, 3: mean 2, standard error 1 / sqrt(3), Student's 4.3027 at two degrees."""
    mean, half = difference([1.0, 2.0, 3.0])
    assert mean == 2.0 and half == pytest.approx(4.3027 / math.sqrt(3), rel=1e-4)
    assert math.isnan(difference([1.0])[1])


def test_a_rise_is_missed_unless_the_seeds_cannot_tell_it_from_none() -> None:
    assert _no_worse(seeds([-0.001, -0.002])) == "holds"
    assert _no_worse(seeds([0.002, 0.0021, 0.0019])) == "missed"
    assert _no_worse(seeds([0.006, -0.004, 0.001])).startswith("no significant difference: +0.0010 (-")
    assert _no_worse(seeds([0.001])) == "missed"  # one seed tells nothing
    assert _no_worse(seeds([-0.001, -0.002], ap=-0.01)) == "missed"
