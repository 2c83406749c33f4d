"""`python -m benchmarks.attacks.turned [--minutes N]`: do honest sites ever turn round, and does everybody who attacks?

Honest federations of ten sites, over every kind of skew, wrong labels and training. For every site and exchange in
which the cohort has a direction: how far the site has turned round since its last update (`facing.turn`), and how far
it would have, had it sent the same update with the sign turned.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from benchmarks.attacks.accuracy import study_of
from benchmarks.attacks.files import read, write
from benchmarks.attacks.honest import NOISES, PARTITIONS
from benchmarks.attacks.light import conducted

from fedsift.engines import facing
from fedsift.engines.protection import GateLimits, Protection

FILE = Path(__file__).parent / "results" / "turned.json"
SEED, ROUNDS = 5, 8
"""The limit was chosen on seeds 101 to 103."""
WRONG: Mapping[str, dict[str, Any]] = {
    **NOISES,
    "some sites 50-100 % wrong": {"name": "fedcorr", "rho": 0.4, "tau": 0.5},
    "half of the sites 20-100 % wrong": {"name": "fedcorr", "rho": 0.5, "tau": 0.2},
    "all sites 0-100 % wrong": {"name": "fedcorr", "rho": 1.0, "tau": 0.0},
}
TRAININGS: tuple[dict[str, Any], ...] = (
    {"epochs": 1, "batch_size": 32, "lr": 0.2, "momentum": 0.9},
    {"epochs": 5, "batch_size": 32, "lr": 0.1, "momentum": 0.5},
    {"epochs": 2, "batch_size": 16, "lr": 0.03, "momentum": 0.5},
    {"epochs": 20, "batch_size": 32, "lr": 0.1, "momentum": 0.0},
)
"""From little to much in a round."""


class Turning(Protection):
    """Refuses nobody and writes down every turn."""

    honest: list[float]
    hostile: list[float]

    def _turned(self, before: Mapping[str, float], now: Mapping[str, float]) -> dict[str, str]:
        for site, way in now.items():
            if site in before:
                self.honest.append(facing.turn(before[site], way))
                self.hostile.append(facing.turn(before[site], -way))
        return {}


def turns(partition: str, wrong: str, training: int) -> dict[str, Any]:
    study = study_of(
        "fedavg",
        Path(),
        seed=SEED,
        partition=PARTITIONS[partition],
        noise=WRONG[wrong],
        train=TRAININGS[training],
        method={"name": "fedavg", "rounds": ROUNDS},
    )
    watching = Turning(GateLimits(opposed=0.0), tells=True)
    watching.honest, watching.hostile = [], []
    conducted(study, study.spread(), protection=watching)
    told = sum(turn > watching.limits.turned for turn in watching.hostile)
    return {
        "updates": len(watching.honest),
        "honest": round(max(watching.honest, default=0.0), 3),
        "refused": sum(turn > watching.limits.turned for turn in watching.honest),
        "told": told,
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.attacks.turned")
    parser.add_argument("--minutes", type=float, default=1e6, help="begin nothing after so long")
    until = time.monotonic() + 60 * parser.parse_args().minutes
    torch.set_num_threads(1)
    for partition, wrong in itertools.product(PARTITIONS, WRONG):
        for training in range(len(TRAININGS)):
            key, found = f"{partition}; {wrong}; {training}", read(FILE)
            if key not in found and time.monotonic() < until:
                write(FILE, found | {key: turns(partition, wrong, training)})


if __name__ == "__main__":
    main()
