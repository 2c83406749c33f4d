"""The page of results, from the tables' files alone: each paper's table in small, ours beside theirs, what holds."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.section import Page
from benchmarks.section import paragraph as filled
from benchmarks.tables import speed
from benchmarks.tables.forecast import CORES, lines

from fedsift.benchmark.claims import ClaimOutcome
from fedsift.benchmark.rows import read_rows
from fedsift.benchmark.store import placed_in
from fedsift.benchmark.summary import Results, results_of
from fedsift.benchmark.table import find_table, table_names
from fedsift.benchmark.text import (
    bold,
    cells_of_row,
    figure_words,
    note_lines,
    pair_words,
    pipes,
    stated,
    title,
    versions,
)
from fedsift.core.numbers import plural

HERE = Path(__file__).parent
PAGE = Page("results/papers.md", "python -m benchmarks.tables")
SIDES = HERE.parent / "speed" / "results" / "sides.csv"
REQUIRED = (
    "fednoro-2-small", "fednoro-3-small", "fednoro-4-small", "rhfl-3-small", "rhfl-5-small", "fedcorr-2-small",
    "fedcorr-6-small", "fedcorr-10-lenet5", "fedmlp-2-small", "fedmlp-3-small", "feddpcont-2-small",
    "feddpcont-3-small", "feddpcont-4-small", "feddpcont-digits", "fedcorr-few-sites",
)  # fmt: skip
"""Tables that the page shows even before a run of theirs is kept: what is missing must be seen to be missing."""
INTRO = """Every figure and every verdict on this page is written by `python -m benchmarks.tables` from the result
files in `benchmarks/tables`, and a test holds the page against them. A statement of a paper *holds* where each
difference has the stated sign and its 95 % interval (paired over seeds) leaves 0 out; it *holds in the mean* where the
sign is right everywhere and an interval crosses 0 by no more than its mean is above it; it is *not decided* where an
interval reaches farther below 0 than its mean is above, *does not hold* where a mean difference is 0 or has the other
sign, however wide its interval, and *open* where runs are missing. Small tables are not the papers' experiments: they
ask whether the effect shows where two cores can look."""
READING = """How to read it. A seed draws how the data are divided and which labels are wrong, alike for every row of
its table. A best round is chosen by the test set, as in the papers that print one, and flatters whatever swings; the
mean of the last rounds does not. Intervals are Student's, of as many differences as there are seeds, and are corrected
neither for the number of rows nor for that of statements: one of twenty is expected to miss. The small settings were
chosen so that the papers' effects can show, with the same seeds in view: what holds here was not found blindly. All
runs were computed with torch {}."""

TWINS = f"""Minutes for three seeds on {CORES} cores with nothing else to do, by processor time. Measured: each kind of
run of the twin was timed. Forecast: its rounds times what a round took in runs with the same network and data."""


def kept_result(name: str) -> Results | None:
    """The results of a table that are kept here; labels are those of the table's file."""
    file = HERE / f"{name}.csv"
    if not file.is_file():
        return None
    kept = list(placed_in(file))
    table = find_table(name).changed(seeds=sorted({seed for _, _, seed, _ in kept}))
    places = {(row.label, column.label) for row in table.rows for column in table.columns_of(row)}
    return results_of(table, [item for item in kept if (item[0], item[1]) in places], table.runs)


def shown_results() -> Iterator[Results]:
    """The results of every table of a paper that is kept here or required, as far as they are there; the leaderboard
    and what belongs to it have a page of their own."""
    for name in table_names():
        results = open_result(name) if name in REQUIRED else kept_result(name)
        if results is not None and results.table.paper:
            yield results


def open_result(name: str) -> Results:
    """The results of a table as far as they are there."""
    table = find_table(name)
    return kept_result(name) or results_of(table, [], table.runs)


