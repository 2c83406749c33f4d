"""How long the small twins take: from the processor time of the runs that are kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from fedsift.benchmark.cells import study_of
from fedsift.benchmark.summary import Results
from fedsift.benchmark.table import Table, TableColumn, TableRow, find_table, table_names

CORES = 2
SEEDS = 3
MOST = 15.0
"""Minutes that a twin may take."""


@dataclass(frozen=True)
class Forecast:
    """One twin: minutes for three seeds on two cores with nothing else to do."""

    name: str
    runs: int
    minutes: float | None
    """None where nothing like it was measured."""
    measured: float
    """Share of its kinds of run (row and column) whose own time is known."""


@dataclass(frozen=True)
class Kind:
    """What the time of a round depends on most."""

    data: str
    limit: int
    model: str
    epochs: int


def forecasts(kept: Sequence[Results]) -> Iterator[Forecast]:
    """Every twin, by its own runs where these are kept, else by the time of a round of runs like it."""
    own: dict[tuple[str, str, str], list[float]] = {}
    like: dict[Kind, list[float]] = {}
    near: dict[Kind, list[float]] = {}
    for results in kept:
        kinds = {
            (row.label, column.label): kind_of(results.table, row, column)[0]
            for row in results.table.rows
            for column in results.table.columns_of(row)
        }
        for record in results.records:
            if record.seconds <= 0:
                continue
            for row, column, _ in results.places[record.key]:
                own.setdefault((results.table.name, row, column), []).append(record.seconds)
                each = record.seconds / max(record.figures["rounds"], 1)
                like.setdefault(kinds[row, column], []).append(each)
                near.setdefault(replace(kinds[row, column], epochs=0), []).append(each)
    for name in table_names():
        if not name.endswith("-small"):
            continue
        table = find_table(name)
        seconds: list[float | None] = []
        known = 0
        for row in table.rows:
            for column in table.columns_of(row):
                times = own.get((name, row.label, column.label))
                if times:
                    known += 1
                    seconds.append(_mean(times))
                    continue
                kind, rounds = kind_of(table, row, column)
                rates = like.get(kind) or near.get(replace(kind, epochs=0))
                seconds.append(None if not rates else rounds * _mean(rates))
        found = [value for value in seconds if value is not None]
        whole = None if len(found) < len(seconds) else SEEDS * sum(found) / CORES / 60
        yield Forecast(name, SEEDS * len(seconds), whole, known / len(seconds))


def kind_of(table: Table, row: TableRow, column: TableColumn) -> tuple[Kind, int]:
    """The kind of a run, and its rounds."""
    study = study_of(table, row, column, table.seeds[0])
    content = study.to_table()
    model, data = content["model"], content["data"]
    name = str(model.get("name") or model.get("cycle") or model.get("sites"))
    kind = Kind(data["name"], data.get("train_limit", 0), name, study.method.local.epochs)
    return kind, study.method.total_rounds


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def lines(kept: Sequence[Results]) -> list[list[str]]:
    """Rows of the page's table."""
    rows = []
    for one in forecasts(kept):
        if one.minutes is None:
            shown, how = "–", "nothing like it was measured"
        else:
            shown = f"{one.minutes:.1f}" + (" (too long)" if one.minutes > MOST else "")
            how = (
                "measured" if one.measured == 1 else "forecast" if not one.measured else f"{one.measured:.0%} measured"
            )
        rows.append([one.name, str(one.runs), shown, how])
    return rows
