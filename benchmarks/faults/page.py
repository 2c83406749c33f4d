"""docs/faults.md from the results alone."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

from benchmarks.faults.row import HERE, ONE_COMMAND, PROCESSES, RESULTS, ROWS, known

PAGE = Path(__file__).parents[2] / "docs" / "faults.md"
INPROCESS = RESULTS / "inprocess.json"
WIDTH = 118
TOP = """What a consortium makes of faults and attacks. Each line was brought about, not reasoned about: by `python -m
benchmarks.faults`, which writes a row as soon as it has seen it, compares it with a run that nothing disturbed, and
judges it by an expectation that was written down before. This page is made from `benchmarks/faults/results` alone."""
PROCESS = """Real processes on one machine, over TLS and through both doors: a SuperLink, three sites and the
coordinator's program. Accuracy is what the last evaluation lost, in points; seconds are those that the whole command
took longer than the undisturbed one: on a quiet machine a part of it, for the programs have to start again."""
GATE = """The same messages without processes: what arrives is tampered with, and the coordinator's gate, its
protection and the methods have to live with it."""


def filled(text: str) -> str:
    return textwrap.fill(" ".join(text.split()), WIDTH, break_long_words=False, break_on_hyphens=False)


def cell(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "**no**"
    if isinstance(value, float | int):
        return f"{value:.1f}"
    return " ".join(str(value).replace("|", "\\|").split())


def table(head: list[str], body: list[list[str]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *body])


def deployed_rows(rows: dict[str, dict[str, Any]]) -> str:
    head = ["fault", "must follow", "followed", "as expected", "points lost", "seconds lost", "what was said"]
    keys = ("fault", "expected", "outcome", "passed", "accuracy_lost", "seconds_lost", "said")
    return table(head, [[cell(row[key]) for key in keys] for row in rows.values()])


def inprocess_rows(rows: list[dict[str, Any]]) -> str:
    head = ["fault", "how", "outcome", "points lost", "seconds lost", "what was said"]
    keys = ("fault", "how", "outcome", "accuracy_lost", "seconds_lost", "said")
    return table(head, [[cell(row.get(key)) for key in keys] for row in rows])


def busy(rows: dict[str, dict[str, Any]]) -> str:
    """How quiet the machine was while the rows were made."""
    loads = [row["load"] for row in rows.values() if "load" in row]
    if not loads:
        return ""
    return (
        f"Other programs kept the machine at a load of {min(loads):g} to {max(loads):g} meanwhile, so the seconds are "
        "upper bounds."
    )


def page() -> str:
    rows = known(ROWS)
    kept = sum(row["passed"] for row in rows.values())
    parts = ["# Faults and attacks", filled(TOP)]
    for how in (PROCESSES, ONE_COMMAND, HERE):
        own = {name: row for name, row in rows.items() if row["how"] == how}
        parts += [f"## {how[:1].upper()}{how[1:]}"] if own else []
        parts += [filled(PROCESS)] if how == PROCESSES else []
        parts += [deployed_rows(own)] if own else []
    parts += [filled(f"{kept} of {len(rows)} rows are as expected. {busy(rows)}")]
    if INPROCESS.is_file():
        found = json.loads(INPROCESS.read_text("utf-8"))
        parts += ["## At the gate", filled(GATE), inprocess_rows(found)]
    return "\n\n".join(parts) + "\n"


def write_page() -> None:
    PAGE.write_text(page(), "utf-8")
