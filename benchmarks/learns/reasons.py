"""Why a row is behind FedAvg or its reference, each reason with the runs that show it.

`reasons.json` holds for such a row the words and the pairs of runs that show them: the method with one of its parts
taken out, at sites that are alike, or the table's own run by another measure, beside what it is compared with. All are
without wrong labels unless said. `benchmarks/learns/runs.py` computes them and keeps their figures.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.learns import runs
from benchmarks.learns.runs import Trial

FILE = Path(__file__).parent / "reasons.json"
NEAR = 0.03
"""Without wrong labels a method may end so far below its reference."""


def read() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(FILE.read_text("utf-8"))
    return found


def of(kind: str, method: str, reasons: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The reason of one row."""
    return next((one for one in reasons if (one["kind"], one["method"]) == (kind, method)), None)


def pair(reason: Mapping[str, Any], tried: Mapping[str, Any]) -> tuple[Trial, Trial]:
    """The run that shows it, and the one beside it."""
    kind, seed, wrong = reason["kind"], reason["seed"], tried.get("wrong_labels", False)
    return (
        Trial(kind, tried["method"], tried.get("set", []), seed, wrong),
        Trial(kind, tried["reference"], tried.get("reference_set", []), seed, wrong),
    )


def words(reason: dict[str, Any], known: Mapping[str, Any]) -> str:
    """The reason and its figures, in one sentence; a reason without any is called what it is."""
    shown = []
    for tried in reason["tries"]:
        here, beside = (runs.value(one, known, tried.get("metric")) for one in pair(reason, tried))
        if here is not None and beside is not None:
            name = tried.get("beside", "FedAvg")
            shown.append(f"{tried['what']}: {100 * here:.1f} where {name} has {100 * beside:.1f}")
    if not shown:
        return f"supposed, not shown by a run: {reason['words']}"
    return f"{reason['words']} ({'; '.join(shown)}; seed {reason['seed']})"


def trials() -> Iterator[Trial]:
    for reason in read():
        for tried in reason["tries"]:
            yield from pair(reason, tried)
