"""FedCorr's flags as a rival: the labels that it holds suspect or changed, on the same features and sites.

FedCorr as published (its mixtures always find a noisy group), a linear model on the standardised features, two
visits of its first stage and its relabelling; no fold is left out, since FedCorr leaves none out.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.audit.federation import Scene
from numpy.typing import NDArray

import fedsift
from fedsift.core import codec
from fedsift.protocol.notebook import evidence_of
from fedsift.runs.folder import RunFolder

METHOD: dict[str, Any] = {
    "name": "fedcorr",
    "detection": "paper",
    "iterations": 2,
    "fine_tuning_rounds": 10,
    "usual_rounds": 0,
    "fraction": 1.0,
}
TRAIN = {"epochs": 3, "batch_size": 32, "lr": 0.01, "momentum": 0.5}


def fedcorr_flags(
    scene: Scene, features: NDArray[np.float32], seed: int
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Suspicion `[n]` (flagged before unflagged, by loss within each) and the flags `[n]`."""
    ids = [f"{i:06d}" for i in range(len(scene.given))]
    names = [f"site-{s:03d}" for s in scene.site]
    # FedCorr corrects what it trains on: a token test set, so that nothing is held out of the sites
    data = fedsift.Arrays(
        features,
        scene.given,
        site=names,
        ids=ids,
        test_images=features[:100],
        test_labels=scene.given[:100],
        classes=[str(k) for k in range(scene.classes)],
    )
    suspicion, flagged = np.zeros(len(ids)), np.zeros(len(ids), np.bool_)
    with tempfile.TemporaryDirectory() as folder:
        run = fedsift.run(
            data=data,
            model="linear",
            method=METHOD,
            train=TRAIN,
            seed=seed,
            out=Path(folder),
            progress=False,
            engine={"workers": 0},
        )
        point = RunFolder(run.path).restore()
        assert point is not None
        pages = {name: codec.decoded(page, run.path / name) for name, page in point.notebooks.items()}
    for s, rows in enumerate(scene.rows):
        found = evidence_of(pages.get(f"site-{s:03d}", {}))
        if found.suspicion is not None:
            assert len(found.suspicion) == len(rows)
            suspicion[rows] = np.nan_to_num(found.suspicion.double().numpy())
        if found.flagged is not None:
            flagged[rows] = found.flagged.numpy()
    return suspicion / (1 + suspicion.max()) + flagged, flagged
