"""Renders a table's results as Markdown and LaTeX."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fedsift.benchmark.claims import ClaimOutcome, Difference
from fedsift.benchmark.figures import digits, words
from fedsift.benchmark.summary import Comparison, Results, TableFigure
from fedsift.core.numbers import plural, size

NOTHING = "–"
MANY, FEW = 12, 4
"""More differences than the first number are shown by the second number of them."""
LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "–": "--",
}  # fmt: skip


def shown(entry: TableFigure, *, printed: bool = True) -> str:
    """`64.1 ± 0.3 (63.9)`: mean, deviation over the seeds, the paper's figure."""
    return f"{ours(entry)}{f' ({paper_s(entry)})' if printed and entry.printed is not None else ''}"


def ours(entry: TableFigure) -> str:
    if entry.mean is None:
        return "never" if entry.never else NOTHING
    places = digits(entry.figure)
    sd = "" if entry.sd is None else f" ± {entry.sd:.{places}f}"
    reached = f" [{len(entry.values)} of {entry.runs}]" if len(entry.values) < entry.runs else ""
    return f"{entry.mean:.{places}f}{sd}{reached}"


def paper_s(entry: TableFigure) -> str:
    if entry.printed is None:
        return ""
    places = digits(entry.figure)
    sd = "" if entry.printed_sd is None else f" ± {entry.printed_sd:.{places}f}"
    return f"{entry.printed:.{places}f}{sd}"


def title(results: Results) -> str:
    table = results.table
    where = " ".join(part for part in (table.paper, table.source) if part)
    return f"{where}{' in small' if table.twin and where else ''}" or table.name


def difference(found: Comparison) -> str:
    pair, places = found.found, digits(found.figure)
    if pair.n == 1:
        return f"{pair.mean:+.{places}f}"
    p = "" if pair.p is None else f", p {_p(pair.p)}"
    return f"{pair.mean:+.{places}f} [{pair.low:+.{places}f}, {pair.high:+.{places}f}]{p}"


