"""FedDiv, FedClean and FedELC do on a small federation of digits what they are for; seeds apart from those by which
settings were chosen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedsift.study import Study
from tests.contract.federations import play

HALF = {"name": "fedcorr", "rho": 0.5, "tau": 0.4, "sites": "exact"}
EVERYONE = {"name": "fedcorr", "rho": 1.0, "tau": 0.5, "sites": "exact"}


def summary(folder: Path, noise: dict[str, Any], seed: int, **method: Any) -> dict[str, Any]:
    """Eight sites of 168 digits, a small network."""
    study = Study.from_table(
        {
            "seed": seed,
            "data": {"name": "digits"},
            "partition": {"name": "iid", "sites": 8},
            "noise": noise,
            "model": {"name": "mlp"},
            "train": {"epochs": 2, "batch_size": 16, "lr": 0.05, "momentum": 0.5},
            "method": {"fraction": 0.5, **method},
            "engine": {"threads": 1, "trainer": "cohort"},
        }
    )
    found: dict[str, Any] = play(study, folder).read_json("summary.json")
    return found
