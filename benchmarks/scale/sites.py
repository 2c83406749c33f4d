"""Does a round's cost depend on the number of sites? 100 of N sites train a round, N from 100 to 10,000.

    python benchmarks/scale/sites.py [--out FILE.csv]

Every size runs in a process of its own, so that peak memory is its own; rounds of the sizes are timed in turn.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.files import write_list

SAMPLES = 50
ASKED = 100
ROUNDS = 7


def measure(sites: int) -> dict[str, Any]:
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

    torch.set_num_threads(1)
    rng = np.random.default_rng(1)
    n = sites * SAMPLES + 1000
    images = rng.integers(0, 256, (n, 1, 8, 8), dtype=np.uint8)
    dataset = Dataset(
        "random",
        images,
        rng.integers(0, 10, n),
        tuple("0123456789"),
        np.arange(n - 1000),
        np.arange(n - 1000, n),
    )
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.perf_counter()
    federated = build(dataset, partitions.get("iid")(sites=sites), noises.get("clean")(), seed=1)  # type: ignore[call-arg]
    spread_seconds = time.perf_counter() - started
    study = Study.from_table({"method": {"name": "fedavg", "rounds": ROUNDS, "fraction": ASKED / sites}})
    federation = open_in_process(study, federated, "scale")
    folder = RunFolder.create(Path(tempfile.mkdtemp()), "scale")
    run_rounds(
        methods.get("fedavg")(rounds=ROUNDS, fraction=ASKED / sites),
        federation,
        folder,  # type: ignore[call-arg]
        Evaluator(federation, federation.test_set()),
    )
    seconds = [row["seconds"] for row in folder.rounds()][1:]
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "sites": sites,
        "round_seconds": statistics.median(seconds),
        "round_quartiles": statistics.quantiles(seconds, n=4)[::2],
        "build_seconds": spread_seconds,
        "peak_mb_beyond_the_data": (after - before) / 1024,
        "data_mb": images.nbytes / 1e6,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        rows = [pool.apply(measure, (sites,)) for sites in (100, 1000, 10_000)]
    for row in rows:
        print(
            f"{row['sites']:>6} sites: a round {row['round_seconds'] * 1000:.0f} ms "
            f"(quartiles {row['round_quartiles'][0] * 1000:.0f}-{row['round_quartiles'][1] * 1000:.0f}), "
            f"spread in {row['build_seconds']:.2f} s, "
            f"{row['peak_mb_beyond_the_data']:.0f} MB beyond the {row['data_mb']:.0f} MB of data"
        )
    print(f"10,000 against 100 sites: {rows[-1]['round_seconds'] / rows[0]['round_seconds']:.2f}x a round")
    if options.out:
        write_list(options.out, rows, ("sites",))


if __name__ == "__main__":
    main()
