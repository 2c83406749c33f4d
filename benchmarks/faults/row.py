"""One fault: what was done, what must follow, what followed. Kept as it comes, so that a run can be gone on with."""

from __future__ import annotations

import fcntl
import os
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.files import read_tree, write_tree

import fedsift

RESULTS = Path(__file__).parent / "results"
ROWS = RESULTS / "deployed.csv"
REFERENCES = RESULTS / "references.csv"
KEYS = {ROWS: ("name",), REFERENCES: ("method",)}

PROCESSES = "processes on loopback, behind gateways"
ONE_COMMAND = "one command, before it connects"
HERE = "in process"


@dataclass(frozen=True)
class Row:
    """One line of docs/faults.md."""

    name: str
    fault: str
    how: str
    expected: str
    outcome: str
    passed: bool
    said: str
    """What the person who can mend it was told, in the programs' own words."""
    accuracy_lost: float | None = None
    """In points, against the run that nothing disturbed; None where no model is at stake."""
    seconds_lost: float | None = None


def known(path: Path) -> dict[str, Any]:
    return read_tree(path, KEYS[path])


def keep(path: Path, name: str, value: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    with (path.parent / ".lock").open("w") as lock:  # two commands may go through different rows at the same time
        fcntl.flock(lock, fcntl.LOCK_EX)
        write_tree(path, known(path) | {name: value}, KEYS[path])


def source() -> str:
    """The last commit that changed the program, with a plus where its files differ; empty outside of a checkout."""
    program = str(Path(fedsift.__file__).parent)

    def git(*words: str) -> str:
        command = ["git", "-C", program, *words, "--", program]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()

    return git("log", "-1", "--format=%h", "--abbrev=9") + ("+" if git("status", "--porcelain") else "")


def keep_row(row: Row) -> None:
    """With the program's state, and the machine's load: seconds are worth no more than the quiet they were taken in."""
    facts = {key: value for key, value in asdict(row).items() if key != "name"}
    keep(ROWS, row.name, {**facts, "load": round(os.getloadavg()[0], 1), "source": source()})