def page() -> str:
    kept = list(shown_results())
    with_torch = sorted({record.torch for results in kept for record in results.records})
    blocks = [
        "# The papers' tables, measured",
        filled(INTRO),
        filled(READING.format(", ".join(with_torch) or "-")),
    ]
    claims = [(results, verdict) for results in kept for verdict in results.verdicts if not verdict.claim.explains]
    if claims:
        blocks += ["## What holds", holds(claims)]
    for results in kept:
        blocks += section(results)
    blocks += [
        "## How long the twins take",
        filled(TWINS),
        pipes(["twin", "runs", "minutes", "how known"], lines(kept)),
        *at_once(),
    ]
    return "\n\n".join(blocks) + "\n"


def at_once() -> list[str]:
    """Six runs through the bench beside six in turn, and why the bench cannot gain more."""
    if not speed.FILE.is_file():
        return []
    rows = read_rows(speed.FILE)
    middle = {side: statistics.median(speed.seconds(rows, side)) for side in speed.SIDES}
    sides = {row["side"]: row for row in read_rows(SIDES) if row["workload"] == "w1"}
    alone, workers = (sides[name]["seconds.median"] for name in ("fedsift, 1 process", "fedsift, 2 processes"))
    same = "The outcomes are the same" if all(row["same_outcomes"] for row in rows) else "The outcomes are not the same"
    text = f"""Six runs of a LeNet-5 study ({rows[0]["scenario"]}, {rows[0]["rounds"]} rounds) through `fedsift bench`
    took {middle["bench"]:.1f} s, one after the other with two workers each {middle["in turn"]:.1f} s:
    {speed.ratio(rows):.2f} times as fast, alternating on a machine with nothing else to do. {same}. More is not to be
    had where sites train stacked: two workers are {alone / workers:.2f} times as fast as one process (W1 of the speed
    benchmark), which leaves two processes at most {2 * workers / alone:.2f} times their speed in training, and what
    rounds spend outside of it."""
    return ["## Many runs at once", filled(text)]


def holds(claims: list[tuple[Results, ClaimOutcome]]) -> str:
    """One line a statement, with the difference that speaks most against it."""
    lines = []
    for results, verdict in claims:
        lines.append([title(results), verdict.claim.text, verdict.verdict, weakest(verdict)])
    return pipes(["table", "statement", "verdict", "weakest difference, in points"], lines)


def section(results: Results) -> list[str]:
    table = results.table
    blocks = [f"## {title(results)}: {table.name}", filled(f"{table.what}. {' '.join(note_lines(results))}")]
    filled_in = {e.figure for e in results.entries if e.runs or e.printed is not None}
    blocks += [figure_table(results, figure) for figure in table.figures if figure in filled_in]
    if results.verdicts:
        blocks.append(items(results.verdicts))
    rest = "." if results.cells_there == results.cells_wanted else ": open."
    there = f"{results.cells_there} of {plural(results.cells_wanted, 'run')}{rest}"
    asked = [seed for seed in find_table(table.name).seeds if seed not in table.seeds]
    missing = [f"Seeds that it asks for and that are open: {', '.join(map(str, asked))}."] if asked else []
    if asked or rest != ".":
        missing.append(f"`fedsift bench {table.name}` computes what is missing.")
    blocks.append(filled(" ".join([there, *versions(results), *missing])))
    return blocks


def figure_table(results: Results, figure: str) -> str:
    """One figure of all rows in all columns, ours beside the paper's."""
    head = [figure_words(results, figure), *(column.label or "ours" for column in results.table.columns)]
    rows = [[row.label, *cells_of_row(results, row.label, figure, bold)] for row in results.table.rows]
    return pipes(head, rows)


def weakest(verdict: ClaimOutcome) -> str:
    """The difference that speaks most against a statement."""
    return pair_words(verdict.against[0], verdict.figure) if verdict.differences else ""


def claim_line(verdict: ClaimOutcome) -> str:
    """A statement with its verdict on one line."""
    shown = weakest(verdict)
    return f"{verdict.claim.text}: **{verdict.verdict}**" + (f" (weakest: {shown})" if shown else "")


def items(verdicts: Sequence[ClaimOutcome]) -> str:
    """The claims, each with what explains it below it."""
    return "\n".join(item(verdict, "  - " if verdict.claim.explains else "- ") for verdict in verdicts)


def item(verdict: ClaimOutcome, mark: str) -> str:
    return f"{mark}{stated(verdict)}"
