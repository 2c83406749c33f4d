"""Table definitions: those of the package, by name, and a user's own from a TOML file. Imports no torch."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from fedsift.core.errors import ConfigError
from fedsift.core.registry import nearest

# A table: rows, columns, seeds and what is read off each run, from one TOML file
# ------------------------------------------------------------------------------

STUDY_TABLES = (
    "data", "partition", "noise", "public", "model", "train", "method", "engine", "federation", "gate", "evaluate"
)  # fmt: skip
NAMED = frozenset({"data", "partition", "noise", "method"})
"""Tables whose `name` chooses a class: another name takes the place of the whole table."""
TOP = (
    "what", "paper", "source", "note", "twin", "scenario", "all", "seeds", "figures", "reference", "rows",
    "columns", "claims",
)  # fmt: skip
ROW = ("label", "printed", "deviation", "columns", "at", "note")
COLUMN = ("label", "scenario", "note")
CLAIM = (
    "text", "order", "first", "last", "over", "alike", "printed", "within", "on_average", "columns", "figure",
    "explains",
)  # fmt: skip
KINDS = ("order", "first", "last", "alike", "printed")
"""Keys of a claim of which it has at least one."""


@dataclass(frozen=True)
class TableColumn:
    """One scenario, with settings over it."""

    label: str
    scenario: str = ""
    """A preset's name or a study's file; empty is the table's."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""


@dataclass(frozen=True)
class TableRow:
    """One method with its settings, and what its paper prints for it."""

    label: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    printed: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """By figure: the paper's value for each column, NaN where it prints none."""
    deviation: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """The same for the paper's standard deviations."""
    columns: tuple[str, ...] = ()
    """Only these columns; empty is all."""
    at: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Settings in single columns, by the column's label, over the row's own."""
    note: str = ""


@dataclass(frozen=True)
class PaperClaim:
    """What a paper states: `order` from best to worst, `first` above (`last` below) each of `over`, `alike` rows, or
    rows that come out as `printed`."""

    text: str
    order: tuple[str, ...] = ()
    first: str = ""
    last: str = ""
    over: tuple[str, ...] = ()
    alike: tuple[str, ...] = ()
    printed: tuple[str, ...] = ()
    within: float = 0.0
    """Points by which the means of `alike` rows may differ, and those of `printed` rows from what the paper prints."""
    on_average: float = math.inf
    """For `printed`: points by which they may differ in the mean over rows and columns, whatever the sign."""
    columns: tuple[str, ...] = ()
    figure: str = ""
    explains: str = ""
    """The text of another claim of the table: this one says where that one's outcome comes from."""


@dataclass(frozen=True)
class Table:
    """All that a table's file says, checked as far as that needs no data and no method."""

    name: str
    what: str
    rows: tuple[TableRow, ...]
    columns: tuple[TableColumn, ...]
    seeds: tuple[int, ...] = (1, 2, 3)
    figures: tuple[str, ...] = ("accuracy.last",)
    """What is read off each run, e.g. "accuracy.best", "bacc.last", "detection.recall", "visits-to.0.8"."""
    paper: str = ""
    source: str = ""
    """Where the paper prints it, e.g. "Table 2"."""
    note: str = ""
    twin: str = ""
    """The table that this one repeats in small."""
    scenario: str = ""
    everywhere: Mapping[str, Any] = field(default_factory=dict)
    """Settings over every scenario, below those of columns and rows."""
    settings: tuple[str, ...] = ()
    """Settings of the command line, over everything."""
    reference: str = ""
    """The row with which the others are compared seed by seed; empty is the last one."""
    claims: tuple[PaperClaim, ...] = ()
    base: Path | None = None
    """Where paths in it start."""

    @property
    def runs(self) -> int:
        return len(self.seeds) * sum(len(self.columns_of(row)) for row in self.rows)

    @property
    def compared_with(self) -> str:
        return self.reference or self.rows[-1].label

    def row(self, label: str) -> TableRow:
        return next(row for row in self.rows if row.label == label)

    def columns_of(self, row: TableRow) -> tuple[TableColumn, ...]:
        return tuple(c for c in self.columns if not row.columns or c.label in row.columns)

    def printed(self, row: TableRow, column: TableColumn, figure: str) -> tuple[float | None, float | None]:
        """What the paper prints here and its deviation, None where it prints nothing."""
        place = self.columns.index(column)
        pair = (row.printed.get(figure), row.deviation.get(figure))
        value, spread = (None if known is None or math.isnan(known[place]) else known[place] for known in pair)
        return value, spread

    def changed(self, *, seeds: Sequence[int] = (), settings: Sequence[str] = ()) -> Table:
        """The table with other seeds, and with settings over all of its runs."""
        return replace(
            self, seeds=tuple(seeds) or self.seeds, settings=(*self.settings, *settings)
        )  # fmt: skip


