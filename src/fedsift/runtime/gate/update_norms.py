"""How far updates usually go in a stage, for sites of any size: the measure that an update is judged by."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

KEPT_LENGTHS = 32
"""Lengths of accepted updates that a stage remembers, for rounds of few sites."""
KEPT_OWN = 8
"""Lengths of a site's own accepted updates that a stage remembers."""
OWN = 0.5
"""A site's own length counts for half of the cohort's: it may go on as it went, and three times as far."""

WAYS = ("recent", "peak", "first")
"""Of `UpdateNorms`: the lists of ways."""

Way = tuple[float, float]
"""How far an update went, and the reach of its training (`Request.reach`)."""


def usual_norm_for(reach: float, ways: Iterable[Way]) -> float:
    """The length that is usual for training of this reach, beside updates of others: the median of l_j max(1, r / r_j).

    Whoever trains on ten times the samples takes ten times the steps and may come ten times as far; whoever trains on
    fewer may still come as far as the others, where these have arrived.
    """
    return statistics.median(length * max(1.0, reach / other) for length, other in ways)


@dataclass
class UpdateNorms:
    """How far accepted updates of one model went in a stage so far."""

    recent: list[Way] = field(default_factory=list)
    peak: list[Way] = field(default_factory=list)
    """Those of the round that went furthest for its reach, at least a cohort; where fewer answer at a time, of the
    rounds that are remembered."""
    own: dict[str, list[float]] = field(default_factory=dict)
    """Each site's own, the latest."""
    first: list[Way] = field(default_factory=list)
    """The first one of each site."""
    tried: dict[str, Way] = field(default_factory=dict)
    """The last one of each site that came alone, whether it was accepted or not; the latest is the last."""

    def usual(self, site: str, way: Way, median: float) -> float:
        """The length that a site is measured by: the round's median, or what is usual for this very site.

        Where most sites have nothing left to learn their updates shrink, and those of an honest site with wrong labels
        do not. So a site may go on as far as it went when others went as far: max(median, min(peak, own / 2)).
        """
        known = self.own.get(site)
        if not known or not self.peak:
            return median
        return max(median, min(usual_norm_for(way[1], self.peak), OWN * max(known)))

    def first_norms(self, reach: float) -> float:
        """How far sites went when they began here, alone or together; 0 where nobody has. Those that came before may be
        held back by now: FedCorr's proximal term ties noisy sites, and these can be most of them."""
        return max([usual_norm_for(reach, ways) for ways in (self.peak, self.first) if ways], default=0.0)

    def recent_norms(self, site: str, cohort: int) -> float:
        """How far the last few other sites went that came alone, accepted or not; 0 where they are too few.

        Where a model was spoilt every honest site goes far to mend it: what one site after another does is usual.
        """
        ways = [way for other, way in self.tried.items() if other != site][-cohort:]
        return statistics.median(length for length, _ in ways) if len(ways) == cohort else 0.0

    def note_tried(self, ways: Mapping[str, Way]) -> None:
        for site, way in ways.items():
            self.tried.pop(site, None)
            self.tried[site] = way

    def memory(self) -> dict[str, Any]:
        """As plain values."""
        ways = {name: [list(way) for way in getattr(self, name)] for name in WAYS}
        tried = [[site, *way] for site, way in self.tried.items()]
        return {**ways, "tried": tried, "own": {site: list(lengths) for site, lengths in self.own.items()}}

    @staticmethod
    def recalled(memory: Mapping[str, Any]) -> UpdateNorms:
        """The reverse."""
        ways = {name: [(length, reach) for length, reach in memory.get(name, ())] for name in WAYS}
        tried = {site: (length, reach) for site, length, reach in memory.get("tried", ())}
        return UpdateNorms(**ways, own={site: list(own) for site, own in memory["own"].items()}, tried=tried)

    def note(self, accepted: Mapping[str, Way], cohort: int) -> None:
        self.recent = [*self.recent, *accepted.values()][-KEPT_LENGTHS:]
        new = [way for site, way in accepted.items() if site not in self.own]
        self.first = [*self.first, *new][:KEPT_LENGTHS]
        for site, (length, _) in accepted.items():
            self.own[site] = [*self.own.get(site, []), length][-KEPT_OWN:]
        together = list(accepted.values()) if len(accepted) >= cohort else list(self.recent)
        if len(self.own) >= cohort:
            self.peak = max(self.peak, together, key=_typical)


def _typical(ways: list[Way]) -> float:
    return statistics.median(length / reach for length, reach in ways) if ways else 0.0
