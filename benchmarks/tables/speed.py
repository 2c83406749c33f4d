"""Six runs of a LeNet-5 study: through the bench, and one after the other with two workers each.

    python -m benchmarks.tables.speed [--times 3] [--rounds 12]

Both sides run in turn in one session, each in a process of its own; the second side starts its process once for all
six runs. The outcomes must be the same. Results: benchmarks/speed/results/bench.csv.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedsift.benchmark.cells import cells_of, measure
from fedsift.benchmark.rows import write_rows
from fedsift.benchmark.running import run_table
from fedsift.benchmark.store import RunStore
from fedsift.benchmark.table import Table, table_of

SCENARIO = "fedcorr/cifar10-iid-0.6-0.5-small"
FILE = Path(__file__).parents[1] / "speed" / "results" / "bench.csv"


def six(rounds: int, workers: int) -> Table:
    method = {"name": "fedavg", "rounds": rounds, "fraction": 0.5}
    return table_of(
        "six",
        {
            "scenario": SCENARIO,
            "seeds": [1, 2, 3, 4, 5, 6],
            "rows": [{"label": "FedAvg", "method": method}],
            "all": {"engine": {"workers": workers}},
        },
    )


def through_the_bench(place: Path, rounds: int) -> None:
    run_table(six(rounds, 0), place, processes=2)


def one_by_one(place: Path, rounds: int) -> None:
    for cell in cells_of(six(rounds, 2)):
        RunStore(place).write(measure(cell.study, place / "runs" / cell.key))


SIDES = {"bench": through_the_bench, "in turn": one_by_one}


def seconds(rows: Sequence[Mapping[str, Any]], side: str) -> list[float]:
    """Seconds of a side, turn by turn."""
    return [row["seconds"] for row in sorted(rows, key=lambda row: row["turn"]) if row["side"] == side]


def ratio(rows: Sequence[Mapping[str, Any]]) -> float:
    """How many times as fast the bench is, in the median of the turns."""
    return statistics.median(b / a for a, b in zip(seconds(rows, "bench"), seconds(rows, "in turn")))


def timed(side: str, rounds: int) -> tuple[float, dict[str, Any]]:
    """Seconds of one side in a fresh process, and its outcomes."""
    with tempfile.TemporaryDirectory() as place:
        command = [sys.executable, "-m", "benchmarks.tables.speed", "--side", side, "--place", place]
        started = time.perf_counter()
        subprocess.run([*command, "--rounds", str(rounds)], check=True)
        taken = time.perf_counter() - started
        return taken, {record.study_key: record.outcome for record in RunStore(Path(place))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--side", choices=list(SIDES))
    parser.add_argument("--place", type=Path)
    options = parser.parse_args()
    if options.side:
        SIDES[options.side](options.place, options.rounds)
        return
    rows: list[dict[str, Any]] = []
    outcomes = []
    for turn in range(1, options.times + 1):
        for side in SIDES:
            taken, found = timed(side, options.rounds)
            outcomes.append(found)
            rows.append({
                "side": side, "turn": turn, "scenario": SCENARIO, "rounds": options.rounds, "cores": os.cpu_count(),
                "seconds": round(taken, 2), "same_outcomes": found == outcomes[0],
            })  # fmt: skip
            print(f"{side}: {taken:.1f} s, load {os.getloadavg()[0]:.1f}", flush=True)
    write_rows(FILE, rows, ("side", "turn"))
    same = all(row["same_outcomes"] for row in rows)
    print(f"the bench is {ratio(rows):.2f} times as fast; same outcomes: {same}")


if __name__ == "__main__":
    main()