def read_table(path: Path) -> Table:
    """A table from its file; an unknown key is refused with the nearest name."""
    try:
        content = tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"table '{path}' does not exist") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from None
    return table_of(path.stem, content, path.absolute().parent)


def table_of(name: str, content: Mapping[str, Any], base: Path | None = None) -> Table:
    """A table from TOML's tables."""
    where = f"table '{name}'"
    _known(content, TOP, where)
    columns = tuple(_column(entry, where) for entry in content.get("columns", [{"label": ""}]))
    figures = tuple(content.get("figures", ("accuracy.last",)))
    rows = tuple(_row(entry, where, figures, columns) for entry in content.get("rows", ()))
    if not rows:
        raise ConfigError(f"{where} has no [[rows]]")
    table = Table(
        name=name,
        what=str(content.get("what", "")),
        rows=rows,
        columns=columns,
        seeds=read_seeds(content.get("seeds", (1, 2, 3)), where),
        figures=figures,
        paper=str(content.get("paper", "")),
        source=str(content.get("source", "")),
        note=str(content.get("note", "")),
        twin=str(content.get("twin", "")),
        scenario=str(content.get("scenario", "")),
        everywhere=_settings(content.get("all", {}), (), f"{where}, [all]"),
        reference=str(content.get("reference", "")),
        claims=tuple(_claim(entry, where) for entry in content.get("claims", ())),
        base=base,
    )
    _check(table, where)
    return table if table.twin else _explained(table)


def inherited(table: Table, full: Table) -> Table:
    """The small twin with the figures that the full table prints, found by the labels of rows and columns."""
    place = {column.label: number for number, column in enumerate(full.columns)}
    rows = []
    for row in table.rows:
        known = next((r for r in full.rows if r.label == row.label), None)
        if known is None or row.printed:
            rows.append(row)
            continue
        printed, deviation = (
            {
                figure: tuple(values[place[c.label]] if c.label in place else math.nan for c in table.columns)
                for figure, values in part.items()
                if figure in table.figures
            }
            for part in (known.printed, known.deviation)
        )
        rows.append(replace(row, printed=printed, deviation=deviation))
    twin = replace(
        table,
        rows=tuple(rows),
        claims=(*_inherited_claims(table, full), *table.claims),
        paper=table.paper or full.paper,
        source=table.source or full.source,
        reference=table.reference or (full.compared_with if full.compared_with in _labels(table) else ""),
    )
    return _explained(twin)


def _explained(table: Table) -> Table:
    """The table, if each claim that explains another names one: a twin's may be the full table's."""
    texts = [claim.text for claim in table.claims if not claim.explains]
    for claim in table.claims:
        if claim.explains and claim.explains not in texts:
            raise ConfigError(
                f"table '{table.name}': no claim says '{claim.explains}'.{nearest(claim.explains, texts)}"
            )
    return table


def _labels(table: Table) -> set[str]:
    return {row.label for row in table.rows}


