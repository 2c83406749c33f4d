"""The demo's studies: the same noisy federation of handwritten digits under two methods."""

from __future__ import annotations

from typing import Any

from fedsift.study.study import Study

ROUNDS = 30


def demo_studies(seed: int) -> list[Study]:
    """FedAvg and FedNoRo on 10 sites of digits, 40 % of them noisy at levels between 0.6 and 1."""
    shared: dict[str, Any] = {
        "seed": seed,
        "data": {"name": "digits"},
        "partition": {"name": "bernoulli-dirichlet", "sites": 10, "p": 0.9, "alpha": 2.0},
        "noise": {"name": "fedcorr", "rho": 0.4, "tau": 0.6, "sites": "exact"},
        "model": {"name": "cnn"},
        "train": {"epochs": 3, "batch_size": 16, "lr": 0.05, "momentum": 0.5},
    }
    return [
        Study.from_table({**shared, "name": "demo fedavg", "method": {"name": "fedavg", "rounds": ROUNDS}}),
        Study.from_table(
            {**shared, "name": "demo fednoro", "method": {"name": "fednoro", "rounds": ROUNDS, "warm_up": 8}}
        ),
    ]
