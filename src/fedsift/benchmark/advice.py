"""Advice on methods: the leaderboard by situation, as the doctor and the page of results show it.

`advice.csv` is written from the leaderboard's results by `python -m benchmarks.tables`. This module imports no torch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from scipy import stats

from fedsift.benchmark.rows import rows_of, rows_text
from fedsift.benchmark.summary import Results
from fedsift.formulas.intervals import PairedDifference, paired

FILE = "advice.csv"
KEY = ("situation", "place")
FIGURES = ("mean_rank", "accuracy", "worst")
SEED = "seed."
"""How columns begin that have the mean of a seed."""
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
"""Columns of the leaderboard that belong to a situation which is known before any training."""


@dataclass(frozen=True)
class RankedRow:
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
    by_seed: Mapping[str, float]
    """Mean over the columns of each seed that has them all, in per cent: what rows are compared by."""

    @property
    def named(self) -> str:
        return f"{self.method} {self.settings}".strip()

    def above(self, other: RankedRow) -> PairedDifference:
        """Points above another row, paired by seed."""
        seeds = [seed for seed in self.by_seed if seed in other.by_seed]
        return paired([self.by_seed[seed] for seed in seeds], [other.by_seed[seed] for seed in seeds])


@dataclass(frozen=True)
class AdvisedRow:
    """A row that is advised, with what it gained over the leaderboard's reference row."""

    named: str
    method: str
    mean_rank: float
    above_reference: float
    """Points, mean over columns and seeds."""
    low: float | None
    high: float | None
    """The 95 % interval of the points, paired by seed; None for a single seed."""
    seeds: int


@dataclass(frozen=True)
class Advice:
    """The best rows of a situation that nothing speaks against, best first."""

    situation: str
    reference: str
    methods: int
    """Rows that were compared: those with results in all of the situation's columns and no knowledge of the truth."""
    best: tuple[AdvisedRow, ...]
    separated: bool | None
    """Whether the interval between the first and the second leaves 0 out; None where there are no two."""


@dataclass(frozen=True)
class SituationRanking:
    """All rows of a situation, best first; none where the leaderboard has no results."""

    situation: str
    reference: str
    rows: tuple[RankedRow, ...]

    def advice(self, unfit: Collection[str] = ()) -> Advice:
        """The best rows of methods that are not in `unfit`."""
        best = [row for row in self.rows if row.method not in unfit][:SHOWN]
        reference = next((row for row in self.rows if row.row == self.reference), None)
        return Advice(
            self.situation,
            self.reference,
            len(self.rows),
            tuple(_advised(row, reference) for row in best if reference is not None),
            _leaves_out_zero(best[0].above(best[1])) if len(best) > 1 else None,
        )

    def level(self) -> tuple[RankedRow, ...]:
        """The rows that do not differ significantly from the first: the interval of the difference contains 0."""
        return tuple(row for row in self.rows[1:] if not _leaves_out_zero(self.rows[0].above(row)))


def _advised(row: RankedRow, reference: RankedRow) -> AdvisedRow:
    gain = row.above(reference)
    low, high = (None, None) if gain.n == 1 else (round(gain.low, 4), round(gain.high, 4))
    return AdvisedRow(row.named, row.method, row.mean_rank, round(gain.mean, 4), low, high, gain.n)


def _leaves_out_zero(difference: PairedDifference) -> bool:
    return not difference.low <= 0 <= difference.high


def situation_of(*, clean_sites: bool, every_class: bool) -> str:
    """The name of a situation."""
    first = "some sites are clean" if clean_sites else "no site is clean"
    return f"{first}, {'all have every class' if every_class else 'some lack classes'}"


def rankings_of(results: Results) -> list[SituationRanking]:
    """The leaderboard by situation; rows that were given the truth do not count."""
    oracles = {
        row for record in results.records if record.figures.get("oracle") for row, _, _ in results.places[record.key]
    }
    rows = {row.label: row.settings.get("method", {}) for row in results.table.rows if row.label not in oracles}
    return [_ranking(results, situation, columns, rows) for situation, columns in SITUATIONS.items()]


def _ranking(
    results: Results, situation: str, columns: Sequence[str], methods: Mapping[str, Mapping[str, Any]]
) -> SituationRanking:
    figure, reference = results.table.figures[0], results.table.compared_with
    found = {row: [results.entry(row, column, figure) for column in columns] for row in methods}
    by_seed = {
        row: {
            str(seed): round(sum(entry.values[seed] for entry in entries) / len(entries), 4)
            for seed in results.table.seeds
            if all(seed in entry.values for entry in entries)
        }
        for row, entries in found.items()
    }
    # A row is compared where it shares a seed with the reference: its gain is paired by seed.
    means = {
        row: [entry.mean for entry in entries if entry.mean is not None]
        for row, entries in found.items()
        if by_seed[row].keys() & by_seed.get(reference, {}).keys()
    }
    if len(means) < 2:
        return SituationRanking(situation, reference, ())
    ranks = stats.rankdata([[-value for value in values] for values in means.values()], axis=0).mean(1)
    rows = [
        RankedRow(
            row,
            methods[row].get("name", ""),
            " ".join(f"{key}={methods[row][key]}" for key in KINDS if key in methods[row]),
            round(float(rank), 2),
            round(sum(values) / len(values), 2),
            round(min(values), 2),
            by_seed[row],
        )
        for (row, values), rank in zip(means.items(), ranks)
    ]
    return SituationRanking(situation, reference, _best_first(rows))


def _best_first(rows: Sequence[RankedRow]) -> tuple[RankedRow, ...]:
    return tuple(sorted(rows, key=lambda row: row.mean_rank))


def advice_text(rankings: Sequence[SituationRanking]) -> str:
    """`advice.csv`: a line a situation and row of the leaderboard, best first."""
    return rows_text((line for ranking in rankings for line in _lines(ranking)), KEY)


def _lines(ranking: SituationRanking) -> Iterator[dict[str, Any]]:
    for place, row in enumerate(ranking.rows, 1):
        yield {
            "situation": ranking.situation,
            "place": place,
            "row": row.row,
            "method": row.method,
            **({"settings": row.settings} if row.settings else {}),
            "reference": ranking.reference,
            **{name: getattr(row, name) for name in FIGURES},
            **{f"{SEED}{seed}": mean for seed, mean in row.by_seed.items()},
        }


def known_rankings() -> list[SituationRanking]:
    """What the package knows."""
    lines = rows_of((files("fedsift.benchmark") / FILE).read_text(encoding="utf-8"), FILE)
    found = []
    for situation in SITUATIONS:
        own = [line for line in lines if line["situation"] == situation]
        reference = own[0]["reference"] if own else ""
        found.append(SituationRanking(situation, reference, _best_first([_row_of(line) for line in own])))
    return found


def _row_of(line: Mapping[str, Any]) -> RankedRow:
    by_seed = {name.removeprefix(SEED): mean for name, mean in line.items() if name.startswith(SEED)}
    figures = {name: line[name] for name in FIGURES}
    return RankedRow(line["row"], line["method"], line.get("settings", ""), **figures, by_seed=by_seed)


def advice_for(*, clean_sites: bool, every_class: bool, unfit: Collection[str] = ()) -> Advice:
    """What the package knows of one situation, without the methods that something speaks against."""
    wanted = situation_of(clean_sites=clean_sites, every_class=every_class)
    return next(ranking for ranking in known_rankings() if ranking.situation == wanted).advice(unfit)
