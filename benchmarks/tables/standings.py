"""The leaderboard's page, and the advice that the package carries, both from its results alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from benchmarks.section import Page
from benchmarks.section import paragraph as filled
from benchmarks.tables.page import figure_table, kept_result, open_result, section

from fedsift.benchmark import advice
from fedsift.benchmark.advice import KINDS, LEADERBOARD, AdvisedRow, advice_text, rankings_of
from fedsift.benchmark.summary import Results
from fedsift.benchmark.table import Table
from fedsift.benchmark.text import figure_words, note_lines, pipes, versions
from fedsift.core.numbers import plural, size

PAGE = Page("results/leaderboard.md", "python -m benchmarks.tables")
ADVICE = Path(advice.__file__).with_name(advice.FILE)
INTRO = """Which method to take, from runs of all methods in the same ten situations. Every figure and every
recommendation on this page is written by `python -m benchmarks.tables` from `benchmarks/tables/leaderboard.csv`, and a
test holds the page against it. `fedsift doctor` gives the same advice. It is one dataset with one kind of model: a
start, not a verdict on your data."""
READING = """How sure that is. The method named is the first by mean rank of all methods on these very runs, so its
points above {} flatter it, and intervals are not corrected for the choice. The last column names the methods
from which it does not differ significantly: the 95 % interval of the difference, paired by seed, contains 0."""
FURTHER = ("leaderboard-lenet5", "cifar10n")
"""Tables that ask the same of another network, or of more kinds of labels; shown even before a run is kept."""
NAMED = 4
"""Methods that are named before the rest is counted."""

LEGEND = """Mean rank and worst column by {}, over all columns; rows without results in
every column have none. Visits: how often a site was asked for something, a run. Time is processor time of one
thread, the median run. Labels harmed: right labels that the method made wrong, a run; 0 for methods that judge labels
and leave them as they are, none for those that judge none."""


def advice_of(results: Results | None) -> str:
    """`advice.csv`."""
    return advice_text([] if results is None else rankings_of(results))


def page() -> str:
    results = kept_result(LEADERBOARD)
    blocks = ["# The leaderboard", filled(INTRO)]
    if results is None:
        return "\n\n".join([*blocks, "No result is kept yet."]) + "\n"
    table = results.table
    blocks += ["## What we recommend", recommended(results), filled(READING.format(table.compared_with))]
    blocks += ["## All methods", filled(f"{table.what}. {' '.join(note_lines(results))}"), overall(results)]
    blocks.append(filled(LEGEND.format(figure_words(results, table.figures[0]))))
    blocks.append(filled(settings(table)))
    blocks.append(filled(situations(table)))
    for figure in table.figures[:2]:
        blocks.append(figure_table(results, figure))
    for name in FURTHER:
        blocks += section(open_result(name))
    return "\n\n".join(blocks) + "\n"


def settings(table: Table) -> str:
    """What the table's file sets, over all runs and row by row: the rest are defaults, of the methods or the study."""
    everywhere = table.everywhere.get("train", {})
    methods = {row.label: dict(row.settings.get("method", {})) for row in table.rows}
    usual = {}
    for key in ("rounds", "fraction"):
        values = [method[key] for method in methods.values() if key in method]
        usual[key] = max(values, key=values.count)
    own = {
        row: {k: v for k, v in method.items() if k not in ("name", *KINDS) and usual.get(k) != v}
        for row, method in methods.items()
    }
    rows = "; ".join(f"{row}: {_listed(changed)}" for row, changed in own.items() if changed)
    return f"""Set by the table for every run, whatever a method's paper trains with: {_listed(everywhere)};
    {_listed(usual)} where a method has them. Set for single rows: {rows}. All else is the method's default."""


def situations(table: Table) -> str:
    """What each column stands for, as the table's file has it."""
    told = []
    for column in table.columns:
        parts = [dict(column.settings[key]) for key in ("partition", "noise")]
        words = (" ".join(filter(None, (part.pop("name"), _bracketed(part)))) for part in parts)
        told.append(f"{column.label}: {', '.join(words)}")
    return f"""The columns, by `[partition]` and `[noise]`: {"; ".join(told)}. `cifar-n` are the labels that people
    gave, CIFAR-10N."""


def _bracketed(values: Mapping[str, object]) -> str:
    return f"({_listed(values)})" if values else ""


def _listed(values: Mapping[str, object]) -> str:
    """`lr 0.03, augment (flip false, crop 0)`."""
    return ", ".join(
        f"{key} ({_listed(value)})" if isinstance(value, Mapping) else f"{key} {_word(value)}"
        for key, value in values.items()
    )


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def recommended(results: Results) -> str:
    """One line a situation: the first by mean rank, what it gains over the reference row, who comes next."""
    lines = []
    for ranking in rankings_of(results):
        one = ranking.advice()
        if not one.best:
            lines.append([one.situation, "open: runs are missing", "", "", "", ""])
            continue
        first, *others = one.best
        lines.append(
            [
                one.situation,
                f"`{first.named}`",
                f"{first.mean_rank:g} of {one.methods}",
                gain(first),
                ", ".join(f"`{other.named}` ({other.above_reference:+.1f})" for other in others),
                _few([f"`{row.named}`" for row in ranking.level()]),
            ]
        )
    head = [
        "where",
        "take",
        "mean rank",
        f"points above {results.table.compared_with} (95 % interval)",
        "next",
        "no significant difference from",
    ]
    return pipes(head, lines)


def _few(names: list[str]) -> str:
    rest = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + rest if names else "nobody"


def gain(row: AdvisedRow) -> str:
    """Points above the reference row over the columns, paired by seed."""
    if row.low is None or row.high is None:
        return f"{row.above_reference:+.1f}, one seed"
    return f"{row.above_reference:+.1f} [{row.low:+.1f}, {row.high:+.1f}]"


def overall(results: Results) -> str:
    """Mean rank, worst column, cost and harm of every row, best first."""
    standing = {s.row: s for s in results.standings}
    cost = {c.row: c for c in results.costs}
    rows = sorted(
        (row.label for row in results.table.rows),
        key=lambda row: standing[row].mean_rank if row in standing else len(standing) + 1.0,
    )
    lines = []
    for row in rows:
        place, spent = standing.get(row), cost.get(row)
        harmed = [
            value
            for e in results.entries
            if (e.row, e.figure) == (row, "corrections.harmed")
            for value in e.values.values()
        ]
        lines.append(
            [
                row,
                "–" if place is None else f"{place.mean_rank:.1f}",
                "–" if place is None else f"{place.worst:.1f}",
                "–" if place is None else str(place.first),
                "–" if spent is None else f"{spent.participations:.0f}",
                "–" if spent is None else f"{spent.seconds:.1f} s",
                "–" if spent is None else size(spent.bytes),
                f"{sum(harmed) / len(harmed):.0f}" if harmed else "–",
            ]
        )
    head = ["", "mean rank", "worst column", "best in", "visits", "time a run", "bytes sent", "labels harmed"]
    columns = plural(len(results.table.columns), "column")
    what = f"{len(standing)} methods in {columns}, {plural(len(results.table.seeds), 'seed')}."
    return f"{filled(' '.join([what, *versions(results)]))}\n\n{pipes(head, lines)}"
