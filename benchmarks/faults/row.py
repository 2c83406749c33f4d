"""One fault: what was done, what must follow, what followed. Kept as it comes, so that a run can be gone on with."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import fedsift
from fedsift.core.files import write_atomically

RESULTS = Path(__file__).parent / "results"
ROWS = RESULTS / "deployed.json"
REFERENCES = RESULTS / "references.json"

PROCESSES = "processes on loopback, behind doors"
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
    return dict(json.loads(path.read_text("utf-8"))) if path.is_file() else {}


def keep(path: Path, name: str, value: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    with (path.parent / ".lock").open("w") as lock:  # two commands may go through different rows at the same time
        fcntl.flock(lock, fcntl.LOCK_EX)
        table = known(path) | {name: value}
        write_atomically(path, (json.dumps(dict(sorted(table.items())), indent=1) + "\n").encode())


def source() -> str:
    """The last commit that changed the program, with a plus where its files differ; empty outside of a checkout."""
    program = str(Path(fedsift.__file__).parent)

    def git(*words: str) -> str:
        command = ["git", "-C", program, *words, "--", program]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()

    return git("log", "-1", "--format=%h", "--abbrev=9") + ("+" if git("status", "--porcelain") else "")


def keep_row(row: Row) -> None:
    """With the program's state, and the machine's load: seconds are worth no more than the quiet they were taken in."""
    keep(ROWS, row.name, {**asdict(row), "load": round(os.getloadavg()[0], 1), "source": source()})
