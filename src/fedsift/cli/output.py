"""Printing: tables for people, JSON for programs, a progress display for long work."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from fedsift.engines.loop import Listener
from fedsift.engines.runfolder import plain

stdout = Console()
stderr = Console(stderr=True)

QUIET_SECONDS = 5.0
"""Without a terminal, say where the work stands every so many seconds."""


def print_json(value: Any) -> None:
    print(json.dumps(plain(value), indent=2))


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """A table of plain text: brackets in a cell, such as `[n, K]`, are not markup. Names, to the left, stay whole."""
    table = Table(title=escape(title), title_justify="left", header_style="bold")
    for number, column in enumerate(columns):
        longest = max((len(str(row[number])) for row in rows), default=0)
        table.add_column(column, overflow="fold", no_wrap=number == 0 and longest <= stdout.width // 2)
    for row in rows:
        table.add_row(*(escape(str(cell)) for cell in row))
    stdout.print(table)


@contextmanager
def round_progress(title: str, total: int, *, done: int = 0, silent: bool = False) -> Iterator[Listener]:
    """A listener that draws finished rounds; on standard error, so that output can be piped."""
    if silent:
        yield lambda row: None
        return
    if not stderr.is_terminal:
        yield _PlainProgress(title, total)
        return
    columns = (
        TextColumn("[bold]{task.description}"),
        BarColumn(bar_width=28),
        MofNCompleteColumn(),
        TextColumn("{task.fields[news]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=stderr) as progress:
        task = progress.add_task(title, total=total, completed=done, news="")

        def listen(row: dict[str, Any]) -> None:
            # a run may know its rounds only when it knows its sites
            progress.update(task, completed=row["round"], total=row.get("of", total), news=news_of(row))
            for site, reason in row["refused"].items():
                progress.console.print(
                    f"[yellow]round {row['round']}: set aside {site}:[/] {reason}", highlight=False
                )
            for warning in row["warnings"]:
                progress.console.print(f"[yellow]round {row['round']}:[/] {warning}", highlight=False)

        yield listen


class _PlainProgress:
    """One line now and then for logs and pipes."""

    def __init__(self, title: str, total: int) -> None:
        self.title, self.total = title, total
        self.last = time.monotonic()

    def __call__(self, row: dict[str, Any]) -> None:
        now, self.total = time.monotonic(), row.get("of", self.total)
        if now - self.last < QUIET_SECONDS and row["round"] != self.total and not row["refused"]:
            return
        self.last = now
        extra = "".join(f"; set aside {site}: {reason}" for site, reason in row["refused"].items())
        stderr.print(
            f"{self.title} {row['round']}/{self.total} {news_of(row)}{extra}", highlight=False, soft_wrap=True
        )


def news_of(row: dict[str, Any]) -> str:
    parts = [row["stage"]]
    for key in ("accuracy", "bacc", "map"):
        if row.get(key) is not None:
            parts.append(f"{key} {100 * row[key]:.1f}")
    return "  ".join(parts)


def size_text(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError


def time_text(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
