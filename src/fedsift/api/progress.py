"""Progress display of a run: a bar in a terminal, a line in a notebook, occasional lines in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from rich.console import Console
from rich.markup import escape

from fedsift.core.numbers import plural
from fedsift.core.text import html_text, visible
from fedsift.report.console import PlainConsole

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

Row = dict[str, Any]
Listener = Callable[[Row], None]


class Display(Protocol):
    """Draws finished rounds, and says where the work stands between two of them."""

    def __call__(self, row: Row) -> None: ...

    def say(self, words: str) -> None: ...


QUIET_SECONDS = 5.0
"""Without a terminal, say where the work stands every so many seconds."""
REFRESHES = 2
"""Times a second that a terminal's view is drawn."""


@contextmanager
def round_progress(
    title: str, total: int, *, done: int = 0, silent: bool = False, folder: Path | None = None
) -> Iterator[Display]:
    """A listener that draws finished rounds: for the command line, on standard error so that output can be piped.

    folder: the run's; with it a terminal also shows what happens within a round, and at which sites.
    """
    console = PlainConsole(stderr=True)
    if silent:
        yield _Silent()
    elif console.is_terminal and folder is not None:
        with _view(console, title, folder) as listen:
            yield listen
    elif console.is_terminal:
        with _bar(console, title, total, done) as listen:
            yield listen
    else:
        yield _Lines(console, title, total)


@contextmanager
def api_progress(
    title: str, total: int, *, done: int = 0, wanted: bool | None = None, folder: Path | None = None
) -> Iterator[Listener]:
    """The same for Python. wanted: None shows it in a terminal and in a notebook and is silent elsewhere."""
    console = PlainConsole(stderr=True)
    show = notebook_display()
    if wanted is False or (wanted is None and show is None and not console.is_terminal):
        yield _nothing
    elif show is not None:
        yield _Cell(show, title, total, done)
    else:
        with round_progress(title, total, done=done, folder=folder) as listen:
            yield listen


def notebook_display() -> Callable[..., Any] | None:
    """IPython's `display` when this runs in a notebook's kernel; IPython is never imported for it."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is None or not hasattr(shell, "kernel"):
        return None
    from importlib import import_module

    display: Callable[..., Any] = import_module("IPython.display").display
    return display


def _nothing(row: Row) -> None:
    """A listener that does not listen."""


class _Silent:
    def __call__(self, row: Row) -> None: ...

    def say(self, words: str) -> None: ...


@contextmanager
def _view(console: Console, title: str, folder: Path) -> Iterator[Display]:
    """A few lines that change: how far, which stage, which scores, what the sites are doing."""
    from rich.live import Live

    from fedsift.report.watching import ShortDisplay

    with Live(ShortDisplay(folder, title), console=console, refresh_per_second=REFRESHES, transient=False) as live:
        yield _View(live.console)
        live.refresh()


class _View:
    """What was refused, and words that are new, above the lines that change."""

    def __init__(self, console: Console) -> None:
        self.console, self.said = console, ""

    def __call__(self, row: Row) -> None:
        _say(self.console, row)

    def say(self, words: str) -> None:
        said = words.partition(" (")[0]
        if said != self.said:  # the lines below show that time passes
            self.said = said
            self.console.print(visible(words), highlight=False, soft_wrap=True, markup=False)


@contextmanager
def _bar(console: Console, title: str, total: int, done: int) -> Iterator[Display]:
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("[bold]{task.description}"),
        BarColumn(bar_width=28),
        MofNCompleteColumn(),
        TextColumn("{task.fields[news]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(escape(title), total=total, completed=done, news="")

        yield _Bar(progress, task, total)


class _Bar:
    """A bar for the rounds, with a few words beside it."""

    def __init__(self, progress: Progress, task: TaskID, total: int) -> None:
        self.progress, self.task, self.total = progress, task, total

    def __call__(self, row: Row) -> None:
        # a run may know its rounds only when it knows its sites
        total = row.get("of", self.total)
        self.progress.update(self.task, completed=row["round"], total=total, news=escape(news_of(row)))
        _say(self.progress.console, row)

    def say(self, words: str) -> None:
        self.progress.update(self.task, news=escape(visible(words)))


def _say(console: Console, row: Row) -> None:
    for site, reason in row["refused"].items():
        console.print(
            f"[yellow]round {row['round']}: set aside {escape(visible(site))}:[/] {escape(visible(reason))}",
            highlight=False,
        )
    for warning in row["warnings"]:
        console.print(f"[yellow]round {row['round']}:[/] {escape(warning)}", highlight=False)


class _Lines:
    """One line now and then for logs and pipes."""

    def __init__(self, console: Console, title: str, total: int) -> None:
        self.console, self.title, self.total = console, title, total
        self.last, self.stage = time.monotonic(), ""

    def __call__(self, row: Row) -> None:
        now, self.total = time.monotonic(), row.get("of", self.total)
        new_stage = self.stage not in ("", row["stage"])
        self.stage = row["stage"]
        notable = row["refused"] or row["warnings"] or new_stage or row["round"] == self.total
        if now - self.last < QUIET_SECONDS and not notable:
            return
        self.last = now
        sites = f"  {plural(row['participants'], 'site')}" if "participants" in row else ""
        extra = "".join(f"; set aside {visible(site)}: {visible(reason)}" for site, reason in row["refused"].items())
        self._print(f"{self.title} {row['round']}/{self.total} {news_of(row)}{sites}{extra}")
        for warning in row["warnings"]:
            self._print(f"{self.title} {row['round']}/{self.total} warning: {visible(warning)}")

    def _print(self, words: str) -> None:
        self.console.print(words, highlight=False, soft_wrap=True, markup=False)

    def say(self, words: str) -> None:
        """Note a finished round; status lines are then held back for a while."""
        self._print(visible(words))


class _Cell:
    """One line under a notebook's cell that changes with every round; what was refused stays below it."""

    def __init__(self, display: Callable[..., Any], title: str, total: int, done: int) -> None:
        self.title, self.total = title, total
        self.display = display
        self.handle = display(_Words(f"{title} {done}/{total}"), display_id=True)

    def __call__(self, row: Row) -> None:
        self.total = row.get("of", self.total)
        self.handle.update(_Words(f"{self.title} {row['round']}/{self.total}  {news_of(row)}"))
        for site, reason in row["refused"].items():
            self.display(_Words(f"round {row['round']}: set aside {site}: {reason}"))
        for warning in row["warnings"]:
            self.display(_Words(f"round {row['round']}: {warning}"))


class _Words:
    """Text that a notebook shows as it is."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return f"<code>{html_text(self.text)}</code>"


def news_of(row: Row) -> str:
    """The stage and the scores of a round, in a few words."""
    parts = [row["stage"]]
    for key in ("accuracy", "bacc", "map"):
        if row.get(key) is not None:
            parts.append(f"{key} {100 * row[key]:.1f}")
        elif row.get(f"{key}_low") is not None:
            parts.append(f"{key} {100 * row[f'{key}_low']:.1f} to {100 * row[f'{key}_high']:.1f}")
    return "  ".join(parts)
