"""Many rounds: what grows, and whether anything does that should not."""

from __future__ import annotations

import gc
import os
import signal
import statistics
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from benchmarks.faults.references import said_by
from benchmarks.faults.row import HERE, PROCESSES, Row
from benchmarks.faults.stand import COORDINATOR, WORKER, NotSeen, Stand
from benchmarks.faults.studies import study_of

from fedsift.study import Study
from fedsift.study.running import new_run, run

ROUNDS = 500
SECONDS, EARLY, MOST_GROWN = 600.0, 10, 20
"""Of the deployed one: how long, from which round on memory is compared, and how many MB a program may grow by."""


def _megabytes(pid: int | str = "self") -> float:
    text = Path(f"/proc/{pid}/status").read_text("utf-8")
    sizes = [int(line.split()[1]) for line in text.splitlines() if line.startswith("VmRSS:")]
    return sizes[0] / 1024 if sizes else 0.0  # a process that has ended has none


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


def deployed_rounds(stand: Stand) -> Iterator[Row]:
    """A deployed FedAvg for ten minutes: what grows at the coordinator, its SuperLink and a site's own process."""
    changes = {"method": {"name": "fedavg", "rounds": 10_000}, "evaluate": {"every": 50}}
    run = stand.start(stand.app(study_of("fedavg", stand.trial.out, **changes), "soak"))
    run.finish(EARLY, 300)
    if run.over:
        raise NotSeen(f"the run ended at once: {run.words[-500:]}")
    programs = {
        "coordinator": max(stand.pids_of("superlink", COORDINATOR), key=_megabytes),
        "SuperLink": stand.members["superlink"].process.pid,
        "site": max(stand.pids_of(stand.sites[0], WORKER), key=_megabytes),
    }
    before, began = {name: _megabytes(pid) for name, pid in programs.items()}, time.monotonic()
    while not run.over and time.monotonic() - began < SECONDS:
        time.sleep(1.0)
    grown = {name: _megabytes(pid) - before[name] for name, pid in programs.items()}
    with suppress(ProcessLookupError):
        os.kill(run.member.process.pid, signal.SIGINT)
    code, rows = run.end(120), run.folder.rounds()
    refused = sum(len(row["refused"]) for row in rows)
    seconds = [float(row["seconds"]) for row in rows[EARLY:]]
    third = max(1, len(seconds) // 3)
    early, late = statistics.median(seconds[:third]), statistics.median(seconds[-third:])
    more = ", ".join(f"{name} {size:+.0f} MB" for name, size in grown.items())
    yield Row(
        name="deployed soak",
        fault=f"FedAvg at three sites for {SECONDS / 60:.0f} minutes, then Ctrl-C",
        how=PROCESSES,
        expected=f"nobody is set aside, no program grows by more than {MOST_GROWN} MB after round {EARLY}, rounds stay "
        "as fast",
        outcome=f"{len(rows)} rounds, {refused} set aside; {more}; a round {early:.1f} s early, {late:.1f} s late; "
        f"exit code {code}",
        passed=refused == 0 and max(grown.values()) < MOST_GROWN and late < 1.5 * early and len(rows) > EARLY,
        said=said_by(run.words, "stopped"),
    )
