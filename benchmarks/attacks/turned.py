"""`python -m benchmarks.attacks.turned [--minutes N]`: do honest sites ever turn round, and does everybody who attacks?

Honest federations of ten sites, over every kind of skew, wrong labels and training. For every site and exchange in
which the cohort has a direction: how far the site has turned round since its last update (`gate.turn`), and how far
it would have, had it sent the same update with the sign turned.
"""

from __future__ import annotations

import argparse
import itertools
import random
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.attacks.accuracy import FINDINGS, WITH, study_of
from benchmarks.attacks.honest import NOISES, PARTITIONS
from benchmarks.attacks.light import conducted
from benchmarks.files import read_tree, write_tree
from sklearn.datasets import load_digits

from fedsift.runtime.gate import protection as gate
from fedsift.runtime.gate.protection import GateLimits, Protection

FILE = Path(__file__).parent / "results" / "turned.csv"
KEY = ("federation",)
SEED, ROUNDS = 5, 8
"""The limit was chosen on seeds 101 to 103, with other surveys of few classes."""
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
FEW: tuple[tuple[str, str], ...] = (
    ("2 classes", "linear"), ("4 findings", "linear"), ("4 findings", "mlp"), ("10 classes", "linear")
)  # fmt: skip
"""Few classes, and models without a hidden layer: where an honest site may well turn round."""
SHARES = (0.1, 0.2, 0.3, 0.4)


class Turning(Protection):
    """Refuses nobody and writes down every turn."""

    honest: list[float]
    hostile: list[float]
    later: list[float]
    """Turns over four exchanges and more."""
    past: list[Mapping[str, float]]

    def _turned(self, before: Mapping[str, float], now: Mapping[str, float]) -> dict[str, str]:
        self.later += [gate.turn(old[site], way) for old in self.past[:-3] for site, way in now.items() if site in old]
        self.past.append(now)
        for site, way in now.items():
            if site in before:
                self.honest.append(gate.turn(before[site], way))
                self.hostile.append(gate.turn(before[site], -way))
        return {}


def some_wrong(folder: Path, labels: str, share: float, sites: int = 2) -> Path:
    """Digits at ten sites; the last have this share of their labels shifted by one class, or of findings turned."""
    digits = load_digits()
    images = (digits.images * (255 / 16)).astype(np.uint8)
    draw = np.random.default_rng(SEED)
    order, owner = draw.permutation(len(images)), np.repeat(np.arange(10), 120)
    train, test, noisy = order[: len(owner)], order[len(owner) :], owner >= 10 - sites
    if labels == "4 findings":
        clean = np.stack([np.isin(digits.target, WITH[k]) for k in range(len(FINDINGS))], axis=1).astype(np.int64)
        turned = noisy[:, None] & (draw.random((len(owner), len(FINDINGS))) < share)
        given, names = np.where(turned, 1 - clean[train], clean[train]), list(FINDINGS)
    else:
        classes = int(labels.split()[0])
        clean = digits.target // (10 // classes)
        shifted = noisy & (draw.random(len(owner)) < share)
        given, names = (
            np.where(shifted, (clean[train] + 1) % classes, clean[train]),
            [str(k) for k in range(classes)],
        )
    path = folder / "some-wrong.npz"
    sites = np.array([f"site-{number:02d}" for number in owner])
    np.savez(
        path,
        images=images[train],
        labels=given,
        site=sites,
        test_images=images[test],
        test_labels=clean[test],
        classes=np.array(names),
    )
    return path


def few(folder: Path, labels: str, model: str, share: float, training: int) -> dict[str, Any]:
    data = {"name": "npz", "path": str(some_wrong(folder, labels, share))}
    return turns(training, data=data, partition={"name": "natural"}, model={"name": model})


def turns(training: int, **changes: Any) -> dict[str, Any]:
    method = {"name": "fedavg", "rounds": ROUNDS}
    study = study_of("fedavg", Path(), seed=SEED, train=TRAININGS[training], method=method, **changes)
    watching = Turning(GateLimits(opposed=0.0), judges_turns=True)
    watching.honest, watching.hostile, watching.later, watching.past = [], [], [], []
    conducted(study, study.load_data(), protection=watching)
    told = sum(turn > watching.limits.turned for turn in watching.hostile)
    return {
        "updates": len(watching.honest),
        "honest": round(max(watching.honest, default=0.0), 3),
        "refused": sum(turn > watching.limits.turned for turn in watching.honest),
        "told": told,
        "by and by": round(max(watching.later, default=0.0), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.attacks.turned")
    parser.add_argument("--minutes", type=float, default=1e6, help="begin nothing after so long")
    until = time.monotonic() + 60 * parser.parse_args().minutes
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        jobs: dict[str, Callable[[], dict[str, Any]]] = {}
        for (partition, own), (wrong, noise), each in itertools.product(
            PARTITIONS.items(), WRONG.items(), range(len(TRAININGS))
        ):
            jobs[f"{partition}; {wrong}; {each}"] = partial(turns, each, partition=own, noise=noise)
        for (labels, model), share, each in itertools.product(FEW, SHARES, range(len(TRAININGS))):
            key = f"{labels}, {model}; two sites {100 * share:.0f} % wrong; {each}"
            jobs[key] = partial(few, Path(place), labels, model, share, each)
        order = list(jobs.items())
        random.Random(SEED).shuffle(order)  # so that what is there covers all kinds, wherever it was stopped
        for key, job in order:
            found = read_tree(FILE, KEY)
            if key not in found and time.monotonic() < until:
                write_tree(FILE, found | {key: job()}, KEY)


if __name__ == "__main__":
    main()
