"""The terminal summary of a run: headline, sites, figures, and the report's path."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedsift.core.numbers import duration, number, percent, size
from fedsift.core.text import visible
from fedsift.report.console import PlainConsole
from fedsift.report.groups import cautions, groups_of, sample_words
from fedsift.report.tables import cell_words, column_words, site_columns
from fedsift.report.words import (
    INTERVAL_NOTE,
    METRICS,
    comparison_line,
    comparison_table,
    headline,
    interval_words,
    oracle,
    verdict,
)
from fedsift.runs.reading import LAST, RunData, read_run

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


def print_comparison(runs: Sequence[Path], report: Path | None = None, console: Console | None = None) -> None:
    """The findings of several runs on one federation; the last run is the subject, as in the report."""
    out, data = console or PlainConsole(), [read_run(Path(run)) for run in runs]
    subject = data[-1]
    _headline(out, subject)
    line = comparison_line(data)
    if line:
        out.print(Text(line))
    groups = groups_of(data)
    for text in cautions(groups):
        out.print(Text(text, style="yellow"))
    _sites(out, subject)
    heads, rows = comparison_table(data)
    in_parts(out, heads, [[Text(visible(cell)) for cell in row] for row in rows])
    words = sample_words(groups)
    if words:
        out.print(Text(words.replace(", and shaded in the curves,", ","), style="dim"))
    _warnings(out, subject)
    _where(out, report)


def in_parts(out: Console, heads: Sequence[str], rows: Sequence[Sequence[Text]], fixed: int = 1) -> None:
    """A table whose columns are never cut: what does not fit beside the first `fixed` ones stands in a table below."""
    widths = [
        max((len(head), *(cell.cell_len for cell in (row[i] for row in rows))), default=0) + 3
        for i, head in enumerate(heads)
    ]
    room = out.width - sum(widths[:fixed]) - 1
    parts: list[list[int]] = [[]]
    for i in range(fixed, len(heads)):
        if parts[-1] and sum(widths[k] for k in parts[-1]) + widths[i] > room:
            parts.append([])
        parts[-1].append(i)
    for part in parts:
        table = Table(header_style="bold")
        for i in [*range(fixed), *part]:
            table.add_column(Text(visible(heads[i])), justify="left" if i < fixed else "right", overflow="fold")
        for row in rows:
            table.add_row(*(row[i] for i in [*range(fixed), *part]))
        out.print(table)


def _headline(out: Console, run: RunData) -> None:
    out.print(Text(f"{headline(run)}.", style="bold"))


def _sites(out: Console, run: RunData) -> None:
    """The sites, those with a result first; long lists are cut, since sites.csv has them all."""
    columns = [name for name in site_columns(run) if name not in ("model", "noisy", "truth_noisy")]
    if not run.sites or not columns:
        return
    lines = sorted(run.sites, key=lambda line: verdict(line) == "") if len(run.sites) > SITES_SHOWN else run.sites
    rows = []
    for line in lines[:SITES_SHOWN]:
        word = verdict(line)
        cells = [Text(visible(cell_words(name, line.get(name)))) for name in columns]
        rows.append([Text(visible(line["site"])), Text(word, style=STYLES.get(word, "")), *cells])
    in_parts(out, ["site", "result", *(column_words(name) for name in columns)], rows, fixed=2)
    if len(run.sites) > SITES_SHOWN:
        out.print(Text(f"and {len(run.sites) - SITES_SHOWN} more sites in sites.csv", style="dim"))


def _figures(out: Console, run: RunData) -> None:
    for name in run.curves:
        scores = run.summary.get(name) or {}
        best = f"best {percent(scores.get('best'))} in round {scores.get('best_round')}"
        last = f"mean of the last {LAST} {percent(scores.get('last'))}"
        out.print(Text(f"{METRICS[name]}: {percent(scores.get('final'))} at the end, {best}, {last}"))
    for name in run.intervals:
        out.print(
            Text(f"{METRICS[name]}: {interval_words(run.summary['intervals'][name])} at the end, {INTERVAL_NOTE}")
        )
    if run.rounds:
        up, down = size(run.summary.get("bytes_up")), size(run.summary.get("bytes_down"))
        sent = f"{up} from the sites, {down} to them"
        refused = f"{number(run.summary.get('refused'))} replies refused"
        out.print(Text(f"{len(run.rounds)} rounds in {duration(run.summary.get('seconds'))}; {sent}; {refused}"))


def _warnings(out: Console, run: RunData) -> None:
    if oracle(run):
        out.print(Text(f"given of the truth: {oracle(run)}; a real federation cannot know it", style="yellow"))
    for text in [*(run.summary.get("warnings") or ()), *(run.summary.get("notes") or ())]:
        out.print(Text(f"note: {text}", style="yellow"))


def _where(out: Console, report: Path | None) -> None:
    if report is not None:
        out.print(Text(f"report: {report}"), soft_wrap=True)
