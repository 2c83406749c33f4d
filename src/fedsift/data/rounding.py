"""Counting: how a rate times a size becomes a whole number of samples."""

from __future__ import annotations

import math


def floor_count(amount: float) -> int:
    """⌊amount + 1e-9⌋: forgives one rounding error, so that 0.29·100 = 28.99...96 counts as 29."""
    return math.floor(amount + 1e-9)
