"""The table of docs/deployment.md that tells what a phase costs, from the results alone."""

from __future__ import annotations

import statistics
from typing import Any

from benchmarks.section import Section

SECTION = Section("deployment.md", "phases", "python -m benchmarks.phases")


def median_after_first(seconds: list[float]) -> float:
    """The first round also installs the app."""
    return statistics.median(seconds[1:])


def table_of(found: dict[str, Any]) -> str:
    ours, plain = found["fedsift"], found["plain_flower"]
    rows = [
        ("a phase of a plain Flower app, the same model", median_after_first(plain["seconds"])),
        ("a phase of fedsift, behind doors", median_after_first(ours["seconds"])),
        *((f"of that: {name}", seconds) for name, seconds in ours["parts"].items()),
        ("from the command to the first question", ours["first_question_after"]),
    ]
    lines = [
        "| what | seconds, median |",
        "|---|---|",
        *(f"| {name} | {seconds:.1f} |" for name, seconds in rows),
    ]
    about = (
        f"{found['sites']} sites on {found['cores']} cores, {found['rounds']} rounds, one run; other work kept the "
        f"machine at a load of {found['load_before']:g} before and {found['load_after']:g} after. A site took "
        f"{ours['site_megabytes']} MB at most (PSS); {ours['site_megabytes_alone']} MB with libraries counted as if it "
        "were alone on its machine."
    )
    return "\n".join([*lines, "", about, *alone_lines(found.get("alone", []))])


def alone_lines(runs: list[dict[str, Any]]) -> list[str]:
    """Later runs of fedsift by itself, each with the load that it was taken at."""
    if not runs:
        return []
    head = [
        "load before and after",
        "a phase, s, median",
        "of that: the site computes",
        "first question, s",
        "site, MB",
    ]
    rows = [
        [
            f"{run['load_before']:g}, {run['load_after']:g}",
            f"{median_after_first(run['seconds']):.1f}",
            f"{run['parts']['the site computes']:.2f}",
            f"{run['first_question_after']:.0f}",
            f"{run['site_megabytes']} ({run['site_megabytes_alone']})",
        ]
        for run in runs
    ]
    table = ["| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows]]
    words = "fedsift by itself, later and after mending; memory as PSS, and in brackets as if alone on the machine:"
    return ["", words, "", *table]
