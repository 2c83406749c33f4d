"""Many rounds: what grows, and whether anything does that should not."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.faults.row import HERE, Row

from fedsift.study import Study
from fedsift.study.running import new_run, run

ROUNDS = 500


def _megabytes() -> float:
    text = Path("/proc/self/status").read_text("utf-8")
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("VmRSS:")) / 1024


def many_rounds(folder: Path) -> Iterator[Row]:
    study = Study.from_table(
        {
            "name": "soak",
            "seed": 3,
            "data": {"name": "digits", "train_limit": 300},
            "partition": {"name": "iid", "sites": 5},
            "noise": {"name": "fedcorr", "rho": 0.4, "tau": 0.5, "sites": "exact"},
            "model": {"name": "linear"},
            "train": {"epochs": 1, "batch_size": 30, "lr": 0.05},
            "method": {"name": "fednoro", "rounds": ROUNDS, "warm_up": 20},
            "engine": {"threads": 1, "trainer": "one"},
        }
    )
    memory: dict[int, float] = {}
    seconds: list[float] = []

    def listen(row: dict[str, object]) -> None:
        seconds.append(float(str(row["seconds"])))
        if row["round"] in (100, ROUNDS):
            gc.collect()
            memory[int(str(row["round"]))] = _megabytes()

    place, began = new_run(study, folder), time.monotonic()
    run(study, place, listen)
    refused = sum(len(row["refused"]) for row in place.rounds())
    grown = memory[ROUNDS] - memory[100]
    early, late = sorted(seconds[50:150])[50], sorted(seconds[-100:])[50]
    size = (place.path / "checkpoint.bin").stat().st_size / 2**20
    yield Row(
        name="500 rounds",
        fault=f"FedNoRo for {ROUNDS} rounds at five sites",
        how=HERE,
        expected="it ends, nobody is set aside, memory grows by less than 20 MB after round 100, rounds stay as fast",
        outcome=f"{len(place.rounds())} rounds in {time.monotonic() - began:.0f} s; {grown:+.1f} MB after round 100; "
        f"a round {1000 * early:.0f} ms early, {1000 * late:.0f} late; checkpoint {size:.2f} MB; {refused} set aside",
        passed=place.finished and refused == 0 and grown < 20 and late < 1.5 * early,
        said="",
    )
