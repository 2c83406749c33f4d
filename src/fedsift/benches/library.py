"""The tables that come with the package, by name, and tables from files. This module imports no torch."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from fedsift.benches.table import Table, inherited, read_table, table_of
from fedsift.contract.errors import ConfigError
from fedsift.contract.registry import nearest


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
    return files("fedsift.benches") / "tables"
