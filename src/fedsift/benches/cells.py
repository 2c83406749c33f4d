"""The cells of a table: every row in every column with every seed, as a resolved study with its key."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from fedsift.benches.table import NAMED, Column, Row, Table
from fedsift.benches.version import version_of
from fedsift.contract.errors import ConfigError, FedsiftError
from fedsift.data.presets import preset_names, preset_table
from fedsift.study import Study, read_toml
from fedsift.study.tables import Bases, apply_overrides, defaults_of

LEFT_OUT = ("name",)
"""Keys of a study that change no result."""
LEFT_OUT_OF_ENGINE = ("workers",)


@dataclass(frozen=True)
class Cell:
    """One run of a table."""

    row: str
    column: str
    seed: int
    study: Study

    @property
    def label(self) -> str:
        place = f" in {self.column}" if self.column else ""
        return f"{self.row}{place}, seed {self.seed}"

    # kept once computed: how far a table is, is asked of all its cells at every piece of news
    @cached_property
    def study_key(self) -> str:
        """What is computed: the settings without what changes no result."""
        return digest(canonical(self.study))

    @cached_property
    def version(self) -> str:
        return version_of(self.study.to_table())

    @cached_property
    def key(self) -> str:
        """What is computed, and by which program."""
        return digest(f"{self.study_key}\n{self.version}")


def canonical(study: Study) -> str:
    """The study as text that is the same wherever it is made: every setting that is not its class's default.

    What a default is belongs to the version, which is part of a run's key: a version with one more switch, off unless
    somebody turns it on, must not orphan the results of those before it.
    """
    table = {key: value for key, value in study.to_table().items() if key not in LEFT_OUT}
    table["engine"] = {k: v for k, v in table["engine"].items() if k not in LEFT_OUT_OF_ENGINE}
    for key, owner in _owners(study).items():
        usual = defaults_of(type(owner))
        table[key] = {k: v for k, v in table[key].items() if k not in usual or v != usual[k]}
    return json.dumps(table, sort_keys=True, default=str)


def _owners(study: Study) -> dict[str, Any]:
    """The dataclass that each table of a study is made of."""
    return {
        "data": study.source,
        "partition": study.partition,
        "noise": study.noise,
        "model": study.model,
        "train": study.train,
        "method": study.method,
        "engine": study.engine,
        "federation": study.federation,
        "gate": study.gate,
        "evaluate": study.evaluate,
    }


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def cells_of(table: Table, seeds: tuple[int, ...] = ()) -> Iterator[Cell]:
    """All cells, seed by seed, so that a table that was stopped has whole seeds."""
    for seed in seeds or table.seeds:
        for column in table.columns:
            for row in table.rows:
                if column in table.columns_of(row):
                    yield Cell(row.label, column.label, seed, study_of(table, row, column, seed))


def study_of(table: Table, row: Row, column: Column, seed: int) -> Study:
    """The study of one cell; what is wrong with it names the row and the column."""
    try:
        content, base = _scenario(column.scenario or table.scenario, table.base)
        for settings in (table.everywhere, column.settings, row.settings, row.at.get(column.label, {})):
            content = merged(content, settings)
        content = apply_overrides(content, list(table.settings))
        where = f"{table.name}: {row.label}, {column.label}" if column.label else f"{table.name}: {row.label}"
        content.update(name=where, seed=seed)
        return Study.from_table(content, Bases(base))
    except FedsiftError as error:
        raise ConfigError(
            f"table '{table.name}', row '{row.label}', column '{column.label}': {error}"
        ) from None


def merged(below: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """A study's tables with others over them, key by key; one that names another method, dataset, partition or noise
    takes the place of the whole table."""
    result = dict(below)
    for key, value in over.items():
        before = result.get(key, {})
        renamed = key in NAMED and value.get("name", before.get("name")) != before.get("name")
        result[key] = dict(value) if renamed else {**before, **value}
    return result


def _scenario(name: str, base: Path | None) -> tuple[dict[str, Any], Path]:
    """A preset's tables, or those of a study's file; and where its paths start."""
    here = base or Path.cwd()
    if name in preset_names():
        return preset_table(name), here
    path = here / name
    return read_toml(path), path.parent
