"""Estimates the remaining time of a run and of a table.

Rounds of one stage are alike, those of two stages are not: FedCorr's first asks one site a round, its later ones ten.
A stage that has begun is known by its own rounds; one that lies ahead is tried, as `fedsift plan` tries it, once a run
has gone on for so long that the trial costs next to nothing beside it.
"""

from __future__ import annotations

import heapq
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

RECENT = 20
"""Rounds of a stage from which the time of the next ones is estimated."""


@dataclass(frozen=True)
class TimeLeft:
    """Seconds that a run still takes, and those of the whole run."""

    left: float
    whole: float


@dataclass
class RunPace:
    """What is known of one run's time: its stages with their rounds, in order, and the rounds that have ended."""

    stages: Sequence[tuple[str, int]]
    rounds: dict[str, list[float]] = field(default_factory=dict)
    """Seconds of the rounds that have ended, by stage."""
    tried: Mapping[str, float] | None = None
    """Seconds of one round by stage, from a trial; None before there was one."""
    before: float = 0.0
    """Seconds from the start to the first round: reading and spreading the data."""

    def add_round(self, row: Mapping[str, Any]) -> None:
        """A round that has ended."""
        self.rounds.setdefault(str(row["stage"]), []).append(float(row["seconds"]))

    @property
    def unknown(self) -> bool:
        """Whether a stage lies ahead whose time only a trial can estimate."""
        return self.tried is None and any(rounds and name not in self.rounds for name, rounds in self.stages)

    def ahead(self) -> TimeLeft | None:
        """None before the first round, and while a stage lies ahead of which nothing is known."""
        if not self.rounds or self.unknown:
            return None
        left, whole = 0.0, self.before
        for name, rounds in self.stages:
            seen = self.rounds.get(name, [])
            still = max(rounds - len(seen), 0) * self._each(name)
            left += still
            whole += still + sum(seen)
        return TimeLeft(left, whole)

    def _each(self, name: str) -> float:
        """Seconds of one more round of a stage."""
        seen = self.rounds.get(name)
        if seen:
            return statistics.fmean(seen[-RECENT:])
        tried = self.tried or {}
        if name in tried:
            return tried[name] * self._slower()
        return statistics.fmean(seconds for rounds in self.rounds.values() for seconds in rounds)

    def _slower(self) -> float:
        """How much slower than in its trial the stage under way is now, where both are known: the machine may have more
        to do than it had. Never faster: a stage may have rounds in which nobody is asked, which say nothing of others.
        """
        name, seen = next(reversed(self.rounds.items()))
        tried = (self.tried or {}).get(name, 0.0)
        return max(1.0, statistics.fmean(seen[-RECENT:]) / tried) if tried > 0 else 1.0


def last_end(running: Iterable[float], waiting: Iterable[float], processes: int) -> float:
    """Seconds until the last run ends: each process that is free takes the next run in order."""
    free = list(running)
    free += [0.0] * (processes - len(free))
    heapq.heapify(free)
    for seconds in waiting:
        heapq.heapreplace(free, free[0] + seconds)
    return max(free)


class PastRuns:
    """What whole runs took: the best guess for one that has not begun is one of the same row and column, then one of
    the same row, then any."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, ...], dict[int, float]] = {}

    def know(self, run: int, row: str, column: str, seconds: float) -> None:
        for kind in ((row, column), (row,), ()):
            self._known.setdefault(kind, {})[run] = seconds

    def guess(self, row: str, column: str) -> float | None:
        for kind in ((row, column), (row,), ()):
            if kind in self._known:
                return statistics.fmean(self._known[kind].values())
        return None
