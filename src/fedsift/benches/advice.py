"""Which method did best where: the leaderboard by situation, as the doctor and the page of results tell it.

`advice.json` is written from the leaderboard's results by `python -m benchmarks.tables`. This module imports no torch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from scipy import stats

from fedsift.benches.summary import Results

FILE = "advice.json"
LEADERBOARD = "leaderboard"
SHOWN = 3
"""Methods that are named for a situation."""
KINDS = ("aggregate", "loss", "form")
"""Settings that make another method of one."""
SITUATIONS: Mapping[str, tuple[str, ...]] = {
    "some sites are clean, all have every class": ("FedCorr noise, IID", "instance-dependent, IID"),
    "some sites are clean, some lack classes": ("FedCorr noise, skewed", "instance-dependent, skewed"),
    "no site is clean, all have every class": ("human, IID", "everyone noisy, IID"),
    "no site is clean, some lack classes": (
        "human, skewed", "everyone noisy, skewed", "open-set, even", "open-set, skewed",
    ),
}  # fmt: skip
"""Columns of the leaderboard that belong to a situation which can be told before any training."""


@dataclass(frozen=True)
class Advised:
    """How one row of the leaderboard did in a situation."""

    row: str
    method: str
    settings: str
    """What makes it another method than the name alone (`loss=gce`); empty for most."""
    mean_rank: float
    """1 is best, over the situation's columns."""
    accuracy: float
    """Mean over columns and seeds, in per cent."""
    worst: float
    """Its mean in the column where it does worst."""
    above_reference: float
    """Points above the leaderboard's reference row, mean over columns and seeds."""

    @property
    def named(self) -> str:
        return f"{self.method} {self.settings}".strip()


@dataclass(frozen=True)
class Advice:
    """A situation with its best rows, best first; empty where the leaderboard has no results."""

    situation: str
    seeds: int
    methods: int
    """Rows that were compared: those with results in all of the situation's columns that were told nothing."""
    best: tuple[Advised, ...]


def situation_of(*, clean_sites: bool, every_class: bool) -> str:
    """The name of a situation."""
    first = "some sites are clean" if clean_sites else "no site is clean"
    return f"{first}, {'all have every class' if every_class else 'some lack classes'}"


def advice_of(results: Results) -> list[Advice]:
    """The leaderboard by situation; rows that were told the truth do not count."""
    told = {
        row
        for record in results.records
        if record.outcome.get("oracle")
        for row, _, _ in results.places[record.key]
    }
    rows = {row.label: row.settings.get("method", {}) for row in results.table.rows if row.label not in told}
    return [_situation(results, situation, columns, rows) for situation, columns in SITUATIONS.items()]


def _situation(
    results: Results, situation: str, columns: Sequence[str], methods: Mapping[str, Mapping[str, Any]]
) -> Advice:
    figure = results.table.figures[0]
    means: dict[str, list[float]] = {}
    for row in methods:
        found = [results.entry(row, column, figure).mean for column in columns]
        known = [value for value in found if value is not None]
        if len(known) == len(columns):
            means[row] = known
    seeds = min((len(results.entry(row, c, figure).values) for row in means for c in columns), default=0)
    reference = means.get(results.table.compared_with)
    if len(means) < 2 or reference is None:
        return Advice(situation, seeds, len(means), ())
    ranks = stats.rankdata([[-value for value in values] for values in means.values()], axis=0).mean(1)
    rows = [
        Advised(
            row,
            methods[row].get("name", ""),
            " ".join(f"{key}={methods[row][key]}" for key in KINDS if key in methods[row]),
            round(float(rank), 2),
            round(sum(values) / len(values), 2),
            round(min(values), 2),
            round(sum(a - b for a, b in zip(values, reference)) / len(values), 2),
        )
        for (row, values), rank in zip(means.items(), ranks)
    ]
    return Advice(situation, seeds, len(means), tuple(sorted(rows, key=lambda r: r.mean_rank)[:SHOWN]))


def known_advice() -> list[Advice]:
    """What the package knows."""
    content: list[dict[str, Any]] = json.loads((files("fedsift.benches") / FILE).read_text(encoding="utf-8"))
    return [
        Advice(
            entry["situation"],
            entry["seeds"],
            entry["methods"],
            tuple(Advised(**best) for best in entry["best"]),
        )
        for entry in content
    ]


def advice_for(*, clean_sites: bool, every_class: bool) -> Advice:
    """What the package knows of one situation."""
    wanted = situation_of(clean_sites=clean_sites, every_class=every_class)
    return next(advice for advice in known_advice() if advice.situation == wanted)