def _p(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def stated(verdict: ClaimOutcome) -> str:
    """A claim with its verdict, and each difference with its interval."""
    parts = "; ".join(difference_words(verdict))
    why = "Why: " if verdict.claim.explains else ""
    return f"{why}{verdict.claim.text}: **{verdict.verdict}**" + (f" ({parts})" if parts else "")


def difference_words(verdict: ClaimOutcome) -> list[str]:
    """Each difference with its interval; of many, those that speak most against the claim."""
    if len(verdict.differences) <= MANY:
        return [pair_words(found, verdict.figure) for found in verdict.differences]
    left = len(verdict.differences) - FEW
    return [
        *(pair_words(found, verdict.figure) for found in verdict.against[:FEW]),
        f"{left} more differences speak less against it",
    ]


def pair_words(found: Difference, figure: str) -> str:
    where = f" in {found.column}" if found.column else ""
    pair = f"{found.better} to {found.worse}{where}"
    if found.found is None:
        return f"{pair}: runs are missing"
    places, f = digits(figure), found.found
    if f.n == 1:
        return f"{pair} {f.mean:+.{places}f}, one seed"
    return f"{pair} {f.mean:+.{places}f} [{f.low:+.{places}f}, {f.high:+.{places}f}]"


def note_lines(results: Results) -> list[str]:
    """How to read it, and what it lacks."""
    table, lines = results.table, []
    many = len(table.seeds) > 1
    seeds = f"Mean ± standard deviation over {len(table.seeds)} seeds" if many else "One seed"
    if many and results.cells_there < results.cells_wanted:
        seeds += ", or as many as are there"
    printed = any(entry.printed is not None for entry in results.entries)
    lines.append(f"{seeds}{'; in round brackets what the paper prints' if printed else ''}.")
    if table.note:
        lines.append(table.note)
    if table.settings:
        lines.append(f"Settings over all runs: {', '.join(table.settings)}.")
    if results.cells_there < results.cells_wanted:
        lines.append(f"{results.cells_there} of {results.cells_wanted} runs are there.")
    torches = sorted({record.torch for record in results.records})
    if len(torches) > 1:
        lines.append(f"Made with several versions of torch: {', '.join(torches)}.")
    return [*lines, *(f"{note[0].upper()}{note[1:]}." for note in results.notes)]


def versions(results: Results) -> list[str]:
    """Which version computed the runs, and the rows that have runs of another one; nothing where there is no run."""
    (main, _), *others = list(results.runs_by_version().items()) or [("", {})]
    if not main:
        return []
    parts = [f"{row} ({plural(runs, 'run')}) by {version}" for version, rows in others for row, runs in rows.items()]
    return [f"{'; '.join([f'Computed by version {main}', *parts])}."]


def figure_words(results: Results, figure: str) -> str:
    """The figure in words, with the number of rounds that were averaged in these runs."""
    return words(figure, results.averaged(figure))


def markdown(results: Results) -> str:
    """One table for each figure, the claims, the comparison with the reference row, the cost."""
    table = results.table
    blocks = [f"# {title(results)}", table.what, *note_lines(results), *versions(results)]
    for figure in table.figures:
        head = [figure_words(results, figure), *(column.label or "ours" for column in table.columns)]
        lines = [[row.label, *cells_of_row(results, row.label, figure, bold)] for row in table.rows]
        blocks.append(pipes(head, lines))
    if results.verdicts:
        blocks.append("\n".join(f"- {stated(verdict)}" for verdict in results.verdicts))
    if results.comparisons:
        blocks.append(_compared(results))
    if results.standings:
        blocks.append(standings(results))
    if results.costs:
        blocks.append(_costs(results))
    return "\n\n".join(block for block in blocks if block) + "\n"


def bold(entry: TableFigure) -> str:
    text = ours(entry)
    text = f"**{text}**" if entry.best else text
    return text + (f" ({paper_s(entry)})" if entry.printed is not None else "")


def cells_of_row(results: Results, row: str, figure: str, show: Callable[[TableFigure], str]) -> list[str]:
    by_column = {e.column: e for e in results.entries if (e.row, e.figure) == (row, figure)}
    columns = [column.label for column in results.table.columns]
    return [show(by_column[label]) if label in by_column else NOTHING for label in columns]


def pipes(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    def line(cells: Sequence[str]) -> str:
        safe = [cell.replace("|", "\\|") for cell in cells]
        return f"| {' | '.join(safe)} |"

    return "\n".join([line(head), f"|{'---|' * len(head)}", *(line(row) for row in rows)])


def _compared(results: Results) -> str:
    """Differences to the reference row with their interval and p."""
    table = results.table
    several = len(table.figures) > 1
    lines = []
    for figure in table.figures:
        for row in table.rows:
            found = {c.column: c for c in results.comparisons if (c.row, c.figure) == (row.label, figure)}
            if found:
                cells = [difference(found[c.label]) if c.label in found else "" for c in table.columns]
                lines.append([f"{row.label}{f', {figure}' if several else ''}", *cells])
    head = [f"difference to {table.compared_with}", *(column.label or "ours" for column in table.columns)]
    words_ = "Seed by seed, with the 95 % interval of the mean difference and the p of the paired t test."
    return f"{words_}\n\n{pipes(head, lines)}"


def standings(results: Results) -> str:
    """Mean rank and worst column of every row."""
    places = digits(results.table.figures[0])
    head = ["over all columns", "mean rank", "worst column", "best in"]
    lines = [[s.row, f"{s.mean_rank:.1f}", f"{s.worst:.{places}f}", str(s.first)] for s in results.standings]
    return pipes(head, lines)


def _costs(results: Results) -> str:
    head = ["cost of a run", "rounds", "visits of sites", "bytes sent"]
    lines = [[c.row, f"{c.rounds:.0f}", f"{c.participations:.0f}", size(c.bytes)] for c in results.costs]
    return pipes(head, lines)


def latex(results: Results) -> str:
    """A `tabular` for each figure, booktabs rules, best in bold."""
    table = results.table
    parts = [f"% {title(results)}: {table.what}"]
    for figure in table.figures:
        head = [figure_words(results, figure), *(column.label or "ours" for column in table.columns)]
        lines = [r"\begin{tabular}{l" + "c" * len(table.columns) + "}", r"\toprule"]
        lines.append(" & ".join(escaped(cell) for cell in head) + r" \\")
        lines.append(r"\midrule")
        for row in table.rows:
            cells = [escaped(row.label), *cells_of_row(results, row.label, figure, _latex_cell)]
            lines.append(" & ".join(cells) + r" \\")
        parts.append("\n".join([*lines, r"\bottomrule", r"\end{tabular}"]))
    return "\n\n".join(parts) + "\n"


def _latex_cell(entry: TableFigure) -> str:
    text = escaped(ours(entry))
    text = rf"\textbf{{{text}}}" if entry.best else text
    return text + (f" ({escaped(paper_s(entry))})" if entry.printed is not None else "")


def escaped(text: str) -> str:
    return "".join(LATEX.get(char, char) for char in text)
