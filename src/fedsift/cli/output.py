"""Printing for the command line: tables for people, JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedsift.core.numbers import plain
from fedsift.core.text import visible
from fedsift.report.console import PlainConsole

stdout = PlainConsole()
stderr = PlainConsole(stderr=True)


def print_json(value: Any) -> None:
    print(json.dumps(plain(value), indent=2))


def say(text: object, console: Console | None = None) -> None:
    """One line of plain text: no markup in it counts, and it is never broken, so that a path in it can be copied."""
    (console or stdout).print(str(text), markup=False, highlight=False, soft_wrap=True)


@contextmanager
def with_status(words: str) -> Iterator[None]:
    """Says on standard error what is going on if that takes longer than a moment, e.g. while libraries load."""
    from fedsift.deploy.waiting import meanwhile

    with meanwhile(words, lambda line: say(line, stderr), at_once=False):
        yield


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """A table of plain text: brackets in a cell, such as `[n, K]`, are not markup. Names, to the left, stay whole."""
    table = Table(title=escape(title), title_justify="left", header_style="bold")
    for number, column in enumerate(columns):
        longest = max((len(str(row[number])) for row in rows), default=0)
        table.add_column(column, overflow="fold", no_wrap=number == 0 and longest <= stdout.width // 2)
    for row in rows:
        table.add_row(*(escape(visible(cell)) for cell in row))
    stdout.print(table)
