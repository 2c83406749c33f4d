"""The demo's studies: the same noisy federation of handwritten digits under two methods."""

from __future__ import annotations

from typing import Any

from fedsift.study.study import Study

ROUNDS = 20


def demo_studies(seed: int) -> list[Study]:
    """FedAvg and FedNoRo on 10 sites of digits; at 4 of them, half or more of the labels are wrong.

    The wrong labels are plausible ones: each noisy site has an annotator of its own that errs on hard samples.
    """
    shared: dict[str, Any] = {
        "seed": seed,
        "data": {"name": "digits"},
        "partition": {"name": "bernoulli-dirichlet", "sites": 10, "p": 0.9, "alpha": 2.0},
        "noise": {"name": "instance", "rho": 0.4, "low": 0.5, "high": 0.7},
        "model": {"name": "cnn"},
        "train": {"epochs": 5, "batch_size": 16, "lr": 0.05, "momentum": 0.5},
    }
    return [
        Study.from_table({**shared, "name": "demo fedavg", "method": {"name": "fedavg", "rounds": ROUNDS}}),
        Study.from_table(
            {**shared, "name": "demo fednoro", "method": {"name": "fednoro", "rounds": ROUNDS, "warm_up": 6}}
        ),
    ]
