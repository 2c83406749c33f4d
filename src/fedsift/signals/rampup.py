"""The weight that grows from almost nothing to its full value over a span of rounds."""

from __future__ import annotations

import math


def rampup(t: float, begin: float, end: float, maximum: float = 1.0) -> float:
    """maximum * exp(-5 (1 - phi)^2), phi the share of the way from begin to end (FedNoRo section 4.2).

    It starts at maximum * e^-5, not at 0. With begin = end it is a step from there to the maximum.
    """
    phi = float(t >= begin) if end <= begin else (min(max(t, begin), end) - begin) / (end - begin)
    return maximum * math.exp(-5.0 * (1.0 - phi) ** 2)
