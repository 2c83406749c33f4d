"""What a floor costs: detection and accuracy when sites tell nothing of fewer than 10 samples, beside no floor.

python -m benchmarks.floor            # runs what results/floor.csv lacks, then writes the table
python -m benchmarks.floor --page     # only writes the table of docs/deployment.md
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.files import read_list, write_list
from benchmarks.section import Section

from fedsift.study.running import new_run, run
from fedsift.study.study import Study

RESULTS = Path(__file__).parent / "results" / "floor.csv"
SECTION = Section("deployment.md", "python -m benchmarks.floor --page", "floor")
FLOORS, SEEDS = (0, 10), (1, 2, 3)
METHODS: dict[str, dict[str, Any]] = {
    "fednoro": {"rounds": 12, "warm_up": 6},
    "fedcorr": {"iterations": 3, "fine_tuning_rounds": 3, "usual_rounds": 6},
}


def study_of(method: str, floor: int, seed: int) -> Study:
    return Study.from_table(
        {
            "name": "floor",
            "seed": seed,
            "data": {"name": "digits"},
            "partition": {"name": "bernoulli-dirichlet", "sites": 10, "p": 0.7, "alpha": 1.0},
            "noise": {"name": "fedcorr", "rho": 0.4, "tau": 0.5},
            "model": {"name": "mlp"},
            "train": {"epochs": 2, "batch_size": 16, "lr": 0.05},
            "method": {"name": method, **METHODS[method]},
            "federation": {"min_count": floor},
        }
    )


def below(study: Study, floor: int = 10) -> float:
    """Share of the classes that sites hold at all of which they hold fewer samples than the floor."""
    counts = np.array([np.bincount(given, minlength=10) for given in study.spread().given.values()])
    return float(((counts > 0) & (counts < floor)).sum() / (counts > 0).sum())


def measured(method: str, floor: int, seed: int) -> dict[str, Any]:
    study = study_of(method, floor, seed)
    with tempfile.TemporaryDirectory() as place:
        summary = run(study, new_run(study, Path(place)))
    found = summary.get("detection")
    score = None
    if found is not None:
        precision, recall = found["precision"], found["recall"]
        score = 2 * precision * recall / (precision + recall) if precision + recall else 0.0
    return {
        "method": method,
        "floor": floor,
        "seed": seed,
        "accuracy": summary["accuracy"]["final"],
        "f1": score,
        "below_floor": below(study),
    }


def table_of(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| method | min_count | accuracy, % | noisy sites found, F1 |",
        "|---|---|---|---|",
    ]
    for method in METHODS:
        for floor in FLOORS:
            own = [row for row in rows if (row["method"], row["floor"]) == (method, floor)]
            accuracy = statistics.mean(100 * row["accuracy"] for row in own)
            spread = statistics.stdev(100 * row["accuracy"] for row in own)
            scores = [row["f1"] for row in own if row["f1"] is not None]
            found = f"{statistics.mean(scores):.2f}" if scores else "names none"
            lines.append(f"| {method} | {floor} | {accuracy:.1f} ± {spread:.1f} | {found} |")
    hidden = statistics.mean(row["below_floor"] for row in rows)
    about = (
        f"Digits at 10 sites, {len(SEEDS)} seeds, mean ± sd; of the classes that a site holds, {hidden:.0%} are "
        "below a minimum count of 10. In simulations `federation.min_count` sets it."
    )
    return "\n".join([*lines, "", about])


def body() -> str:
    return table_of(read_list(RESULTS))


def main() -> None:
    rows = read_list(RESULTS)
    if "--page" not in sys.argv:
        done = {(row["method"], row["floor"], row["seed"]) for row in rows}
        for seed in SEEDS:
            for method in METHODS:
                for floor in FLOORS:
                    if (method, floor, seed) not in done:
                        rows.append(measured(method, floor, seed))
                        write_list(RESULTS, rows, ("method", "floor", "seed"))
                        print(rows[-1], flush=True)
    SECTION.write(body())


if __name__ == "__main__":
    main()
