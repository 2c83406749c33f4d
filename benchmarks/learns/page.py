"""`python -m benchmarks.learns.page`: docs/learns.md from results/; every figure on it is read from there."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

from benchmarks.learns import nih, reasons
from benchmarks.learns.chance import lower_end
from benchmarks.learns.reasons import NEAR
from benchmarks.learns.rows import KINDS

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "learns.md"
TESTS: dict[str, dict[str, Any]] = json.loads((HERE / "tests.json").read_text("utf-8"))
"""Of each kind of data the number of test samples, and how many of them each class has."""
WIDTH = 118
TOP = (
    "Made by `python -m benchmarks.learns.page` from `benchmarks/learns/results`. Every method runs twice on a small "
    "federation of real data, without and with wrong labels, for a few rounds: this is a check that it learns, not a "
    "ranking, for which the budget is far too small. Figures are the mean of the last three rounds with one seed. "
    '"Learns": with wrong labels the lower end of the figure\'s 95 % interval over the test samples is above what '
    "guessing gives (Wilson for an accuracy; for a balanced accuracy and an AUC the widest interval that the numbers "
    'of test samples allow, `benchmarks/learns/chance.py`). "Near": no more than 3 points below FedAvg (or the row '
    "named) without any. Where a row is behind, the reason stands below its table with the run that shows it "
    "(`benchmarks/learns/reasons.json`)."
)
WORDS = {"ham10000": "HAM10000", "cifar10": "CIFAR-10", "nih": "NIH chest X-rays"}
METRICS = {"accuracy": "accuracy", "bacc": "balanced accuracy", "map": "mean average precision", "auc": "AUC"}


def read(folder: Path = HERE / "results") -> list[dict[str, Any]]:
    """Every cell, those of one kind together, the reference first."""
    cells = [json.loads(text) for file in sorted(folder.glob("*.json")) if (text := file.read_text("utf-8"))]
    return sorted(
        cells, key=lambda cell: (cell["kind"], cell["method"] != reference_of(cell), cell["method"])
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
    parts = ["# Does each method learn?", _filled(TOP)]
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
    lines = [
        "| method | without wrong labels | over the reference | with wrong labels (from) | learns | near |"
    ]
    lines.append("|---|---|---|---|---|---|")
    found, behind = reasons.read(), []
    for cell in cells:
        learns, near, ahead = judged(cell, cells)
        own = f" (own models {100 * cell['clean_own']:.1f})" if "clean_own" in cell else ""
        over = "" if ahead is None or cell["method"] == reference_of(cell) else f"{100 * ahead:+.1f}"
        verdict = {True: "yes", False: "**no**", None: ""}
        reason = reasons.of(kind, cell["method"], found)
        if near is False or not learns:
            behind.append(
                f"- **{cell['method']}**: " + (reasons.words(reason) if reason else "not looked into")
            )
        enough = reasons.catches_up(reason) if near is False else None
        noisy_own = f", own models {100 * cell['noisy_own']:.1f}" if "noisy_own" in cell else ""
        lines.append(
            f"| {cell['method']} | {100 * cell['clean']:.1f}{own} | {over} | "
            f"{100 * cell['noisy']:.1f} ({100 * lowest(cell):.1f}{noisy_own}) | "
            f"{verdict[learns]} | {verdict[near]}{f'; with {enough} yes' if enough else ''} |"
        )
    closing = "\n".join(_filled(line, "  ") for line in behind)
    return [
        f"## {WORDS[kind]}",
        _filled(words),
        "\n".join(lines),
        f"Behind with this budget:\n\n{closing}" if behind else "None is behind.",
    ]


def _filled(text: str, indent: str = "") -> str:
    return textwrap.fill(
        text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def main() -> None:
    PAGE.write_text(page(), "utf-8")
    print(page())


if __name__ == "__main__":
    main()
