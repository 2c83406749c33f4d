"""docs/faults.md from the results alone."""

from __future__ import annotations

import re
from typing import Any

from benchmarks.faults.row import PROCESSES, RESULTS, ROWS, known
from benchmarks.files import read_list
from benchmarks.section import Page
from benchmarks.section import paragraph as filled

PAGE = Page("faults.md", "python -m benchmarks.faults --page")
INPROCESS = RESULTS / "inprocess.csv"
TOP = """What a consortium makes of faults and attacks. Each line was brought about, not reasoned about: by
`python -m benchmarks.faults`, which writes a row as soon as it has seen it, compares it with a run that nothing
disturbed, and judges it by an expectation that was written down before. This page is made from
`benchmarks/faults/results` alone."""
PROCESS = """Where a row does not say otherwise there were real processes on one machine, over TLS and through both
gateways: a SuperLink, three sites and the coordinator's program. Points are those of accuracy that the last evaluation
lost. Seconds are those that the whole command took longer than the undisturbed one; most of them are programs that
start again, on a machine as busy as the end of the tables says. The last column quotes what the person who can mend
it was shown, in a terminal or a log; ids are shortened here, nothing else is."""
GATE = """The same messages without processes: what arrives is tampered with, and the coordinator's gate, its
protection and the methods have to live with it. Every one of these rows is made by
`python -m benchmarks.faults.inprocess`."""
GROUPS: dict[str, tuple[str, ...]] = {
    "Programs that die": (
        "site killed", "coordinator killed", "superlink killed", "start killed", "coordinator restored", "Ctrl-C",
    ),
    "Sites that are slow, come and go": ("slow site", "flapping site", "site back two rounds later"),
    "Unknown clients at the gateway": (
        "only ca.crt", "plain text", "unlisted key", "taken name", "revoked in a run", "reinstated in a run",
        "foreign certificate",
        "expired certificate", "flood",
    ),
    "Members that mean harm": (
        "hostile site", "oversize at the gateway", "corrupt bytes at the gateway", "hostile app", "pinned app",
        "hostile coordinator",
    ),
    "What leaves a site": ("messages read",),
    "Disks": ("disk", "read-only notebook", "killed while writing"),
    "Before the first round": (
        "truncated data", "label out of range", "hostile pictures", "data that unpack",
        "long temporary path", "changed study", "class order",
        "site of another version", "app of another version", "run of another version",
    ),
    "Together, and for long": ("two runs at once", "never silent", "deployed soak", "500 rounds"),
}  # fmt: skip
"""Titles, and how the names of their rows begin; in the order of the page."""
LONG_ID = re.compile(r"\b(sha256:)?([0-9a-f]{8})[0-9a-f]{24,}\b")


def cell(value: Any) -> str:
    if value is None or value == "":
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "**no**"
    if isinstance(value, float | int):
        return f"{value:.1f}"
    return LONG_ID.sub(r"\1\2…", " ".join(str(value).replace("|", "\\|").split()))


def table(head: list[str], body: list[list[str]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *body])


def deployed_rows(rows: dict[str, dict[str, Any]]) -> str:
    head = ["fault", "must follow", "followed", "as expected", "points lost", "seconds lost", "what was said"]
    keys = ("fault", "expected", "outcome", "passed", "accuracy_lost", "seconds_lost", "said")
    told = [
        row if row["how"] == PROCESSES else {**row, "fault": f"{row['fault']} ({row['how']})"} for row in rows.values()
    ]
    return table(head, [[cell(row[key]) for key in keys] for row in told])


def inprocess_rows(rows: list[dict[str, Any]]) -> str:
    head = ["fault", "how", "outcome", "points lost", "seconds lost", "what was said"]
    keys = ("fault", "how", "outcome", "accuracy_lost", "seconds_lost", "said")
    return table(head, [[cell(row.get(key)) for key in keys] for row in rows])


def of_group(rows: dict[str, dict[str, Any]], title: str) -> dict[str, dict[str, Any]]:
    """The rows under this title, in the order of its names."""
    return {name: rows[name] for start in GROUPS[title] for name in rows if name.startswith(start)}


def busy(rows: dict[str, dict[str, Any]]) -> str:
    """How quiet the machine was while the rows were made."""
    loads = [row["load"] for row in rows.values() if "load" in row]
    if not loads:
        return ""
    return (
        f"The machine had a load of {min(loads):g} to {max(loads):g} meanwhile, of other programs and of "
        "rows made side by side, and not always the same, so the seconds are rough: "
        "below zero where the undisturbed run met a busier machine."
    )


def states(rows: list[dict[str, Any]]) -> str:
    """Which rows were seen with which state of the program: the last commit that had changed it then."""
    found: dict[str, list[str]] = {}
    for row in rows:
        found.setdefault(row.get("source", ""), []).append(row["fault"])
    usual = max(found, key=lambda state: (bool(state), len(found[state])))
    if not usual:
        return ""
    words = [
        f"All but {len(rows) - len(found[usual])} of {len(rows)} rows were seen with the program of commit {usual}."
    ]
    if len(found) == 1:
        words = [f"All rows were seen with the program of commit {usual}."]
    for state, faults in found.items():
        if state != usual:
            which = f"the program of commit {state}" if state else "an earlier state"
            words.append(f"Of {which}: {'; '.join(faults)}.")
    return " ".join(words)


def page() -> str:
    rows = known(ROWS)
    kept = sum(row["passed"] for row in rows.values())
    parts = ["# Faults and attacks", filled(TOP), filled(PROCESS)]
    for title in GROUPS:
        own = of_group(rows, title)
        parts += [f"## {title}", deployed_rows(own)] if own else []
    parts += [filled(f"{kept} of {len(rows)} rows are as expected. {busy(rows)} {states(list(rows.values()))}")]
    if INPROCESS.is_file():
        found = read_list(INPROCESS)
        parts += ["## At the gate", filled(GATE), inprocess_rows(found), filled(states(found))]
    return "\n\n".join(parts) + "\n"


def write_page() -> None:
    PAGE.write(page())
