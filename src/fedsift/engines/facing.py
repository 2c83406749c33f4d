"""Whither sites go, update by update: one that went along with the others and then turns round is told by its past."""

from __future__ import annotations

import statistics
from collections.abc import Mapping

COMMON = 0.3
"""Median cosine of a cohort whose direction means something; below it a site's own luck turns its sign."""


def shares(cosines: Mapping[str, float]) -> dict[str, float]:
    """Each site's cosine with the others as a share of the cohort's median; nothing where they have no direction."""
    middle = statistics.median(cosines.values())
    return {site: cosine / middle for site, cosine in cosines.items()} if middle > COMMON else {}


def turn(before: float, now: float) -> float:
    """How far a site has turned round, from 0 up: it went along with the others by so much, and goes back by as much.

    An attacker that sends its honest update with the sign turned comes from 1 to -1, which is 1. An honest site with
    wrong labels goes back as well once the others have learnt, but never went along as they do.
    """
    return max(0.0, min(before, -now))
