"""Does memory stay flat? 500 rounds of 50 sites each, with worker processes, checkpoints and evaluation.

    python benchmarks/scale/soak.py [--rounds 500] [--method fedavg] [--out FILE.csv]

Memory is that of the whole tree of processes, shared pages counted once, read every ten rounds. The first fifth
of the rounds warms up.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.files import write_list
from benchmarks.speed.process import memory_of_tree

SITES, SAMPLES, ASKED = 100, 40, 50


def soak(method: str, rounds: int) -> dict[str, Any]:
    from fedsift.data.build import build
    from fedsift.data.dataset import Dataset
    from fedsift.data.noise.base import noises
    from fedsift.data.partitions.base import partitions
    from fedsift.methods._base import methods
    from fedsift.runs.folder import RunFolder
    from fedsift.runtime.evaluation import Evaluator
    from fedsift.runtime.loop import run_rounds
    from fedsift.study.running import open_in_process
    from fedsift.study.study import Study

    rng = np.random.default_rng(1)
    n = SITES * SAMPLES + 1000
    dataset = Dataset(
        "random",
        rng.integers(0, 256, (n, 3, 16, 16), dtype=np.uint8),
        rng.integers(0, 10, n),
        tuple("0123456789"),
        np.arange(n - 1000),
        np.arange(n - 1000, n),
    )
    federated = build(dataset, partitions.get("iid")(sites=SITES), noises.get("clean")(), seed=1)  # type: ignore[call-arg]
    settings = {"name": method, "rounds": rounds, "fraction": ASKED / SITES}
    study = Study.from_table(
        {"model": {"name": "lenet5"}, "method": settings, "engine": {"workers": 2}, "train": {"epochs": 1}}
    )
    federation = open_in_process(study, federated, "soak")
    megabytes: list[float] = []

    def look(row: dict[str, Any]) -> None:
        if row["round"] % 10 == 0:
            megabytes.append(memory_of_tree(os.getpid()))
            if row["round"] % 50 == 0:
                print(f"round {row['round']}: {megabytes[-1]:.1f} MB, {row['seconds']:.2f} s", flush=True)

    with tempfile.TemporaryDirectory() as place:
        folder = RunFolder.create(Path(place), "soak")
        test = Evaluator(federation, federation.test_set())
        made = methods.get(method)(rounds=rounds, fraction=ASKED / SITES)  # type: ignore[call-arg]
        run_rounds(made, federation, folder, test, listen=look)
        seconds = [row["seconds"] for row in folder.rounds()]
    settled = megabytes[len(megabytes) // 5 :]
    tenth = max(1, len(settled) // 10)
    early, late = statistics.median(settled[:tenth]), statistics.median(settled[-tenth:])
    return {
        "method": method,
        "rounds": rounds,
        "sites_a_round": ASKED,
        "early_mb": round(early, 1),
        "late_mb": round(late, 1),
        "growth": round(late / early - 1, 4),
        "largest_over_smallest": round(max(settled) / min(settled) - 1, 4),
        "round_seconds": round(statistics.median(seconds), 3),
        "megabytes": [round(value, 1) for value in megabytes],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--method", default="fedavg")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    found = soak(options.method, options.rounds)
    print(
        f"{found['early_mb']} MB early, {found['late_mb']} MB late: {100 * found['growth']:+.1f} % "
        f"(all within {100 * found['largest_over_smallest']:.1f} %)"
    )
    if options.out:
        write_list(options.out, [found], ("method", "rounds"))


if __name__ == "__main__":
    main()
