"""A run so far, computed from its events: curves, stages, what each site did in each round, findings, time left, a log.

A story takes events as they come and says what is new since it was last asked (`news`), so a page that follows a run
costs what happens in it, not what has happened. The numbers are plain JSON.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from fedsift.core.numbers import duration, listed, number, percent, plural
from fedsift.protocol.findings import Findings
from fedsift.runs.events import (
    FAILED,
    FINISHED,
    Absent,
    Answered,
    Asked,
    Changed,
    Checkpointed,
    Ended,
    Event,
    Found,
    Refused,
    RoundDone,
    StampedEvent,
    Started,
    Warned,
)
from fedsift.runs.reading import CURVES

IDLE, ANSWERED, WORKING, ABSENT, REFUSED = range(5)
"""What a site did in a round, the more notable the higher: where several fall together, the highest is shown."""
LATE = 5
"""Only said of now: asked, and much slower than the others."""
LOG_LINES = 400
RECENT = 20
"""Rounds from which the time of the next ones is estimated."""
SLOW, AT_LEAST = 2.0, 2.0
"""Late: waiting this many times as long as half of the sites took, and at least so many seconds."""
LOSSES = ("train_loss", "loss")


class RunHistory:
    """What has happened, and what of it is new."""

    def __init__(self) -> None:
        self.started: Started | None = None
        self.ended: Ended | None = None
        self.begun_at = self.last_at = 0.0
        self.times_started = 0
        self.sites: list[str] = []
        self.done = 0
        self.stage = ""
        self.asked: Asked | None = None
        self.asked_at = 0.0
        self.half_at = 0.0
        """Seconds after which half of the asked sites had answered; 0 until then."""
        self.waiting: set[int] = set()
        self.findings: Findings | None = None
        self.found_at = 0
        self.totals = {"bytes_down": 0, "bytes_up": 0, "participations": 0, "refused": 0, "absent": 0}
        self.curves: dict[str, list[tuple[int, float]]] = {}
        self.own: dict[str, float] = {}
        """The method's own numbers in the last round that had them."""
        self.columns: dict[int, bytearray] = {}
        """By round: for each site what it did."""
        self.reasons: dict[int, str] = {}
        """By site: why its last answer could not be used, or where it was."""
        self.troubles: dict[int, int] = {}
        """By site: answers refused or missing."""
        self.took: dict[int, float] = {}
        """By site: seconds that its last answer took."""
        self.log: list[tuple[float, str, str]] = []
        self._rounds: list[RoundDone] = []
        self._place: dict[str, int] = {}
        self._fresh()

    def _fresh(self) -> None:
        self._new_columns: set[int] = set()
        self._new_sites: set[int] = set()
        self._new_times: set[int] = set()
        self._new_points = {name: len(points) for name, points in self.curves.items()}
        self._new_log = 0
        self._rewound = False
        self._found_anew = False

    # Taking events -------------------------------------------------------------------------------------------------

    def take(self, moments: Sequence[StampedEvent]) -> None:
        for moment in moments:
            self.last_at = moment.at
            handler = getattr(self, f"_on_{moment.event.kind}")
            words = handler(moment.event, moment.at)
            if words:
                self._say(moment.at, moment.event, words)

    def _say(self, at: float, event: Event, words: str) -> None:
        self.log.append((at, event.kind, words))
        self._new_log += 1
        if len(self.log) > 2 * LOG_LINES:
            del self.log[:-LOG_LINES]

    def _on_started(self, event: Started, at: float) -> str:
        again = self.started is not None
        if self.sites != list(event.sites):
            self.sites = list(event.sites)
            self._place = {site: i for i, site in enumerate(self.sites)}
            self.columns, self.reasons, self.troubles, self.took = {}, {}, {}, {}
        self.started, self.ended, self.asked = event, None, None
        self.waiting = set()
        self.times_started += 1
        self.begun_at = self.begun_at or at
        self._rewind(event.done)
        if again:
            return f"goes on after round {event.done}"
        return f"{event.method} begins: {plural(len(event.sites), 'site')}, {plural(event.rounds, 'round')}"

    def _rewind(self, done: int) -> None:
        """Rounds after the checkpoint belong to what a kill undid."""
        self._rewound = True
        self.columns = {number: column for number, column in self.columns.items() if number <= done}
        self._rounds = [one for one in self._rounds if one.round <= done]
        self.curves = {n: [p for p in points if p[0] <= done] for n, points in self.curves.items()}
        self.done = min(self.done, done)
        self.totals |= {
            "bytes_down": sum(one.bytes_down for one in self._rounds),
            "bytes_up": sum(one.bytes_up for one in self._rounds),
            "participations": sum(one.participants for one in self._rounds),
        }

    def _on_asked(self, event: Asked, at: float) -> str:
        first = event.stage != self.stage
        self.asked, self.asked_at, self.half_at, self.stage = event, at, 0.0, event.stage
        self.waiting = {self._place[site] for site in event.sites if site in self._place}
        self._mark(event.round, self.waiting, WORKING)
        return f"stage “{event.stage}” begins" if first else ""

    def _on_answered(self, event: Answered, at: float) -> str:
        came = {self._place[site] for site in event.sites if site in self._place}
        self.waiting -= came
        for place in came:
            self.took[place] = max(0.0, at - self.asked_at)
        self._new_times |= came
        if self.asked is not None and not self.half_at and 2 * len(self.waiting) <= len(self.asked.sites):
            self.half_at = max(at - self.asked_at, 1e-3)
        self._mark(event.round, came, ANSWERED)
        return ""

    def _on_refused(self, event: Refused, at: float) -> str:
        self.totals["refused"] += 1
        return self._trouble(event, REFUSED, f"set aside {event.site}: {event.reason}")

    def _on_absent(self, event: Absent, at: float) -> str:
        self.totals["absent"] += 1
        return self._trouble(event, ABSENT, f"{event.site} did not answer: {event.reason}")

    def _trouble(self, event: Refused | Absent, code: int, words: str) -> str:
        place = self._place.get(event.site)
        if place is not None:
            self.waiting.discard(place)
            self._mark(event.round, {place}, code)
            self.reasons[place] = f"round {event.round}: {event.reason}"
            self.troubles[place] = self.troubles.get(place, 0) + 1
            self._new_sites.add(place)
        return f"round {event.round}: {words}"

    def _mark(self, number_: int, places: set[int], code: int) -> None:
        column = self.columns.setdefault(number_, bytearray(len(self.sites)))
        for place in places:
            if code > column[place] or column[place] == WORKING:  # a refusal in this round stays to be seen
                column[place] = code
        self._new_columns.add(number_)

    def _on_round(self, event: RoundDone, at: float) -> str:
        self.done, self.stage = event.round, event.stage
        self._rounds.append(event)
        self.waiting, self.asked = set(), None
        self.totals["bytes_down"] += event.bytes_down
        self.totals["bytes_up"] += event.bytes_up
        self.totals["participations"] += event.participants
        for name, value in event.values.items():
            if name in CURVES or name in LOSSES:
                self.curves.setdefault(name, []).append((event.round, value))
            else:
                self.own[name] = value
        scores = [f"{name} {percent(value)}" for name, value in event.values.items() if name in CURVES]
        last = event.round == event.of
        return f"round {event.round} of {event.of}: {', '.join(scores)}" if scores and last else ""

    def _on_finding(self, event: Found, at: float) -> str:
        found = Findings.of({"findings": event.findings})
        before = self.findings
        self.findings, self.found_at, self._found_anew = found, event.round, True
        if found is None or (before is not None and before.noisy == found.noisy):
            return ""
        return f"round {event.round}: {found_words(found, len(self.sites))}"

    def _on_warning(self, event: Warned, at: float) -> str:
        return f"round {event.round}: {event.text}" if event.round else event.text

    def _on_changed(self, event: Changed, at: float) -> str:
        was, now = ({k: "not set" if v is None else v for k, v in side.items()} for side in (event.before, event.now))
        return f"after round {event.round}: {'; '.join(f'{key} was {was[key]}, is {now[key]}' for key in now)}"

    def _on_checkpoint(self, event: Checkpointed, at: float) -> str:
        return ""

    def _on_ended(self, event: Ended, at: float) -> str:
        self.ended, self.asked, self.waiting = event, None, set()
        for number_, column in self.columns.items():
            if WORKING in column:
                self.columns[number_] = column.replace(bytes([WORKING]), bytes([IDLE]))
                self._new_columns.add(number_)
        if event.state == FINISHED:
            return "finished"
        return f"failed: {event.error}" if event.state == FAILED else event.error or "stopped"

    # Output --------------------------------------------------------------------------------------------------------

    @property
    def planned(self) -> int:
        return 0 if self.started is None else self.started.rounds

    def seconds_left(self) -> float | None:
        """From the last rounds of each stage; a stage that has not begun is taken to be like those before it."""
        if not self._rounds or self.started is None:
            return None
        by_stage: dict[str, list[float]] = {}
        for one in self._rounds:
            by_stage.setdefault(one.stage, []).append(one.seconds)
        overall = statistics.fmean([one.seconds for one in self._rounds[-RECENT:]])
        left, ahead, total = self.done, 0.0, 0
        for stage in self.started.stages:
            rounds = int(stage.get("rounds", 0))
            total += rounds
            still = min(rounds, max(0, total - left))
            seen = by_stage.get(str(stage.get("name", "")))
            ahead += still * (statistics.fmean(seen[-RECENT:]) if seen else overall)
        return ahead

    def now(self, at: float) -> str:
        """One figure a site: what it is doing at this moment."""
        column = self.columns.get(self.asked.round if self.asked else self.done, bytearray(len(self.sites)))
        codes = bytearray(column)
        waited = at - self.asked_at
        late = self.half_at > 0 and waited > max(SLOW * self.half_at, AT_LEAST)
        for place in self.waiting:
            codes[place] = LATE if late else WORKING
        return codes.translate(DIGITS).decode()

    def snapshot(self, at: float) -> dict[str, Any]:
        """The whole history, for a new viewer."""
        started = self.started
        return {
            "whole": True,
            "sites": self.sites,
            "method": started.method if started else "",
            "engine": started.engine if started else "",
            "stages": [dict(stage) for stage in started.stages] if started else [],
            **self._present(at),
            "columns": [[n, column.translate(DIGITS).decode()] for n, column in sorted(self.columns.items())],
            "curves": {name: thinned(points) for name, points in self.curves.items()},
            "about": [self._about(place) for place in sorted(self.reasons)],
            "took": self._times(self.took),
            "findings": self._findings(),
            "log": self.log[-LOG_LINES:],
        }

    def news(self, at: float) -> dict[str, Any]:
        """What came since the last call; then it is no longer new. After a new start that is everything."""
        if self._rewound:
            self._fresh()
            return self.snapshot(at)
        view: dict[str, Any] = {
            "whole": False,
            **self._present(at),
            "columns": [[n, self.columns[n].translate(DIGITS).decode()] for n in sorted(self._new_columns)],
            "curves": {
                name: points[self._new_points.get(name, 0) :]
                for name, points in self.curves.items()
                if len(points) > self._new_points.get(name, 0)
            },
            "about": [self._about(place) for place in sorted(self._new_sites)],
            "took": self._times(self._new_times),
            "log": self.log[len(self.log) - min(self._new_log, len(self.log)) :],
        }
        if self._found_anew:
            view["findings"] = self._findings()
        self._fresh()
        return view

    def _present(self, at: float) -> dict[str, Any]:
        asked = self.asked
        return {
            "round": self.done,
            "of": self.planned,
            "stage": self.stage,
            "ask": None
            if asked is None
            else {
                "request": asked.request,
                "round": asked.round,
                "asked": len(asked.sites),
                "waiting": len(self.waiting),
                "at": self.asked_at,
            },
            "now": self.now(at),
            "totals": self.totals,
            "left": self.seconds_left(),
            "seconds": round(sum(one.seconds for one in self._rounds[-1:]), 3),
            "spent": round(self.last_at - self.begun_at, 3) if self.begun_at else 0.0,
            "own": self.own,
            "at": at,
        }

    def _about(self, place: int) -> list[Any]:
        return [place, self.troubles.get(place, 0), self.reasons.get(place, "")]

    def _times(self, places: Iterable[int]) -> list[list[Any]]:
        """[seconds, sites]; sites that answered together stand together, and None is all of them."""
        groups: dict[float, list[int]] = {}
        for place in sorted(places):
            groups.setdefault(round(self.took[place], 2), []).append(place)
        return [[s, None if len(found) == len(self.sites) else found] for s, found in groups.items()]

    def _findings(self) -> dict[str, Any] | None:
        found = self.findings
        if found is None:
            return None
        words = found_words(found, len(self.sites))
        return {"round": self.found_at, "words": words, **found.line()}


