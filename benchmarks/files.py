"""Results as nested tables in memory and as CSV in files: what the benchmarks of one kind of thing share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedsift.benchmark.rows import flat, nested, read_rows, write_rows

VALUE = "value"
"""The column of what is no table."""


def read_list(file: Path) -> list[dict[str, Any]]:
    """The rows as nested tables; none where there is no file."""
    return [nested(row) for row in read_rows(file)] if file.is_file() else []


def write_list(file: Path, rows: Sequence[Mapping[str, Any]], key: Sequence[str]) -> None:
    """Nested tables as rows, sorted by `key`."""
    write_rows(file, map(flat, rows), key)


def read_tree(file: Path, key: Sequence[str]) -> dict[Any, Any]:
    """The rows by their first key, then by the next; empty where there is no file."""
    found: dict[Any, Any] = {}
    for row in read_rows(file) if file.is_file() else ():
        *path, last = (row.pop(name) for name in key)
        place = found
        for part in path:
            place = place.setdefault(part, {})
        place[last] = row[VALUE] if row.keys() == {VALUE} else nested(row)
    return found


def write_tree(file: Path, tree: Mapping[Any, Any], key: Sequence[str]) -> None:
    """What `read_tree` reads."""
    write_rows(file, _leaves(tree, key, {}), key)


def _leaves(tree: Mapping[Any, Any], key: Sequence[str], above: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    name, *rest = key
    for value, below in tree.items():
        place = {**above, name: value}
        if rest:
            yield from _leaves(below, rest, place)
        else:
            yield {**place, **(flat(below) if isinstance(below, Mapping) else {VALUE: below})}


def replaced(file: Path, rows: Sequence[Mapping[str, Any]], **those: Any) -> list[dict[str, Any]]:
    """The rows of a file with new ones in the place of those that have these values."""
    kept = read_rows(file) if file.is_file() else []
    others = [row for row in kept if any(row.get(name) != value for name, value in those.items())]
    return [*others, *map(dict, rows)]
