"""How a share of a number becomes a count."""

from __future__ import annotations

import math


def floor_count(amount: float) -> int:
    """The whole part of `amount`, forgiving a rounding error of 1e-9: 0.29 * 100 counts as 29."""
    return math.floor(amount + 1e-9)