DIGITS = bytes(48 + code if code < 10 else 57 for code in range(256))
"""A code as its figure."""
MOST_POINTS = 1200


def thinned(points: list[tuple[int, float]], most: int = MOST_POINTS) -> list[tuple[int, float]]:
    """At most about `most` points that keep every stretch's first, lowest and highest value: peaks stay in sight."""
    if len(points) <= most:
        return points
    width = -(-3 * len(points) // most)
    kept: list[tuple[int, float]] = []
    for start in range(0, len(points), width):
        part = points[start : start + width]
        chosen = {part[0], min(part, key=lambda p: p[1]), max(part, key=lambda p: p[1])}
        kept += sorted(chosen)
    return kept if kept[-1] == points[-1] else [*kept, points[-1]]


def found_words(found: Findings, sites: int) -> str:
    """Findings in a sentence, with how sure they are."""
    if not found.noisy:
        words = "no site looks noisy"
    else:
        names = [
            f"{site} ({percent(found.probability[site])})" if site in found.probability else site
            for site in found.noisy
        ]
        words = f"{len(found.noisy)} of {plural(sites, 'site')} look noisy: {listed(names)}"
    if found.p_value is not None:
        words += f" (p = {number(found.p_value)}{', borderline' if found.borderline else ''})"
    return words


def left_words(seconds: float | None) -> str:
    return "" if seconds is None else f"about {duration(seconds)} left"