def _inherited_claims(twin: Table, full: Table) -> Iterator[PaperClaim]:
    """What the full table states, in the form that the twin's rows and columns allow: a twin cannot leave out what
    turns out badly. One that the twin states in the same words is the twin's."""
    own = {claim.text for claim in twin.claims}
    columns = [column.label for column in twin.columns]
    for claim in full.claims:
        ends = {claim.first, claim.last} - {""}
        over = claim.over or (tuple(row.label for row in full.rows if row.label not in ends) if ends else ())
        kept = replace(
            claim,
            order=_here(claim.order, twin),
            alike=_here(claim.alike, twin),
            printed=_here(claim.printed, twin),
            over=_here(over, twin),
            columns=tuple(label for label in claim.columns if label in columns),
            figure=claim.figure if claim.figure in twin.figures else "",
        )
        compares = len(kept.order) > 1 or len(kept.alike) > 1 or bool(kept.printed) or bool(ends and kept.over)
        there = ends <= _labels(twin) and (not claim.columns or bool(kept.columns))
        if claim.text not in own and compares and there:
            yield kept


def _here(labels: Sequence[str], table: Table) -> tuple[str, ...]:
    return tuple(label for label in labels if label in _labels(table))


def read_seeds(seeds: Any, where: str) -> tuple[int, ...]:
    """Seeds from a list, or from text such as "1-5" or "1,4,7-9"."""
    if isinstance(seeds, int) and not isinstance(seeds, bool):
        return (seeds,)
    if isinstance(seeds, str):
        found: list[int] = []
        for part in seeds.split(","):
            first, dash, last = part.strip().partition("-")
            if not first.isdigit() or (dash and not last.isdigit()):
                raise ConfigError(f"{where}: seeds '{seeds}' are not of the form 1-5 or 1,2,3")
            found += range(int(first), int(last if dash else first) + 1)
        seeds = found
    if not isinstance(seeds, list | tuple) or not all(isinstance(s, int) and not isinstance(s, bool) for s in seeds):
        raise ConfigError(f"{where}: seeds = {seeds!r}: whole numbers, or text such as 1-5")
    if not seeds or len(set(seeds)) < len(seeds):
        raise ConfigError(f"{where}: seeds = {list(seeds)!r}: at least one, and each once")
    return tuple(seeds)


def _known(entry: Mapping[str, Any], keys: Sequence[str], where: str) -> None:
    for key in entry:
        if key not in keys:
            raise ConfigError(f"{where}: unknown key '{key}'.{nearest(key, list(keys))}")


def _settings(entry: Mapping[str, Any], own: Sequence[str], where: str) -> dict[str, Any]:
    """The tables of a study among the keys of a row or a column."""
    _known(entry, [*own, *STUDY_TABLES], where)
    tables = {key: value for key, value in entry.items() if key in STUDY_TABLES}
    for key, value in tables.items():
        if not isinstance(value, Mapping):
            raise ConfigError(f"{where}: '{key}' = {value!r}: it must be a table")
    return tables


def _label(entry: Mapping[str, Any], where: str) -> str:
    if not isinstance(entry.get("label"), str):
        raise ConfigError(f"{where}: every row and column needs a label")
    return str(entry["label"])


def _column(entry: Mapping[str, Any], where: str) -> TableColumn:
    label = _label(entry, where)
    settings = _settings(entry, COLUMN, f"{where}, column '{label}'")
    return TableColumn(label, str(entry.get("scenario", "")), settings, str(entry.get("note", "")))


def _row(entry: Mapping[str, Any], where: str, figures: tuple[str, ...], columns: tuple[TableColumn, ...]) -> TableRow:
    label = _label(entry, where)
    here = f"{where}, row '{label}'"
    return TableRow(
        label,
        _settings(entry, ROW, here),
        _printed(entry.get("printed"), figures, columns, f"{here}, printed"),
        _printed(entry.get("deviation"), figures, columns, f"{here}, deviation"),
        tuple(entry.get("columns", ())),
        {where: _settings(over, (), f"{here}, at '{where}'") for where, over in entry.get("at", {}).items()},
        str(entry.get("note", "")),
    )


