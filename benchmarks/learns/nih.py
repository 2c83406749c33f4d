"""`python -m benchmarks.learns.nih [--rows NAME ...]`: does each multi-label method learn where every site annotates 3
of 8 findings, and where it annotates all?

4,999 NIH X-rays with the eight most frequent findings, as frozen ImageNet features that the audit's benchmark keeps in
the cache folder (`benchmarks/audit/pictures.py`), 30 % of the patients for testing, a head with one hidden layer, 8
sites. One file a method in `results/`; methods that have one are not computed again (`--again` does). Data are found as
always, by FEDSIFT_DATA and the cache folder; the `features` extra is needed where the features are not there yet.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import benchmarks.learns.__main__ as learns
import numpy as np
from benchmarks.audit.pictures import adjudicated, chest

from fedsift.study.running import new_run, run
from fedsift.study.scenarios import preset_table
from fedsift.study.study import Study
from fedsift.study.toml_tables import apply_overrides

KIND, PRESET = "nih", "fedmlp/chestxray14-missing-5-small"
SETTINGS = (
    "model.name='features:efficientnet-lite0@112+128'",
    "train.lr=0.001",
    "train.weight_decay=0.0",
    "train.augment={}",
    "engine.trainer='cohort'",
    "engine.threads=1",
)
CLEAN = ("noise.missing=0",)
METRIC, CHANCE, SEED = "auc", 0.5, 1
ROUNDS, LAST = 30, 3
"""Rounds of a run, and how many of the last are averaged."""
WHAT = (
    "4,999 NIH X-rays with the eight most frequent findings, frozen ImageNet features and a head with one hidden "
    f"layer, 8 equal sites, Adam 0.001, {ROUNDS} rounds of all sites; every site annotates 3 of the 8 findings."
)
"""What the page says of it."""

ROWS: dict[str, Mapping[str, Any]] = {
    "fedavg": {"name": "fedavg", "rounds": ROUNDS},
    "fedavg-pl": {"name": "fedavg-pl", "rounds": ROUNDS},
    "fedfixmatch": {"name": "fedfixmatch", "rounds": ROUNDS},
    "rscfed": {"name": "rscfed", "rounds": ROUNDS, "members": 6},
    "fedirm": {"name": "fedirm", "rounds": ROUNDS, "warm_up": ROUNDS // 3},
    "fednoro-ml": {"name": "fednoro-ml", "rounds": ROUNDS},
    "fedlsr-ml": {"name": "fedlsr-ml", "rounds": ROUNDS},
    "fedmlp": {"name": "fedmlp", "rounds": ROUNDS, "warm_up": ROUNDS // 2, "min_select": 1},
    "cbafed": {"name": "cbafed", "warmup": ROUNDS // 2, "rounds": ROUNDS // 2},
}


def features(folder: Path) -> Path:
    """One row of features a picture, its findings and its patient."""
    pictures = chest()
    path = folder / "nih-features.npz"
    np.savez(
        path,
        images=pictures.features,
        labels=pictures.true,
        group=pictures.group,
        classes=np.array(adjudicated()[2]),
    )
    return path


def ending(method: Mapping[str, Any], settings: tuple[str, ...], seed: int) -> float:
    """One run: the metric's mean over the last evaluated rounds."""
    table = apply_overrides(preset_table(PRESET), [*SETTINGS, *settings, f"seed={seed}"])
    with tempfile.TemporaryDirectory() as place:
        data = {"name": "npz", "path": str(features(Path(place))), "test_fraction": 0.3, "trusted": True}
        study = Study.from_table({**table, "data": data, "method": dict(method)})
        folder = new_run(study, Path(place))
        run(study, folder)
        curve = [line[METRIC] for line in folder.rounds() if line.get(METRIC) is not None]
    return round(statistics.fmean(curve[-LAST:]), 4)


def cell(label: str, seed: int = SEED) -> dict[str, Any]:
    """Both runs of one method."""
    method = ROWS[label]
    began = time.process_time()
    return {
        "kind": KIND,
        "scenario": PRESET,
        "method": label,
        "seed": seed,
        "metric": METRIC,
        "chance": CHANCE,
        "clean": ending(method, CLEAN, seed),
        "noisy": ending(method, (), seed),
        "seconds": round(time.process_time() - began, 1),
        "reference": "fedavg",
        "settings": {"method": dict(method), "set": [*SETTINGS], "clean": [*CLEAN]},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", default=list(ROWS), choices=list(ROWS), help="only these methods")
    parser.add_argument("--again", action="store_true", help="compute what is there too")
    options = parser.parse_args()
    for label in options.rows:
        if learns.is_there(KIND, label) and not options.again:
            continue
        found = cell(label)
        learns.write(found)
        print(
            f"{label:<14} clean {found['clean']:.3f}  noisy {found['noisy']:.3f}  {found['seconds']:.0f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
