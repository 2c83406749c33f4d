"""Computes what a table shows (means, intervals, comparisons, costs) as a pure function of the table and its runs."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from scipy import stats

from fedsift.benchmark.claims import ClaimOutcome, judged
from fedsift.benchmark.figures import REFUSED, is_target, judged_rounds, lower_is_better, value_of, visits_made
from fedsift.benchmark.store import RunRecord
from fedsift.benchmark.table import Table
from fedsift.core.numbers import plural
from fedsift.formulas.intervals import PairedDifference, mean_and_sd, paired
from fedsift.runs.reading import LAST

FEWEST_COLUMNS = 3
Place = tuple[str, str]
"""Labels of a row and a column."""


@dataclass(frozen=True)
class TableFigure:
    """One figure at one place of the table."""

    row: str
    column: str
    figure: str
    values: Mapping[int, float]
    """By seed; runs that have no such figure (a target that was never reached) are left out."""
    runs: int
    """Runs that are there."""
    mean: float | None
    sd: float | None
    printed: float | None
    """What the paper prints here."""
    printed_sd: float | None
    best: bool = False
    """Whether no row of this column has a better mean."""
    never: Mapping[int, float] = field(default_factory=dict)
    """By seed: the visits of runs that never reached a target of visits."""


@dataclass(frozen=True)
class Comparison:
    """A row against the table's reference, seed by seed."""

    row: str
    column: str
    figure: str
    found: PairedDifference


@dataclass(frozen=True)
class Standing:
    """How a row does over all columns, by the first figure; only where there are three columns or more."""

    row: str
    mean_rank: float
    """1 is best; rows with the same mean share the mean of their ranks."""
    worst: float
    """Its mean in the column where it does worst."""
    first: int
    """Columns in which it is the best."""


@dataclass(frozen=True)
class Cost:
    """What one run of a row costs, on average over columns and seeds."""

    row: str
    participations: float
    bytes: float | None
    """None where a run was kept without them."""
    rounds: float
    seconds: float
    """Processor time of one thread of the machine that computed it: the median over the runs of which it is known,
    since the first run of a machine also embeds the pictures; no part of what is compared."""


@dataclass(frozen=True)
class MeanCurve:
    """The mean curve of a row in a column."""

    row: str
    column: str
    score: str
    visits: tuple[float, ...]
    values: tuple[float, ...]


@dataclass(frozen=True)
class Results:
    """Everything that the files of a table are written from."""

    table: Table
    entries: tuple[TableFigure, ...]
    comparisons: tuple[Comparison, ...]
    verdicts: tuple[ClaimOutcome, ...]
    standings: tuple[Standing, ...]
    costs: tuple[Cost, ...]
    curves: tuple[MeanCurve, ...]
    records: tuple[RunRecord, ...]
    places: Mapping[str, list[tuple[str, str, int]]]
    """Row, column and seed of each record, by its key; equal runs stand at several places."""
    notes: tuple[str, ...]
    cells_wanted: int

    @property
    def cells_there(self) -> int:
        return sum(len(places) for places in self.places.values())

    def entry(self, row: str, column: str, figure: str) -> TableFigure:
        return next(e for e in self.entries if (e.row, e.column, e.figure) == (row, column, figure))

    @property
    def versions(self) -> list[str]:
        return sorted({record.version for record in self.records})

    def averaged(self, figure: str) -> tuple[int, int]:
        """The fewest and the most rounds over which `last` is the mean: ten, or all of a shorter run."""
        counts = {min(judged_rounds(record.figures, figure), LAST) for record in self.records} - {0}
        return (min(counts), max(counts)) if counts else (LAST, LAST)

    def runs_by_version(self) -> dict[str, dict[str, int]]:
        """How many runs of each row a version has computed, the version of most runs first."""
        counts = Counter((record.version, row) for record in self.records for row, _, _ in self.places[record.key])
        rows = [row.label for row in self.table.rows]
        found = {
            version: {row: counts[version, row] for row in rows if counts[version, row]} for version in self.versions
        }
        return dict(sorted(found.items(), key=lambda item: -sum(item[1].values())))


def results_of(table: Table, placed: Iterable[tuple[str, str, int, RunRecord]], wanted: int) -> Results:
    """The table's results from the records that are there, each with its row, column and seed."""
    outcomes: dict[Place, dict[int, RunRecord]] = {}
    places: dict[str, list[tuple[str, str, int]]] = {}
    for row, column, seed, record in placed:
        outcomes.setdefault((row, column), {})[seed] = record
        places.setdefault(record.key, []).append((row, column, seed))
    entries = _with_best(_entries(table, outcomes))
    records = {record.key: record for kept in outcomes.values() for record in kept.values()}
    return Results(
        table=table,
        entries=tuple(entries),
        comparisons=tuple(_comparisons(table, entries)),
        verdicts=judged(table, entries),
        standings=tuple(_standings(table, entries)),
        costs=tuple(_costs(table, outcomes)),
        curves=tuple(_curves(table, outcomes)),
        records=tuple(records[key] for key in sorted(records)),
        places=places,
        notes=(*_notes(records.values()), *_oracle_notes(outcomes), *_set_aside(outcomes)),
        cells_wanted=wanted,
    )


def _entries(table: Table, outcomes: Mapping[Place, Mapping[int, RunRecord]]) -> list[TableFigure]:
    entries = []
    for figure in table.figures:
        for row in table.rows:
            for column in table.columns_of(row):
                runs = outcomes.get((row.label, column.label), {})
                values = {s: value_of(runs[s].figures, figure) for s in table.seeds if s in runs}
                known = {seed: value for seed, value in values.items() if value is not None}
                mean, sd = mean_and_sd(list(known.values())) if known else (None, None)
                printed = table.printed(row, column, figure)
                never = {s: visits_made(runs[s].figures) for s in values if s not in known and is_target(figure)}
                entries.append(
                    TableFigure(row.label, column.label, figure, known, len(runs), mean, sd, *printed, never=never)
                )
    return entries