def _printed(
    given: Any, figures: tuple[str, ...], columns: tuple[TableColumn, ...], where: str
) -> dict[str, tuple[float, ...]]:
    """A list for the only figure, or a list for each figure by its name."""
    if given is None:
        return {}
    by_figure = given if isinstance(given, Mapping) else {figures[0]: given}
    for figure, values in by_figure.items():
        if figure not in figures:
            raise ConfigError(f"{where}: unknown figure '{figure}'.{nearest(figure, list(figures))}")
        if not isinstance(values, list | tuple) or len(values) != len(columns):
            raise ConfigError(f"{where}: {len(columns)} numbers are needed, one a column, nan for none")
    return {figure: tuple(float(value) for value in values) for figure, values in by_figure.items()}


def _claim(entry: Mapping[str, Any], where: str) -> PaperClaim:
    _known(entry, CLAIM, f"{where}, claim")
    values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in entry.items()}
    if "text" not in values or not any(values.get(kind) for kind in KINDS):
        raise ConfigError(f"{where}: a claim has a text, and {', '.join(KINDS[:-1])} or {KINDS[-1]}")
    return PaperClaim(**values)


def _check(table: Table, where: str) -> None:
    rows, columns = [row.label for row in table.rows], [column.label for column in table.columns]
    for labels, kind in ((rows, "row"), (columns, "column")):
        for label in labels:
            if labels.count(label) > 1:
                raise ConfigError(f"{where}: two {kind}s are called '{label}'")
    named = [label for claim in table.claims for label in (*claim.order, *claim.over, *claim.alike, *claim.printed)]
    named += [label for claim in table.claims for label in (claim.first, claim.last) if label]
    named += [table.reference] if table.reference else []
    for label in named:
        if label not in rows:
            raise ConfigError(f"{where}: no row is called '{label}'.{nearest(label, rows)}")
    wanted = [label for row in table.rows for label in (*row.columns, *row.at)]
    wanted += [label for claim in table.claims for label in claim.columns]
    for label in wanted:
        if label not in columns:
            raise ConfigError(f"{where}: no column is called '{label}'.{nearest(label, columns)}")
    for column in table.columns:
        if not (column.scenario or table.scenario):
            raise ConfigError(f"{where}: column '{column.label}' has no scenario, and the table has none either")


def table_names() -> list[str]:
    """All tables of the package, such as `fedcorr-2` and its twin `fedcorr-2-small`, in alphabetical order."""
    return list(_names())


@cache
def _names() -> tuple[str, ...]:
    return tuple(sorted(f.name.removesuffix(".toml") for f in _root().iterdir() if f.name.endswith(".toml")))


def find_table(name: str) -> Table:
    """A table by its name, or from its file. A twin has what the full table prints."""
    path = Path(name)
    if path.suffix == ".toml":
        table = read_table(path)
    else:
        if name not in _names():
            raise ConfigError(f"unknown table '{name}'.{nearest(name, table_names())}")
        table = table_of(name, tomllib.loads(table_text(name)))
    return inherited(table, find_table(table.twin)) if table.twin else table


def table_text(name: str) -> str:
    """The table's file as it stands."""
    return (_root() / f"{name}.toml").read_text(encoding="utf-8")


def catalogue() -> Iterator[dict[str, Any]]:
    """What `fedsift bench list` shows."""
    for name in table_names():
        table = find_table(name)
        yield {
            "name": name,
            "what": table.what,
            "paper": " ".join(part for part in (table.paper, table.source) if part),
            "size": "small" if table.twin else "full",
            "rows": len(table.rows),
            "columns": len(table.columns),
            "seeds": len(table.seeds),
            "runs": table.runs,
        }


def _root() -> Traversable:
    return files("fedsift.benchmark") / "tables"
