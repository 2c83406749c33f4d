"""The table of docs/deployment.md that tells what a phase costs, from the results alone."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from benchmarks.files import read_list, write_list
from benchmarks.section import Section

from fedsift.core.numbers import plural

RESULTS = Path(__file__).parent / "results" / "phases.csv"
TURN, ALONE = "turn of both", "alone"
COMMON = ("sites", "rounds", "cores")
SECTION = Section("deployment.md", "python -m benchmarks.phases", "phases")


def median_after_first(seconds: list[float]) -> float:
    """The first round also installs the app."""
    return statistics.median(seconds[1:])


FLOWERS = {
    "to the site's node": "Flower: the message is stored, and the node asks for it",
    "node to the site's process": "Flower: SuperNode, SuperExec, the message's own process",
    "the site computes": "ours",
    "answer to the coordinator's gateway": "Flower: the way back through the node",
    "gateway to the next round": "Flower: the program asks for answers; then ours: gate, averaging, checkpoint",
}
"""Whose each part of a phase is."""


def body() -> str:
    return table_of(read())


def read() -> dict[str, Any]:
    """Turns of both, and later runs of fedsift alone; empty before the first."""
    rows = read_list(RESULTS)
    turns = [row for row in rows if row["what"] == TURN]
    common = {key: turns[0][key] for key in COMMON} if turns else {}
    return {**common, "turns": turns, "alone": [row for row in rows if row["what"] == ALONE]}


def keep(found: dict[str, Any]) -> None:
    """A row a turn, with what is the same for all of them."""
    common = {key: found[key] for key in COMMON}
    turns = [{"what": TURN, "number": n, **common, **turn} for n, turn in enumerate(found["turns"], 1)]
    alone = [{**run, "what": ALONE, "number": n} for n, run in enumerate(found.get("alone", []), 1)]
    write_list(RESULTS, [*turns, *alone], ("what", "number"))


def table_of(found: dict[str, Any]) -> str:
    turns = found["turns"]
    plain = [s for turn in turns for s in turn["plain_flower"]["seconds"][1:]]
    ours = [s for turn in turns for s in turn["fedsift"]["seconds"][1:]]
    parts = {name: statistics.median(turn["fedsift"]["parts"][name] for turn in turns) for name in FLOWERS}
    first = statistics.median(turn["fedsift"]["first_question_after"] for turn in turns)
    rows = [
        ("a phase of a plain Flower app, the same model", statistics.median(plain), "Flower"),
        ("a phase of fedsift, behind gateways", statistics.median(ours), ""),
        *((f"of that: {name}", seconds, FLOWERS[name]) for name, seconds in parts.items()),
        ("from the command to the first question", first, ""),
    ]
    lines = [
        "| what | seconds, median | whose |",
        "| --- | ---: | --- |",
        *(f"| {name} | {seconds:.2f} | {whose} |" for name, seconds, whose in rows),
    ]
    loads = [load for turn in turns for load in turn["loads"]]
    memory = max(turn["fedsift"]["site_megabytes"] for turn in turns)
    alone = max(turn["fedsift"]["site_megabytes_alone"] for turn in turns)
    turned = plural(len(turns), "turn")
    about = (
        f"{found['sites']} sites on {found['cores']} cores; {turned} of both in one run, one after the other, "
        f"{found['rounds']} rounds each, the first of each left out, for it also installs the app. The machine's load "
        f"was {min(loads):g} to {max(loads):g} meanwhile, these programs among it. A site took {memory} MB at most "
        f"(PSS); {alone} MB with libraries counted as if it were alone on its machine."
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
