"""`fedsift.bench`: compare methods in a table of runs, and watch how far the table is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from fedsift.api.progress import QUIET_SECONDS, notebook_display
from fedsift.api.run import Rows
from fedsift.core.numbers import duration
from fedsift.report.console import PlainConsole

if TYPE_CHECKING:
    from fedsift.benchmark.running import Listener, TableOutcome, TableProgress
    from fedsift.benchmark.table import Table


class Bench:
    """A table after its runs: what it says, and where its files are."""

    def __init__(self, outcome: TableOutcome) -> None:
        self._outcome = outcome

    @property
    def folder(self) -> Path:
        """Where `table.html`, `.md`, `.tex` and `.csv` are."""
        return self._outcome.folder

    @property
    def entries(self) -> Rows:
        """One dict for each figure, row and column: mean, sd, values by seed, what the paper prints."""
        return Rows(dict(vars(entry)) for entry in self._outcome.results.entries)

    @property
    def claims(self) -> Rows:
        """One dict for each ordering that the paper states: its text and whether it holds here."""
        return Rows(
            {"text": found.claim.text, "figure": found.figure, "verdict": found.verdict}
            for found in self._outcome.results.verdicts
        )

    @property
    def failures(self) -> dict[str, str]:
        """Why runs are missing, by row, column and seed."""
        return dict(self._outcome.failures)

    def markdown(self) -> str:
        """The table as Markdown."""
        from fedsift.benchmark.text import markdown

        return markdown(self._outcome.results)

    def __repr__(self) -> str:
        results = self._outcome.results
        there = f"{results.cells_there} of {results.cells_wanted} runs"
        return f"Bench({self._outcome.table.name!r}, {there}, folder={str(self.folder)!r})"


def bench(
    table: str | Path | Mapping[str, Any],
    *,
    seeds: Sequence[int] | None = None,
    settings: Sequence[str] = (),
    out: Path | str = "bench",
    processes: int = 0,
    shard: tuple[int, int] = (1, 1),
    ray: str = "",
    keep: bool = False,
    any_version: bool = False,
    progress: bool | None = None,
) -> Bench:
    """Compute what is missing of a table of runs, and write its files under `out`.

    table: a name (`fedsift bench list`), a TOML file, or its content as a dict. settings: over all runs, such as
    "method.rounds=20". processes: runs at a time, 0 is one a core. A script that calls this needs
    `if __name__ == "__main__":`, for processes are started.
    """
    from fedsift.benchmark.running import run_table

    found = _table(table).changed(seeds=tuple(seeds or ()), settings=settings)
    show = progress if progress is not None else notebook_display() is not None or _terminal()
    with table_progress(found.name, silent=not show) as listen:
        return Bench(
            run_table(
                found,
                Path(out),
                processes=processes,
                shard=shard,
                ray=ray,
                keep=keep,
                any_version=any_version,
                listen=listen,
            )
        )


def _table(table: str | Path | Mapping[str, Any]) -> Table:
    from fedsift.benchmark.table import find_table, table_of

    if isinstance(table, Mapping):
        rest = {key: value for key, value in table.items() if key != "name"}
        return table_of(str(table.get("name", "table")), rest)
    return find_table(str(table))


def _terminal() -> bool:
    return PlainConsole(stderr=True).is_terminal


@contextmanager
def table_progress(title: str, *, silent: bool = False) -> Iterator[Listener]:
    """A listener that shows how far a table is: a bar with the runs under way, or lines in a log."""
    console = PlainConsole(stderr=True)
    if silent:
        yield lambda progress: None
    elif console.is_terminal:
        with _bars(console, title) as listen:
            yield listen
    else:
        yield _lines(console, title)


@contextmanager
def _bars(console: PlainConsole, title: str) -> Iterator[Listener]:
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
    from rich.progress import Progress as Bars

    columns = (
        TextColumn("[bold]{task.description}"),
        BarColumn(bar_width=28),
        MofNCompleteColumn(),
        TextColumn("{task.fields[news]}"),
    )
    with Bars(*columns, console=console) as bars:
        whole = bars.add_task(escape(title), total=None, news="")
        tasks: dict[str, Any] = {}

        def listen(progress: TableProgress) -> None:
            bars.update(whole, completed=progress.done, total=progress.total, news=_left(progress))
            for label in [label for label in tasks if label not in progress.running]:
                bars.remove_task(tasks.pop(label))
            for label, (done, of) in progress.running.items():
                if label not in tasks:
                    tasks[label] = bars.add_task(f"  {escape(label)}", total=of, news="")
                bars.update(tasks[label], completed=done, total=of)
            if progress.text:
                colour = "yellow" if progress.failed else "dim"
                bars.console.print(f"[{colour}]{escape(progress.text)}[/]", highlight=False)

        yield listen


def _lines(console: PlainConsole, title: str) -> Callable[[TableProgress], None]:
    import time

    last = time.monotonic()

    def listen(progress: TableProgress) -> None:
        nonlocal last
        if not progress.text and time.monotonic() - last < 6 * QUIET_SECONDS:
            return
        last = time.monotonic()
        words = [f"{title} {progress.done}/{progress.total}", progress.text, _left(progress)]
        console.print("  ".join(word for word in words if word), highlight=False, soft_wrap=True, markup=False)

    return listen


def _left(progress: TableProgress) -> str:
    return "" if progress.seconds_left is None else f"about {duration(progress.seconds_left)} left"
