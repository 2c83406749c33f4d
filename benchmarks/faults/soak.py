"""Many rounds: what grows, and whether anything does that should not."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.faults.row import HERE, PROCESSES, Row
from benchmarks.faults.stand import COORDINATOR, WORKER, NotSeen, Stand
from benchmarks.faults.studies import study_of

from fedsift.study.running import new_run, run
from fedsift.study.study import Study

ROUNDS = 500
EARLY, SETTLED, MOST_GROWN = 10, 100, 20
"""Of the deployed one: from which round on memory is noted, after which it must have settled, and by how many MB a
program may grow from there to the end."""
TIMEOUT = 120 * 60.0


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
    """500 rounds of a deployed FedAvg: what grows at the coordinator, its SuperLink and a site's own process."""
    changes = {"method": {"name": "fedavg", "rounds": ROUNDS}, "evaluate": {"every": 50}}
    run = stand.start(stand.app(study_of("fedavg", stand.trial.out, **changes), "soak"))
    run.finish(EARLY, 300)
    if run.over:
        raise NotSeen(f"the run ended at once: {run.words[-500:]}")
    programs = {
        "coordinator": max(stand.pids_of("superlink", COORDINATOR), key=_megabytes),
        "SuperLink": stand.members["superlink"].process.pid,
        "site": max(stand.pids_of(stand.sites[0], WORKER), key=_megabytes),
    }
    memory: dict[int, dict[str, float]] = {}
    until = time.monotonic() + TIMEOUT
    while not run.over and time.monotonic() < until:
        done = len(run.folder.rounds())
        if done < ROUNDS:  # after the last one the coordinator ends, and has no size any more
            memory[done] = {name: _megabytes(pid) for name, pid in programs.items()}
        time.sleep(1.0)
    code, rows = run.end(120), run.folder.rounds()
    settled = memory[min((done for done in memory if done >= SETTLED), default=max(memory))]
    grown = {name: size - settled[name] for name, size in memory[max(memory)].items()}
    early = {name: size - memory[min(memory)][name] for name, size in settled.items()}
    refused = sum(len(row["refused"]) for row in rows)
    seconds = [float(row["seconds"]) for row in rows[EARLY:]]
    third = max(1, len(seconds) // 3)
    first, last = statistics.median(seconds[:third]), statistics.median(seconds[-third:])
    more = ", ".join(f"{name} {size:+.0f} MB ({early[name]:+.0f} before)" for name, size in grown.items())
    yield Row(
        name="deployed soak",
        fault=f"FedAvg at three sites for {ROUNDS} rounds",
        how=PROCESSES,
        expected=f"it ends, nobody is set aside, no program grows by more than {MOST_GROWN} MB after round {SETTLED}, "
        "rounds stay as fast",
        outcome=f"{len(rows)} rounds, {refused} set aside; after round {SETTLED}: {more}; a round {first:.1f} s in the "
        f"first third, {last:.1f} s in the last; exit code {code}",
        passed=code == 0
        and len(rows) == ROUNDS
        and refused == 0
        and max(grown.values()) < MOST_GROWN
        and last < 1.5 * first,
        said="",
    )
