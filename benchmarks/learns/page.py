"""`python -m benchmarks.learns.page`: docs/learns.md from results/; every figure on it is read from there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.files import read_list
from benchmarks.learns import nih, own, reasons, runs
from benchmarks.learns.chance import lower_end
from benchmarks.learns.reasons import NEAR
from benchmarks.learns.rows import KINDS
from benchmarks.section import Page

HERE = Path(__file__).parent
PAGE = Page("learns.md", "python -m benchmarks.learns.page")
RESULTS = HERE / "results.csv"
TESTS: dict[str, dict[str, Any]] = json.loads((HERE / "tests.json").read_text("utf-8"))
"""Of each kind of data the number of test samples, and how many of them each class has."""
TOP = """Made by `python -m benchmarks.learns.page` from `benchmarks/learns/results.csv`. Every method runs twice on a
small federation of real data, without and with wrong labels, for a few rounds: this is a check that it learns, not a
ranking, for which the budget is far too small. Figures are the mean of the last three rounds with one seed. "Learns":
with wrong labels the lower end of the figure's 95 % interval over the test samples is above what guessing gives (Wilson
for an accuracy; for a balanced accuracy and an AUC the widest interval that the numbers of test samples allow,
`benchmarks/learns/chance.py`). "Near": no more than 3 points below FedAvg (or the row named) without any."""
OWN = (
    "The first table gives all methods one learning rate and one short budget; papers give each its own. Rows that "
    'were behind there ("see below" stands in their column) have more rounds here and a step chosen on seed '
    f"{own.TUNING} without wrong labels, not on the one reported ({own.REPORTED}): their own where several were tried, "
    "else FedAvg's. FedAvg with as many rounds, tuned in the same way, is what they are compared with "
    "(`benchmarks/learns/own.json`; all runs: `runs.csv`)."
)
WORDS = {"ham10000": "HAM10000", "cifar10": "CIFAR-10", "nih": "NIH chest X-rays"}
METRICS = {"accuracy": "accuracy", "bacc": "balanced accuracy", "map": "mean average precision", "auc": "AUC"}


def read(file: Path = RESULTS) -> list[dict[str, Any]]:
    """Every cell, those of one kind together, the reference first."""
    return sorted(
        read_list(file), key=lambda cell: (cell["kind"], cell["method"] != reference_of(cell), cell["method"])
    )


def reference_of(cell: dict[str, Any]) -> str:
    return str(cell.get("reference", "fedavg"))


def judged(cell: dict[str, Any], cells: list[dict[str, Any]]) -> tuple[bool, bool | None, float | None]:
    """Whether it learns, whether it is near its reference without noise, and by how much it is above that."""
    learns = lowest(cell) > cell["chance"]
    beside = [c for c in cells if c["kind"] == cell["kind"] and c["method"] == reference_of(cell)]
    if not beside:
        return learns, None, None
    ahead = cell["clean"] - beside[0]["clean"]
    return learns, ahead >= -NEAR, ahead


def lowest(cell: dict[str, Any]) -> float:
    """Lower end of the interval of the figure with wrong labels."""
    test = TESTS[cell["kind"]]
    return lower_end(cell["metric"], cell["noisy"], test["samples"], test["members"])


def page(cells: list[dict[str, Any]] | None = None) -> str:
    found = read() if cells is None else cells
    parts = ["# Does each method learn?", TOP]
    for kind in dict.fromkeys(cell["kind"] for cell in found):
        parts += _kind(kind, [cell for cell in found if cell["kind"] == kind])
    return "\n\n".join(parts) + "\n"


def _kind(kind: str, cells: list[dict[str, Any]]) -> list[str]:
    first = cells[0]
    what = KINDS[kind].what if kind in KINDS else nih.WHAT
    seconds = sum(cell["seconds"] for cell in cells)
    words = f"{what} Figure: {METRICS[first['metric']]} on {TESTS[kind]['samples']:,} test samples; guessing gives "
    words += f"{100 * first['chance']:.1f}. "
    words += f"All rows took {seconds / 60:.0f} minutes of processor time."
    lines = ["| method | without wrong labels | over the reference | with wrong labels (from) | learns | near |"]
    lines.append("|---|---|---|---|---|---|")
    known, entries = runs.read(), [entry for entry in own.read() if entry.kind == kind]
    behind = []
    for cell in cells:
        learns, near, ahead = judged(cell, cells)
        site = f" (own models {100 * cell['clean_own']:.1f})" if "clean_own" in cell else ""
        over = "" if ahead is None or cell["method"] == reference_of(cell) else f"{100 * ahead:+.1f}"
        again = own.of(kind, cell["method"], entries)
        if (near is False or not learns) and (again is None or not own_line(again, entries, known, first)[1]):
            behind.append(cell["method"])
        noisy_own = f", own models {100 * cell['noisy_own']:.1f}" if "noisy_own" in cell else ""
        lines.append(
            f"| {cell['method']} | {100 * cell['clean']:.1f}{site} | {over} | "
            f"{100 * cell['noisy']:.1f} ({100 * lowest(cell):.1f}{noisy_own}) | "
            f"{_verdict(learns, again)} | {_verdict(near, again)} |"
        )
    parts = [f"## {WORDS[kind]}", words, "\n".join(lines)]
    if entries:
        rows = [own_line(entry, entries, known, first)[0] for entry in entries]
        head = "| method | its own | without wrong labels | over FedAvg | with wrong labels (from) | learns | near |"
        parts += [f"### {WORDS[kind]}: a step and a budget of their own", OWN]
        parts.append("\n".join([head, "|---|---|---|---|---|---|---|", *rows]))
    if not behind:
        return [*parts, "None is behind with a budget of its own." if entries else "None is behind."]
    return [*parts, "Behind, and why:\n\n" + "\n".join(_reason(kind, method, known) for method in behind)]


def _reason(kind: str, method: str, known: Mapping[str, Any]) -> str:
    found = reasons.of(kind, method, reasons.read())
    return f"- **{method}**: " + (reasons.words(found, known) if found else "not looked into")


def _verdict(good: bool | None, again: own.Entry | None = None) -> str:
    return {True: "yes", False: "**no**" if again is None else "**no**, see below", None: ""}[good]


def own_line(
    entry: own.Entry, entries: list[own.Entry], known: Mapping[str, Any], like: dict[str, Any]
) -> tuple[str, bool]:
    """A line of the second table, and whether the method both learns and is near in it. like: a cell of the kind."""
    chosen, (clean, noisy) = entry.chosen(known), entry.reported(known)
    beside = None if entry.reference is None else own.of(entry.kind, entry.reference, entries)
    reference = None if beside is None else beside.reported(known)[0]
    if chosen is None or clean is None or (noisy is None and entry.wrong_labels):
        return f"| {entry.row} | not run | | | | | |", False
    ahead = None if reference is None else clean - reference
    learns, seen = True, "above"
    if noisy is not None:
        lower = lowest({**like, "noisy": noisy})
        learns, seen = lower > like["chance"], f"{100 * noisy:.1f} ({100 * lower:.1f})"
    near = None if ahead is None else ahead >= -NEAR
    cells = (
        entry.row,
        chosen.what,
        f"{100 * clean:.1f}",
        "" if ahead is None else f"{100 * ahead:+.1f}",
        seen,
        _verdict(learns),
        _verdict(near),
    )
    return f"| {' | '.join(cells)} |", learns and near is not False


def main() -> None:
    PAGE.write(page())
    print(page())


if __name__ == "__main__":
    main()
