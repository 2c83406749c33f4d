"""Rows with a step and a budget of their own: `own.json` lists what was tried, on a seed that is not reported.

The papers give every method its own learning rate, and slow ones need more rounds than the table's. Of an entry's
candidates the one with the best figure without wrong labels on the tuning seed is taken, then run on the reported seed;
with wrong labels too where the first table does not show that it learns with them. FedAvg with as many rounds is an
entry like the others, tuned in the same way, and what they are compared with. An entry with one candidate takes the
step that was best for FedAvg.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.learns.runs import Trial, value

FILE = Path(__file__).parent / "own.json"
TUNING, REPORTED = 101, 1
"""Seeds."""


@dataclass(frozen=True)
class Candidate:
    """A method with settings, and the words for what is its own."""

    what: str
    method: Mapping[str, Any]
    settings: tuple[str, ...] = ()

    def trial(self, kind: str, seed: int, wrong_labels: bool = False) -> Trial:
        return Trial(kind, self.method, self.settings, seed, wrong_labels)


@dataclass(frozen=True)
class Entry:
    """A row of the second table. reference: the row that it is compared with, None for that row itself."""

    kind: str
    row: str
    reference: str | None
    candidates: tuple[Candidate, ...]
    wrong_labels: bool = True
    """Whether it is run with wrong labels too: not where the first table has shown that it learns with them."""

    def tuned(self, known: Mapping[str, Any]) -> list[float | None]:
        """What each candidate reached on the tuning seed."""
        return [value(one.trial(self.kind, TUNING), known) for one in self.candidates]

    def chosen(self, known: Mapping[str, Any]) -> Candidate | None:
        """The best on the tuning seed, the first of equals; None as long as one was not tried."""
        if len(self.candidates) == 1:
            return self.candidates[0]
        found = self.tuned(known)
        figures = [figure for figure in found if figure is not None]
        if len(figures) < len(found):
            return None
        return self.candidates[figures.index(max(figures))]

    def reported(self, known: Mapping[str, Any]) -> tuple[float | None, float | None]:
        """Without and with wrong labels, of the chosen one on the reported seed; None for what was not run."""
        one = self.chosen(known)
        if one is None:
            return None, None
        clean, noisy = (value(one.trial(self.kind, REPORTED, wrong), known) for wrong in (False, True))
        return clean, noisy


def read(file: Path = FILE) -> list[Entry]:
    return [
        Entry(
            one["kind"],
            one["row"],
            one["reference"],
            tuple(Candidate(c["what"], c["method"], tuple(c["set"])) for c in one["candidates"]),
            one["wrong_labels"],
        )
        for one in json.loads(file.read_text("utf-8"))
    ]


def of(kind: str, row: str, entries: list[Entry]) -> Entry | None:
    return next((one for one in entries if (one.kind, one.row) == (kind, row)), None)


def trials(known: Mapping[str, Any]) -> Iterator[Trial]:
    """What is to be run: all candidates, then the chosen one on the reported seed."""
    for entry in read():
        for one in entry.candidates if len(entry.candidates) > 1 else ():
            yield one.trial(entry.kind, TUNING)
        chosen = entry.chosen(known)
        if chosen is not None:
            yield chosen.trial(entry.kind, REPORTED)
            if entry.wrong_labels:
                yield chosen.trial(entry.kind, REPORTED, True)
