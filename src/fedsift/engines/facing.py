"""Whither sites go, update by update: one that went along with the others and then turns round is told by its past."""

from __future__ import annotations

import statistics
from collections.abc import Mapping

COMMON = 0.5
"""Median cosine of a cohort that has a common direction. Of sites with few classes, at 0.3 to 0.4, honest ones turned
by 0.58 from one exchange to the next."""


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
