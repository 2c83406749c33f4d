"""What the command line says after a run: the headline, the sites, the figures, and where the report is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedsift.contract.plaintext import visible
from fedsift.report.console import PlainConsole
from fedsift.report.tables import cell_words, column_words, site_columns
from fedsift.report.words import METRICS, comparison_line, comparison_table, headline, oracle, verdict
from fedsift.runs import LAST, RunData, duration, number, percent, read_run, same_federation, size

SITES_SHOWN = 25
STYLES = {
    "found": "green",
    "missed": "red",
    "false alarm": "red",
    "looks noisy": "yellow",
    "noisy in truth": "yellow",
}


def print_summary(run: Path, report: Path | None = None, console: Console | None = None) -> None:
    """The findings of one run."""
    out, data = console or PlainConsole(), read_run(Path(run))
    _headline(out, data)
    for line in data.missing:
        out.print(Text(line, style="yellow"))
    _sites(out, data)
    _figures(out, data)
    _warnings(out, data)
    _where(out, report)


def print_comparison(
    runs: Sequence[Path], report: Path | None = None, console: Console | None = None
) -> None:
    """The findings of several runs on one federation; the last run is the subject, as in the report."""
    out, data = console or PlainConsole(), [read_run(Path(run)) for run in runs]
    subject = data[-1]
    _headline(out, subject)
    line = comparison_line(data)
    if line:
        out.print(Text(line))
    if not same_federation(data):
        out.print(Text("These runs are not on the same federation: compare with care.", style="yellow"))
    _sites(out, subject)
    heads, rows = comparison_table(data)
    table = Table(header_style="bold")
    for i, head in enumerate(heads):
        table.add_column(Text(head), justify="left" if i == 0 else "right", overflow="fold")
    for row in rows:
        table.add_row(*(Text(visible(cell)) for cell in row))
    out.print(table)
    _warnings(out, subject)
    _where(out, report)


def _headline(out: Console, run: RunData) -> None:
    out.print(Text(f"{headline(run)}.", style="bold"))


def _sites(out: Console, run: RunData) -> None:
    """The sites, those with a result first; long lists are cut, since sites.csv has them all."""
    columns = [name for name in site_columns(run) if name not in ("model", "noisy", "truth_noisy")]
    if not run.sites or not columns:
        return
    table = Table(header_style="bold")
    table.add_column(
        "site", overflow="fold", min_width=min(8, max(len(str(line["site"])) for line in run.sites))
    )
    table.add_column("result", overflow="fold")
    for name in columns:
        table.add_column(column_words(name), justify="right", overflow="fold")
    lines = (
        sorted(run.sites, key=lambda line: verdict(line) == "") if len(run.sites) > SITES_SHOWN else run.sites
    )
    for line in lines[:SITES_SHOWN]:
        word = verdict(line)
        cells: list[Any] = [Text(cell_words(name, line.get(name))) for name in columns]
        table.add_row(Text(visible(line["site"])), Text(word, style=STYLES.get(word, "")), *cells)
    out.print(table)
    if len(run.sites) > SITES_SHOWN:
        out.print(Text(f"and {len(run.sites) - SITES_SHOWN} more sites in sites.csv", style="dim"))


def _figures(out: Console, run: RunData) -> None:
    for name in run.curves:
        scores = run.summary.get(name) or {}
        best = f"best {percent(scores.get('best'))} in round {scores.get('best_round')}"
        last = f"mean of the last {LAST} {percent(scores.get('last'))}"
        out.print(Text(f"{METRICS[name]}: {percent(scores.get('final'))} at the end, {best}, {last}"))
    if run.rounds:
        up, down = size(run.summary.get("bytes_up")), size(run.summary.get("bytes_down"))
        sent = f"{up} from the sites, {down} to them"
        refused = f"{number(run.summary.get('refused'))} replies refused"
        out.print(
            Text(f"{len(run.rounds)} rounds in {duration(run.summary.get('seconds'))}; {sent}; {refused}")
        )


def _warnings(out: Console, run: RunData) -> None:
    if oracle(run):
        out.print(Text(f"told of the truth: {oracle(run)}; a real federation cannot know it", style="yellow"))
    for text in [*(run.summary.get("warnings") or ()), *(run.summary.get("notes") or ())]:
        out.print(Text(f"note: {text}", style="yellow"))


def _where(out: Console, report: Path | None) -> None:
    if report is not None:
        out.print(Text(f"report: {report}"), soft_wrap=True)
