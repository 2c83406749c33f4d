"""`python -m benchmarks.verdicts.reference`: how often "no clean reference" is said where it is so and where it is not.

Small federations whose sites are all noisy (rho = 1), mostly (0.8), partly (0.4) or not at all (0), through the methods
that say it. One line a run in results/reference.csv as it comes; runs that are there are not repeated.
docs/detection.md shows the table that `table()` makes of them.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.files import read_list, write_list
from benchmarks.section import Section

from fedsift.protocol.findings import Findings

RESULTS = Path(__file__).parent / "results" / "reference.csv"
SECTION = Section("detection.md", "python -m benchmarks.verdicts.reference --page", "reference")
FEDNORO = "method={name='fednoro', rounds=8, warm_up=8, detection='tested'}"
FEDCORR = "method={name='fedcorr', iterations=2, fine_tuning_rounds=0, usual_rounds=0, detection='tested'}"
IID = "partition={name='iid', sites=%d}"
SKEWED = "partition={name='bernoulli-dirichlet', sites=%d, p=0.7, alpha=10.0}"
NOISE = "noise={name='fedcorr', rho=%s, tau=0.5}"
INSTANCE = "noise={name='instance', rho=%s, low=0.5, high=0.7}"


@dataclass(frozen=True)
class Case:
    """Federations of one kind."""

    words: str
    preset: str
    settings: tuple[str, ...]
    noise: str = NOISE
    rhos: tuple[float, ...] = (1.0, 0.8, 0.4, 0.0)
    seeds: int = 8


MLP = 'model.name="mlp"'
DIGITS, CIFAR, HAM = (
    "extra/freeloader-small",
    "fedcorr/cifar10-iid-0.4-0.5-small",
    "fednoro/isic-0.4-0.5-0.7-features",
)
CASES = [
    Case("digits, 10 sites, iid, fednoro", DIGITS, (MLP, IID % 10, FEDNORO)),
    Case("digits, 20 sites, iid, fednoro", DIGITS, (MLP, IID % 20, FEDNORO)),
    Case("digits, 20 sites, skewed, fednoro", DIGITS, (MLP, SKEWED % 20, FEDNORO)),
    Case("digits, 20 sites, iid, fedcorr", DIGITS, (MLP, IID % 20, FEDCORR)),
    Case("CIFAR-10, LeNet-5, 20 sites, iid, fednoro", CIFAR, (IID % 20, FEDNORO), rhos=(1.0, 0.8, 0.0), seeds=2),
    Case(
        "CIFAR-10, LeNet-5, 20 sites, skewed, fednoro",
        CIFAR,
        (SKEWED % 20, FEDNORO),
        rhos=(1.0, 0.0),
        seeds=2,
    ),
    Case(
        "HAM10000, features, 20 sites, fednoro",
        HAM,
        (FEDNORO, "train.lr=0.001"),
        rhos=(1.0, 0.4, 0.0),
        seeds=2,
    ),
    Case(
        "HAM10000, features, noise that depends on the picture, fednoro",
        HAM,
        (FEDNORO, "train.lr=0.001"),
        INSTANCE,
        (1.0,),
        2,
    ),
]


def measure(case: Case, rho: float, seed: int) -> dict[str, Any]:
    """One run: what was said, and the best sites' share that it rests on."""
    from fedsift.study.running import new_run, run
    from fedsift.study.scenarios import preset_table
    from fedsift.study.study import Study
    from fedsift.study.toml_tables import apply_overrides

    settings = [*case.settings, case.noise % rho, f"seed={seed}", "evaluate.every=1000"]
    study = Study.from_table(apply_overrides(preset_table(case.preset), settings))
    with tempfile.TemporaryDirectory() as place:
        folder = new_run(study, Path(place))
        run(study, folder)
        rows = folder.rounds()
    found = Findings.last(rows)
    assert found is not None
    share = [row["best_blind_share"] for row in rows if "best_blind_share" in row][-1]
    return {
        "case": case.words,
        "rho": rho,
        "seed": seed,
        "best_share": round(share, 3),
        "said": found.no_clean_reference,
        "named": len(found.noisy),
    }


def wanted(seeds: int) -> Iterator[tuple[Case, float, int]]:
    for case in CASES:
        for seed in range(min(seeds, case.seeds)):
            for rho in case.rhos:
                yield case, rho, 200 + seed


def table(results: list[dict[str, Any]]) -> str:
    """One line a kind of federation: how often it was said, and the span of the best sites' shares."""
    lines = ["| federations | all noisy (rho 1) | rho 0.8 | rho 0.4 | clean |", "|---|---|---|---|---|"]
    for case in CASES:
        cells = []
        for rho in (1.0, 0.8, 0.4, 0.0):
            own = [line for line in results if line["case"] == case.words and line["rho"] == rho]
            shares = [line["best_share"] for line in own]
            said = sum(line["said"] for line in own)
            cells.append(f"{said} of {len(own)} ({min(shares):.2f}-{max(shares):.2f})" if own else "")
        if any(cells):
            lines.append(f"| {case.words} | {' | '.join(cells)} |")
    return "\n".join(lines)


def read() -> list[dict[str, Any]]:
    return read_list(RESULTS)


def body() -> str:
    return table(read())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page", action="store_true", help="only write the table into docs/detection.md")
    parser.add_argument("--seeds", type=int, default=8, help="at most so many of each kind")
    options = parser.parse_args()
    if options.page:
        SECTION.write(body())
        return
    results = read()
    known = {(line["case"], line["rho"], line["seed"]) for line in results}
    for case, rho, seed in wanted(options.seeds):
        if (case.words, rho, seed) not in known:
            results.append(measure(case, rho, seed))
            print(json.dumps(results[-1]), flush=True)
            write_list(RESULTS, results, ("case", "rho", "seed"))
    print(table(results))


if __name__ == "__main__":
    main()