def _with_best(entries: list[TableFigure]) -> list[TableFigure]:
    means: dict[Place, list[float]] = {}
    for entry in entries:
        if entry.mean is not None and len(entry.values) == entry.runs:
            sign = -1.0 if lower_is_better(entry.figure) else 1.0
            means.setdefault((entry.column, entry.figure), []).append(sign * entry.mean)
    # the best of one says nothing, nor does that of several that are all the same
    best = {place: max(found) for place, found in means.items() if len(found) == 1 or min(found) < max(found)}
    marked = []
    several = len({entry.row for entry in entries}) > 1
    for entry in entries:
        sign = -1.0 if lower_is_better(entry.figure) else 1.0
        top = best.get((entry.column, entry.figure))
        is_best = several and entry.mean is not None and len(entry.values) == entry.runs and sign * entry.mean == top
        marked.append(TableFigure(**{**entry.__dict__, "best": is_best}))
    return marked


def _comparisons(table: Table, entries: Sequence[TableFigure]) -> list[Comparison]:
    by_place = {(e.row, e.column, e.figure): e for e in entries}
    found = []
    for entry in entries:
        other = by_place.get((table.compared_with, entry.column, entry.figure))
        if other is None or entry.row == other.row:
            continue
        seeds = [seed for seed in entry.values if seed in other.values]
        if seeds:
            pair = paired([entry.values[s] for s in seeds], [other.values[s] for s in seeds])
            found.append(Comparison(entry.row, entry.column, entry.figure, pair))
    return found


def _standings(table: Table, entries: Sequence[TableFigure]) -> list[Standing]:
    """Rows that have a mean in every column, best mean rank first."""
    figure = table.figures[0]
    sign = -1.0 if lower_is_better(figure) else 1.0
    means = {
        row.label: [e.mean for e in entries if (e.row, e.figure) == (row.label, figure) and e.mean is not None]
        for row in table.rows
    }
    whole = {row: values for row, values in means.items() if len(values) == len(table.columns)}
    if len(table.columns) < FEWEST_COLUMNS or len(whole) < 2:
        return []
    ranks = stats.rankdata([[-sign * value for value in values] for values in whole.values()], axis=0)
    found = [
        Standing(row, float(places.mean()), sign * min(sign * v for v in values), int((places < 2).sum()))
        for (row, values), places in zip(whole.items(), ranks)
    ]
    return sorted(found, key=lambda standing: standing.mean_rank)


def _costs(table: Table, outcomes: Mapping[Place, Mapping[int, RunRecord]]) -> list[Cost]:
    costs = []
    for row in table.rows:
        runs = [r for place, kept in outcomes.items() if place[0] == row.label for r in kept.values()]
        if runs:
            sent = [_sum(r.figures.get("bytes_down"), r.figures.get("bytes_up")) for r in runs]
            costs.append(
                Cost(
                    row.label,
                    participations=sum(r.figures["participations"] for r in runs) / len(runs),
                    bytes=None if None in sent else sum(amount or 0 for amount in sent) / len(runs),
                    rounds=sum(r.figures["rounds"] for r in runs) / len(runs),
                    seconds=_middle([r.seconds for r in runs if r.seconds > 0]),
                )
            )
    return costs


def _middle(values: Sequence[float]) -> float:
    return statistics.median(values) if values else 0.0


def _sum(down: float | None, up: float | None) -> float | None:
    return None if down is None or up is None else down + up


def _curves(table: Table, outcomes: Mapping[Place, Mapping[int, RunRecord]]) -> list[MeanCurve]:
    """Mean over the seeds, by how often a site had taken part; of the score that the first figure reads. Runs of which
    the figures alone are known have none."""
    score = table.figures[0].partition(".")[0]
    curves = []
    for row in table.rows:
        for column in table.columns_of(row):
            runs = outcomes.get((row.label, column.label), {}).values()
            kept = [r.outcome["curve"] for r in runs if "curve" in r.outcome]
            name = score if all(score in curve for curve in kept) else "accuracy"
            kept = [curve for curve in kept if curve.get(name) and None not in curve[name]]
            length = min((len(curve[name]) for curve in kept), default=0)
            if length:
                visits = tuple(sum(c["visits"][i] for c in kept) / len(kept) for i in range(length))
                values = tuple(100 * sum(c[name][i] for c in kept) / len(kept) for i in range(length))
                curves.append(MeanCurve(row.label, column.label, name, visits, values))
    return curves


def _oracle_notes(outcomes: Mapping[Place, Mapping[int, RunRecord]]) -> list[str]:
    """Rows that were given what a real site cannot know, and what that is."""
    given = {
        place[0]: record.figures["oracle"]
        for place, kept in outcomes.items()
        for record in kept.values()
        if record.figures.get("oracle")
    }
    return [f"{row} had outside knowledge: {what}" for row, what in given.items()]


def _set_aside(outcomes: Mapping[Place, Mapping[int, RunRecord]]) -> list[str]:
    """Rows in which the gate refused replies: sites of a simulation are honest, so these figures deserve a look."""
    refused = {
        place: sum(int(record.figures.get(REFUSED, 0)) for record in kept.values()) for place, kept in outcomes.items()
    }
    return [
        f"{plural(count, 'reply', 'replies')} of {row} in {column} set aside, though no site of a simulation is hostile"
        for (row, column), count in refused.items()
        if count
    ]


def _notes(records: Any) -> list[str]:
    """What every run of the table has to say, once."""
    return list(dict.fromkeys(note for record in records for note in record.figures.get("notes", ())))
