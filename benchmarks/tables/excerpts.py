"""What the five methods' pages say of results: an excerpt of the kept tables, and of nothing else."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from benchmarks.files import read_tree
from benchmarks.indicators.__main__ import FILE as INDICATORS
from benchmarks.indicators.__main__ import KEY, ROWS
from benchmarks.section import Section
from benchmarks.tables.page import claim_line, figure_table, shown_results

from fedsift.benchmark.figures import CONFIDENCE
from fedsift.benchmark.summary import Results
from fedsift.benchmark.text import pipes, title

COMMAND = "python -m benchmarks.tables"
PAPERS = {
    "fedcorr": "FedCorr",
    "feddpcont": "FedDPCont",
    "fedmlp": "FedMLP",
    "fednoro": "FedNoRo",
    "rhfl": "RHFL",
}
"""By the name of the page in docs/methods: the paper, as tables name it."""
INDICATED = "fednoro/isic-0.4-0.5-0.7-features"
WEIGHED = "rhfl-confidence"
INTRO = """From the results that are kept, mean ± standard deviation over seeds, in round brackets what the paper
prints. Every figure, interval and reason is in [the results](../results/papers.md)."""


def section_of(name: str) -> Section:
    return Section(f"methods/{name}.md", COMMAND, "results")


def bodies() -> dict[str, str]:
    """The excerpt of every page, by the page's name."""
    found = list(shown_results())
    bodies = {}
    for name, paper in PAPERS.items():
        own = [results for results in found if results.table.paper == paper]
        blocks = [INTRO, *(block for results in own for block in excerpt(results))]
        if name == "fednoro":
            blocks += indicators()
        bodies[name] = "\n\n".join(blocks)
    return bodies


def excerpt(results: Results) -> Iterator[str]:
    """A table's first figure, and what it says of each statement, by the difference that speaks most against it."""
    table = results.table
    there = f"{results.cells_there} of {results.cells_wanted} runs"
    yield f"**{title(results).removeprefix(table.paper).strip()}** (`{table.name}`, {there}). {table.what}."
    yield figure_table(results, table.figures[0])
    if table.name == WEIGHED and results.records:
        yield from weights(results)
    stated = [claim_line(verdict) for verdict in results.verdicts if not verdict.claim.explains]
    if stated:
        yield "\n".join(f"- {line}" for line in stated)


def weights(results: Results) -> Iterator[str]:
    """The weights that teachers had at the end: those of noisy sites beside those of clean ones."""
    yield """Each site's share of the weights in the last round, mean over sites and seeds, and in brackets the largest
share that a site had:"""
    found: dict[tuple[str, str, bool], list[float]] = {}
    for record in results.records:
        for row, column, _ in results.places[record.key]:
            for kind in ("noisy", "clean"):
                shares = record.figures.get(f"{CONFIDENCE}.{kind}", [])
                found.setdefault((row, column, kind == "noisy"), []).extend(shares)
    kinds = [(c.label, noisy) for c in results.table.columns for noisy in (True, False)]
    rows = [row.label for row in results.table.rows if any(found[row.label, *kind] for kind in kinds)]
    head = ["", *(f"{column}: {'noisy' if noisy else 'clean'} sites" for column, noisy in kinds)]
    yield pipes(head, [[row, *(_share(found[row, *kind]) for kind in kinds)] for row in rows])


def _share(values: Sequence[float]) -> str:
    return f"{statistics.fmean(values):.2f} ({max(values):.2f})"


def indicators() -> Iterator[str]:
    """Table 3 with many fits of the mixture to each run."""
    runs = read_tree(INDICATORS, KEY)[INDICATED]
    kinds = [row.label for row in ROWS]
    fits = min(run[kind]["fits"] for run in runs.values() for kind in kinds)
    yield f"""With {fits} fits of the mixture to each run, as `python -m benchmarks.indicators` makes them
(`{INDICATED}`, seeds {", ".join(map(str, runs))}; MR is the share of fits that find exactly the noisy
sites, AUROC needs no mixture):"""
    lines = []
    for kind in kinds:
        *shares, area = (
            statistics.fmean(run[kind][key] for run in runs.values())
            for key in ("recall", "precision", "matching_ratio", "auroc")
        )
        lines.append([kind, *(f"{100 * share:.1f}" for share in shares), f"{area:.3f}"])
    yield pipes(["indicator", "recall", "precision", "MR", "AUROC"], lines)


def write() -> None:
    for name, body in bodies().items():
        section_of(name).write(body)
