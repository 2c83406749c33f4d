"""`python -m benchmarks.learns.page`: docs/learns.md from results/; every figure on it is read from there."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

from benchmarks.learns.rows import KINDS

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "learns.md"
WIDTH = 118
NEAR = 0.03
"""Without wrong labels a method may end so far below its reference."""
CLEARLY = 1.5
"""Times what guessing gives: clearly above chance."""
TOP = (
    "Made by `python -m benchmarks.learns.page` from `benchmarks/learns/results`. Every method runs twice on a small "
    "federation of real data, without and with wrong labels, for a few rounds: this is a check that it learns, not a "
    "ranking, for which the budget is far too small. Figures are the mean of the last three rounds with one seed. "
    '"Learns" asks for 1.5 times what guessing gives, with wrong labels; "near" for no more than 3 points below '
    "FedAvg (or the row named) without any."
)
WORDS = {"ham10000": "HAM10000", "cifar10": "CIFAR-10"}
METRICS = {"accuracy": "accuracy", "bacc": "balanced accuracy", "map": "mean average precision", "auc": "AUC"}
NOTES = {
    "rofl": "it replaces labels by the global model's, which a few rounds have taught little; without that "
    "(`pseudo_from` beyond the last round) it keeps up",
    "rhfl-avg": "its symmetric loss learns more slowly; with cross-entropy (`sl = false`) it keeps up",
}
"""Why a method is behind, where it is."""


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
    learns = cell["noisy"] >= CLEARLY * cell["chance"]
    beside = [c for c in cells if c["kind"] == cell["kind"] and c["method"] == reference_of(cell)]
    if not beside:
        return learns, None, None
    ahead = cell["clean"] - beside[0]["clean"]
    return learns, ahead >= -NEAR, ahead


def page(cells: list[dict[str, Any]] | None = None) -> str:
    found = read() if cells is None else cells
    parts = ["# Does each method learn?", _filled(TOP)]
    for kind in dict.fromkeys(cell["kind"] for cell in found):
        parts += _kind(kind, [cell for cell in found if cell["kind"] == kind])
    return "\n\n".join(parts) + "\n"


def _kind(kind: str, cells: list[dict[str, Any]]) -> list[str]:
    first = cells[0]
    what = KINDS[kind].what if kind in KINDS else f"Scenario `{first['scenario']}`."
    seconds = sum(cell["seconds"] for cell in cells)
    words = f"{what} Figure: {METRICS.get(first['metric'], first['metric'])}; guessing gives {first['chance']:.3f}. "
    words += f"All rows took {seconds / 60:.0f} minutes of processor time."
    lines = ["| method | without wrong labels | over the reference | with wrong labels | learns | near |"]
    lines.append("|---|---|---|---|---|---|")
    behind = []
    for cell in cells:
        learns, near, ahead = judged(cell, cells)
        own = f" (own models {100 * cell['clean_own']:.1f})" if "clean_own" in cell else ""
        over = "" if ahead is None or cell["method"] == reference_of(cell) else f"{100 * ahead:+.1f}"
        verdict = {True: "yes", False: "**no**", None: ""}
        if near is False or not learns:
            behind.append(cell["method"])
        noisy_own = f" (own models {100 * cell['noisy_own']:.1f})" if "noisy_own" in cell else ""
        lines.append(
            f"| {cell['method']} | {100 * cell['clean']:.1f}{own} | {over} | {100 * cell['noisy']:.1f}{noisy_own} | "
            f"{verdict[learns]} | {verdict[near]} |"
        )
    named = [f"{name} ({NOTES[name]})" if name in NOTES else name for name in behind]
    closing = f"Behind with this budget: {', '.join(named)}." if behind else "None is behind."
    return [f"## {WORDS.get(kind, kind)}", _filled(words), "\n".join(lines), _filled(closing)]


def _filled(text: str) -> str:
    return textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False)


def main() -> None:
    PAGE.write_text(page(), "utf-8")
    print(page())


if __name__ == "__main__":
    main()
