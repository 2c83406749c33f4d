"""Small federations of digits for every method: five sites, a few rounds."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from benchmarks.attacks.accuracy import several_labels

from fedsift.methods._base import methods
from fedsift.study.study import Study


def small_study(name: str, folder: Path, **changes: Any) -> Study:
    """Two of five sites have wrong labels; the method runs in its tiny form."""
    method = methods.get(name)
    table: dict[str, Any] = {
        "name": name,
        "seed": 21,
        "data": {"name": "digits"},
        "partition": {"name": "iid", "sites": 5},
        "noise": {"name": "fedcorr", "rho": 0.4, "tau": 0.5, "sites": "exact"},
        "model": {"name": "mlp"},
        "train": {"epochs": 1, "batch_size": 32, "lr": 0.05, "momentum": 0.5},
        "method": {"name": name},
        "engine": {"threads": 1},
    }
    if "multiclass" not in method.tasks:
        table["data"] = {"name": "npz", "path": str(several_labels(folder))}
        table["noise"] = {"name": "class-missing", "missing": 2}
    if "public" in method.needs:
        table["public"] = {"from_train": 0.1}
    table.update(changes)
    study = Study.from_table(table)
    return dataclasses.replace(study, method=study.method.tiny())
