"""Writes the files of a table: Markdown, LaTeX, CSV and an HTML page. `table.md` and `.tex` are the same bytes for the
same runs; `table.csv`, with a row a run, and the page also contain how long the runs took."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fedsift.benchmark.claims import ClaimOutcome
from fedsift.benchmark.figures import WORDS
from fedsift.benchmark.rows import rows_text
from fedsift.benchmark.store import COLUMNS, PLACE, TABLE, table_rows
from fedsift.benchmark.summary import MeanCurve, Results, TableFigure
from fedsift.benchmark.text import (
    NOTHING,
    difference,
    difference_words,
    figure_words,
    latex,
    markdown,
    note_lines,
    ours,
    paper_s,
    title,
    versions,
)
from fedsift.core.files import write_atomically
from fedsift.core.numbers import duration, size
from fedsift.core.version import __version__
from fedsift.drawing import page_style
from fedsift.drawing.svg import (
    HALF,
    SERIES,
    Markup,
    Scale,
    document,
    empty,
    figure,
    join,
    label,
    line,
    picture,
    points,
    tag,
    ticks,
    whole_ticks,
)


def write_table(results: Results, folder: Path) -> None:
    """All files of a table into its folder."""
    for name, text in (
        (TABLE, csv_of(results)),
        ("table.md", markdown(results)),
        ("table.tex", latex(results)),
        ("table.html", page(results)),
    ):
        write_atomically(folder / name, text.encode())


def csv_of(results: Results) -> str:
    """`table.csv`: a row a run, sorted by row, column and seed."""
    return rows_text(table_rows(results.table, _placed(results)), PLACE, COLUMNS)


def _placed(results: Results) -> Iterator[Any]:
    for record in results.records:
        for place in results.places[record.key]:
            yield *place, record


def data(results: Results) -> dict[str, Any]:
    """What a table says, as plain JSON: all but its single runs, and the time that they took."""
    table = results.table
    return {
        "table": table.name,
        "what": table.what,
        "paper": table.paper,
        "source": table.source,
        "twin": table.twin,
        "note": table.note,
        "seeds": list(table.seeds),
        "settings": list(table.settings),
        "rows": [row.label for row in table.rows],
        "columns": [column.label for column in table.columns],
        "versions": results.versions,
        "runs": {"there": results.cells_there, "wanted": results.cells_wanted},
        "entries": [asdict(entry) for entry in results.entries],
        "reference": table.compared_with,
        "comparisons": [asdict(found) for found in results.comparisons],
        "claims": [_claim(verdict) for verdict in results.verdicts],
        "standings": [asdict(found) for found in results.standings],
        "costs": [{key: value for key, value in asdict(cost).items() if key != "seconds"} for cost in results.costs],
        "notes": list(results.notes),
    }


def _claim(verdict: Any) -> dict[str, Any]:
    found: dict[str, Any] = asdict(verdict)
    return {"text": verdict.claim.text, "figure": verdict.figure, "verdict": verdict.verdict,
            "differences": found["differences"]}  # fmt: skip


# A table as one HTML file
# ------------------------------------------------------------------------------


HEIGHT = 270.0
LEFT, RIGHT, TOP, BOTTOM = 48.0, 12.0, 10.0, 36.0
OWN_STYLE = """
td .paper{color:var(--soft);font-size:.84em;white-space:nowrap}
td.best{font-weight:650}
.scroll+.scroll{margin-top:1rem}
thead th:not(:first-child){text-align:right}
tbody tr:last-child th{border-bottom:0}
.verdict{font-weight:650}.holds{color:var(--good)}.does-not-hold{color:var(--bad)}
.key{display:flex;flex-wrap:wrap;gap:.1rem 1rem;font-size:.86rem;margin:.2rem 0 .6rem}
"""


def page(results: Results) -> str:
    """The whole document."""
    table = results.table
    sections = [
        ("results", "Results", join(_figure_table(results, name) for name in table.figures)),
        ("standings", "Over all columns", _standings(results) if results.standings else None),
        ("claims", "What is stated", _claims(results) if results.verdicts else None),
        ("curves", "Curves", _curves(results) if results.curves else None),
        (
            "compared",
            f"Compared with {table.compared_with}",
            _compared(results) if results.comparisons else None,
        ),
        ("cost", "Cost of a run", _cost(results) if results.costs else None),
    ]
    shown = [(name, head, body) for name, head, body in sections if body]
    where = f"{table.name} · {results.cells_there} of {results.cells_wanted} runs"
    body = join(
        [
            tag(
                "header",
                tag("p", where, class_="eyebrow"),
                tag("h1", title(results)),
                tag("p", table.what, class_="lead") if table.what else None,
                *(tag("p", text, class_="note") for text in [*note_lines(results), *versions(results)]),
            ),
            tag("nav", *(tag("a", head, href=f"#{name}") for name, head, _ in shown), aria_label="Sections"),
            tag("main", *(tag("section", tag("h2", head), part, id=name) for name, head, part in shown)),
            tag(
                "footer",
                f"fedsift {__version__} · {', '.join(results.versions)} · this file needs no network",
            ),
        ]
    )
    return document(title(results), body, f"{page_style()}{OWN_STYLE}")


def _grid(head: Sequence[object], rows: Sequence[Sequence[Markup]]) -> Markup:
    top = tag("tr", *(tag("th", cell, scope="col") for cell in head))
    lines = [tag("tr", tag("th", cells[0], scope="row"), *cells[1:]) for cells in rows]
    return tag("div", tag("table", tag("thead", top), tag("tbody", *lines)), class_="scroll")


def _figure_table(results: Results, name: str) -> Markup:
    table = results.table
    found = {(e.row, e.column): e for e in results.entries if e.figure == name}
    rows = [
        [Markup(tag("span", row.label)), *(_entry(found.get((row.label, c.label))) for c in table.columns)]
        for row in table.rows
    ]
    return _grid([figure_words(results, name), *(column.label or "ours" for column in table.columns)], rows)


def _entry(entry: TableFigure | None) -> Markup:
    if entry is None:
        return tag("td", NOTHING, class_="n")
    paper = tag("span", f" ({paper_s(entry)})", class_="paper") if entry.printed is not None else None
    return tag("td", ours(entry), paper, class_="n best" if entry.best else "n")


def _standings(results: Results) -> Markup:
    rows = [
        [
            tag("span", found.row),
            tag("td", f"{found.mean_rank:.1f}", class_="n"),
            tag("td", f"{found.worst:.2f}", class_="n"),
            tag("td", str(found.first), class_="n"),
        ]
        for found in results.standings
    ]
    return _grid(["row", "mean rank", "worst column", "best in"], rows)


def _claims(results: Results) -> Markup:
    reasons: dict[str, list[Markup]] = {}
    for found in results.verdicts:
        if found.claim.explains:
            reasons.setdefault(found.claim.explains, []).append(_claim_row(found))
    items = [_claim_row(v, reasons.get(v.claim.text, ())) for v in results.verdicts if not v.claim.explains]
    note = "Differences seed by seed with the 95 % interval of their mean, in the direction that is stated."
    return join([tag("p", note, class_="note"), tag("ul", *items)])


def _claim_row(found: ClaimOutcome, reasons: Sequence[Markup] = ()) -> Markup:
    """A claim with its verdict and differences, and what explains it below it."""
    parts = [tag("li", words_) for words_ in difference_words(found)]
    verdict = tag("span", found.verdict, class_=f"verdict {found.verdict.replace(' ', '-')}")
    why = "Why: " if found.claim.explains else ""
    return tag("li", f"{why}{found.claim.text}: ", verdict, tag("ul", *parts, *reasons))


def _compared(results: Results) -> Markup:
    table = results.table
    blocks = []
    for name in table.figures:
        found = {(c.row, c.column): c for c in results.comparisons if c.figure == name}
        rows = [
            [
                tag("span", row.label),
                *(
                    tag(
                        "td",
                        difference(found[row.label, c.label]) if (row.label, c.label) in found else "",
                        class_="n",
                    )
                    for c in table.columns
                ),
            ]
            for row in table.rows
            if any((row.label, c.label) in found for c in table.columns)
        ]
        blocks.append(_grid([figure_words(results, name), *(c.label or "ours" for c in table.columns)], rows))
    note = "Mean difference seed by seed, its 95 % interval, and the p of the paired t test."
    return join([tag("p", note, class_="note"), *blocks])


def _cost(results: Results) -> Markup:
    rows = [
        [
            tag("span", cost.row),
            tag("td", f"{cost.rounds:.0f}", class_="n"),
            tag("td", f"{cost.participations:.0f}", class_="n"),
            tag("td", size(cost.bytes), class_="n"),
            tag("td", duration(cost.seconds), class_="n"),
        ]
        for cost in results.costs
    ]
    return _grid(["row", "rounds", "visits of sites", "bytes sent", "time, one thread"], rows)


def _curves(results: Results) -> Markup:
    """One picture a column, a line a row, by how often a site had taken part."""
    rows = drawn_rows(results)
    few = f" of the {len(rows)} best rows" if len(rows) < len(results.table.rows) else ""
    keys = [tag("span", _swatch(number), label_, class_="entry") for number, label_ in enumerate(rows)]
    pictures = []
    for column in results.table.columns:
        drawn = [c for c in results.curves if c.column == column.label and c.row in rows]
        if drawn:
            name = WORDS.get(drawn[0].score, drawn[0].score)
            note = f"{name} in %{few}, mean of the seeds, by visits of sites"
            pictures.append(figure(_picture(drawn, rows), column.label or results.table.name, note))
    return join([tag("p", *keys, class_="key"), tag("div", *pictures, class_="columns")])


def drawn_rows(results: Results) -> list[str]:
    """All rows, or as many as there are kinds of lines: the one that is compared with, and those that end best."""
    rows = [row.label for row in results.table.rows]
    if len(rows) <= SERIES:
        return rows
    ends: dict[str, list[float]] = {}
    for curve in results.curves:
        ends.setdefault(curve.row, []).append(curve.values[-1])
    reference = results.table.compared_with
    best = sorted((r for r in ends if r != reference), key=lambda r: -sum(ends[r]) / len(ends[r]))
    kept = {reference, *best[: SERIES - 1]}
    return [row for row in rows if row in kept]


def _swatch(number: int) -> Markup:
    mark = empty("line", x1=0, y1=5, x2=22, y2=5, class_=f"curve s{number % SERIES}")
    return tag("svg", mark, width=22, height=10, class_="swatch", aria_hidden="true")


def _picture(curves: Sequence[MeanCurve], rows: Sequence[str]) -> Markup:
    visits = [x for curve in curves for x in curve.visits]
    values = [y for curve in curves for y in curve.values]
    marks = ticks(min(values), max(max(values), min(values) + 1.0))
    across = Scale(0.0, max(visits), LEFT, HALF - RIGHT)
    up = Scale(marks[0], marks[-1], HEIGHT - BOTTOM, TOP)
    parts = []
    for mark in marks:
        parts += [
            line(LEFT, up(mark), HALF - RIGHT, up(mark), "grid"),
            label(LEFT - 6, up(mark) + 4, f"{mark:g}", "end"),
        ]
    bottom = HEIGHT - BOTTOM
    parts += [label(across(x), bottom + 15, x, "middle") for x in whole_ticks(0, int(max(visits)), 6)]
    parts += [
        line(LEFT, bottom, HALF - RIGHT, bottom, "axis"),
        label((LEFT + HALF - RIGHT) / 2, HEIGHT - 4, "visits of sites", "middle"),
    ]
    for curve in curves:
        path = points([across(x) for x in curve.visits], [up(y) for y in curve.values])
        kind = f"curve s{rows.index(curve.row) % SERIES}"
        parts.append(empty("polyline", points=path, class_=kind))
    return picture(HALF, HEIGHT, f"curves in {curves[0].column}", join(parts))
