"""Table definitions: those of the package, by name, and a user's own from a TOML file. Imports no torch."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from fedsift.core.errors import ConfigError
from fedsift.core.registry import nearest
from fedsift.study.families import BASES, LIKE, members_of, merged, with_bases

# A table: rows, columns, seeds and what is read off each run, from one TOML file
# ------------------------------------------------------------------------------

STUDY_TABLES = (
    "data", "partition", "noise", "public", "model", "train", "method", "engine", "federation", "gate", "evaluate"
)  # fmt: skip
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


# The tables that come with the package: one file a paper, written as families
# ------------------------------------------------------------------------------

FULL, SMALL = "full", "small"
BY_LABEL = ("rows", "columns", "claims", "printed")
"""Parts of a package's table that are tables by label, and are merged label by label."""


def table_names() -> list[str]:
    """All tables of the package, such as `fedcorr-2` and its twin `fedcorr-2-small`, in alphabetical order."""
    return list(_contents())


def find_table(name: str) -> Table:
    """A table by its name, or from its file. A twin has what the full table prints."""
    path = Path(name)
    if path.suffix == ".toml":
        table = read_table(path)
    else:
        if name not in _contents():
            raise ConfigError(f"unknown table '{name}'.{nearest(name, table_names())}")
        table = table_of(name, _contents()[name])
    return inherited(table, find_table(table.twin)) if table.twin else table


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


@cache
def _contents() -> dict[str, dict[str, Any]]:
    """Every table of the package as `table_of` takes it."""
    found: dict[str, dict[str, Any]] = {}
    for file in (files("fedsift.benchmark") / "tables").iterdir():
        if file.name.endswith(".toml"):
            found.update(_tables_of(tomllib.loads(file.read_text("utf-8"))))
    return dict(sorted(found.items()))


def _tables_of(file: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The tables of a paper's file. What stands above its first table holds for all of them, but not for twins."""
    usual = {key: value for key, value in file.items() if not isinstance(value, Mapping)}
    tables = {name: _prepared(entry) for name, entry in file.items() if name != BASES and isinstance(entry, Mapping)}
    bases = {name: _prepared(entry) for name, entry in file.get(BASES, {}).items()} | tables
    for name, entry in tables.items():
        full = {**usual, **with_bases(entry, bases, _laid_over)}
        twin = full.pop(SMALL, None)
        if "paper" in full:
            full.setdefault("source", _place_in_paper(name))
        yield name, _listed(full)
        if twin is not None:
            own = with_bases(twin, bases, _laid_over)
            yield f"{name}-small", _listed(_laid_over(_twin_of(name, full, own), own))


def _prepared(entry: Mapping[str, Any]) -> dict[str, Any]:
    """An entry in the form in which another one can be laid over it: what the twin is and is like stands in the twin;
    columns and printed lines are tables."""
    content = dict(entry)
    for key in ("what", LIKE):
        if isinstance(content.get(key), Mapping):
            sizes = content.pop(key)
            content |= {key: sizes[FULL]} if FULL in sizes else {}
            content |= {SMALL: {key: sizes[SMALL], **content.get(SMALL, {})}} if SMALL in sizes else {}
    if isinstance(content.get("columns"), Mapping):
        columns = content["columns"].items()
        content["columns"] = {label: {"scenario": c} if isinstance(c, str) else c for label, c in columns}
    if "printed" in content:
        lines = [re.split(r"\s{2,}", line, maxsplit=1) for line in content["printed"].splitlines()]
        content["printed"] = {label: {"cells": cells} for label, cells in lines}
    if SMALL in content:
        content[SMALL] = _prepared(content[SMALL])
    return content


def _laid_over(below: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """A table's content over another's: rows, columns, claims and printed lines by their labels, settings by key."""
    result = {**below, **over}
    for part in BY_LABEL:
        if isinstance(below.get(part), Mapping) and isinstance(over.get(part), Mapping):
            entries = {label: merged(below[part].get(label, {}), entry) for label, entry in over[part].items()}
            result[part] = {**below[part], **entries}
    for part in ("all", "each"):
        result |= {part: merged(below.get(part, {}), over.get(part, {}))} if part in result else {}
    if SMALL in below and SMALL in over:
        result[SMALL] = _laid_over(below[SMALL], over[SMALL])
    return result


def _twin_of(name: str, full: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """What a small twin has of its full table: the figures; the columns in small, unless it has its own; and the rows,
    unless it says `other_rows`."""
    twin = {"twin": name, "what": f"{full['what']}, in small", "figures": full["figures"]}
    if "scenario" in full:
        twin["scenario"] = f"{full['scenario']}-small"
    if "columns" in full and "columns" not in own:
        twin["columns"] = {
            label: {key: f"{value}-small" if key == "scenario" else value for key, value in column.items()}
            for label, column in full["columns"].items()
        }
    if not own.get("other_rows", False):
        twin |= {key: full[key] for key in ("rows", "keep", "each") if key in full}
    return twin


def _listed(content: Mapping[str, Any]) -> dict[str, Any]:
    """The content as a person's own file has it: templates filled in, and rows, columns and claims as lists."""
    table = {key: value for key, value in content.items() if key in TOP}
    for part, choice in (("rows", "keep"), ("columns", "only")):
        if part in content:
            entries = content[part].items()
            by_label = dict(pair for label, entry in entries for pair in members_of(label, entry, STUDY_TABLES))
            table[part] = [{"label": label, **by_label[label]} for label in content.get(choice, by_label)]
    for row in table["rows"]:
        for key, below in content.get("each", {}).items():
            row[key] = {**below, **row.get(key, {})}
        if row["label"] in content.get("printed", {}):
            row |= _read_printed(content["printed"][row["label"]]["cells"], content["figures"])
    table["claims"] = [
        {"text": text, **({"figure": content["judged_by"]} if "judged_by" in content else {}), **claim}
        for text, claim in content.get("claims", {}).items()
    ]
    return table


def _read_printed(cells: str, figures: Sequence[str]) -> dict[str, Any]:
    """What a paper prints in a row: `93.11±0.12` for each column or `-`, figure by figure with `|` between them."""
    row: dict[str, Any] = {"printed": {}, "deviation": {}}
    for figure, part in zip(figures, cells.split("|")):
        pairs = [cell.partition("±") for cell in part.split()]
        row["printed"][figure] = [math.nan if value == "-" else float(value) for value, _, _ in pairs]
        if "±" in part:
            row["deviation"][figure] = [float(deviation or "nan") for _, _, deviation in pairs]
    return row


def _place_in_paper(name: str) -> str:
    """Where a paper prints the table of this name: `fedcorr-2` is Table 2, `fedcorr-figure-3` is Figure 3."""
    kind, number = name.split("-")[-2:]
    return f"{'Figure' if kind == 'figure' else 'Table'} {number}"
