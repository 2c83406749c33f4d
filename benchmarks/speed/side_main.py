"""One side in a process of its own: it prepares, says so, and trains a round for every line that it reads ("again":
the same sites as before)."""

from __future__ import annotations

import json
import os
import sys
import time

from benchmarks.speed.workload import Workload


def say(**facts: object) -> None:
    """One line of JSON on the stream that nobody else writes to."""
    os.write(3, (json.dumps(facts) + "\n").encode())


def main() -> None:
    name, text = sys.argv[1:3]
    work = Workload.from_json(text)
    if name.startswith(("flower", "pfl")):
        _framework(name, work)
        return
    from benchmarks.speed.sides import SIDES

    run = SIDES[name](work)
    say(ready=True)
    number = -1
    for line in sys.stdin:
        if line.strip() == "end":
            break
        number += line.strip() != "again"
        started = time.perf_counter()
        run(number)
        say(seconds=time.perf_counter() - started)


def _framework(name: str, work: Workload) -> None:
    """Flower and pfl-research own their loops: they ask whether they may go on."""
    if name.startswith("flower"):
        from benchmarks.speed.flower_side import run_flower as run
    else:
        from benchmarks.speed.pfl_side import run_pfl as run

    started = 0.0

    def proceed() -> bool:
        nonlocal started
        line = sys.stdin.readline()
        started = time.perf_counter()
        return line.strip() in ("go", "again")

    run(work, proceed, lambda: say(seconds=time.perf_counter() - started))


if __name__ == "__main__":
    main()
