"""The five methods in small, over three sites that are the same for all: digits, or digits with four findings each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fedsift.study.study import Study

METHODS: dict[str, dict[str, Any]] = {
    "fednoro": {"rounds": 4, "warm_up": 2},
    "fedcorr": {
        "iterations": 1,
        "visit_fraction": 0.34,
        "fine_tuning_rounds": 1,
        "usual_rounds": 1,
        "fraction": 1.0,
    },
    "rhfl": {"rounds": 2, "pretrain_rounds": 1, "pretrain_epochs": 4},
    "feddpcont": {"rounds": 2, "fraction": 1.0},
    "fedmlp": {"rounds": 4, "warm_up": 2, "min_select": 1},
    "fedavg": {"rounds": 4},
}
SITES = 3
FINDINGS = {
    "even": (0, 2, 4, 6, 8),
    "five or more": (5, 6, 7, 8, 9),
    "round": (0, 6, 8, 9),
    "prime": (2, 3, 5, 7),
}


def study_of(method: str, folder: Path, /, **changes: Any) -> Study:
    """Every site must answer in every round: a run can only end when whoever was killed came back."""
    table: dict[str, Any] = {
        "name": f"faults {method}",
        "seed": 5,
        "data": {"name": "digits"},
        "partition": {"name": "iid", "sites": SITES},
        "noise": {"name": "fedcorr", "rho": 0.4, "tau": 0.5, "sites": "exact"},
        "public": {"from_train": 0.1},
        "model": {"name": "cnn"},
        "train": {"epochs": 4, "batch_size": 16, "lr": 0.05, "momentum": 0.5},
        "method": {"name": method, **METHODS[method]},
        "federation": {"quorum": 1.0, "deadline": 300},
        "engine": {"threads": 1, "trainer": "one"},
    }
    if method == "fedmlp":
        table["data"] = {"name": "npz", "path": str(findings(folder))}
        table["noise"] = {"name": "class-missing", "missing": 2}
        del table["public"]
    return Study.from_table(table | changes)


def stages_of(study: Study) -> list[tuple[str, int]]:
    """Each stage and the number of its first round, from 1."""
    found, number = [], 1
    for stage in study.method.stages():
        if stage.rounds:
            found.append((stage.name, number))
        number += stage.rounds
    return found


def findings(folder: Path) -> Path:
    """Digits with four yes/no findings each, as X-rays have them."""
    from sklearn.datasets import load_digits

    path = folder / "findings.npz"
    if not path.is_file():
        digits = load_digits()
        images = (digits.images * (255 / 16)).astype(np.uint8)
        labels = np.stack([np.isin(digits.target, found) for found in FINDINGS.values()], axis=1).astype(np.int64)
        folder.mkdir(parents=True, exist_ok=True)
        np.savez(
            path,
            images=images[:1200],
            labels=labels[:1200],
            test_images=images[1200:],
            test_labels=labels[1200:],
            classes=np.array(list(FINDINGS)),
        )
    return path


def settled(study: Study) -> Study:
    """With what follows from the federation, as the run completes it: stages depend on it."""
    return study.completed(study.facts(study.load_data()))
