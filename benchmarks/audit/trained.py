"""What a cell trains, kept in the cache folder: the models know nothing of the posterior, so that one change of it is
measured in seconds on the same probabilities, and beside the same rivals.

`python -m benchmarks.audit.trained [SCENARIO ...] [--seeds 10 11 ...]` trains ahead. Who changes the training or a
rival removes the folder `audit-benchmark/trained` of the cache.
"""

from __future__ import annotations

import argparse
import io
import time
from dataclasses import dataclass, fields

import numpy as np
from benchmarks.audit.federation import Scene, federated_probabilities, standard_features
from benchmarks.audit.flags import fedcorr_flags
from benchmarks.audit.rivals import in_sample, local_probabilities, pooled_probabilities
from benchmarks.audit.scenarios import SCENARIOS
from numpy.typing import NDArray

from fedsift.core.files import cache_root, write_atomically

REPORTED = (15, 16, 17, 18, 19)
"""The seeds of the figures that are shown; README.md says on which others the settings were chosen."""
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Trained:
    """Out-of-fold probabilities `[n, K]` and the rivals' scores `[n]`; rivals are empty where no label is wrong."""

    federated: Array
    ridge: Array
    """`[]`: the chosen strength."""
    seconds: Array
    """`[]`: processor time of the cross-fitted federation."""
    pooled: Array
    local: Array
    loss: Array
    margin: Array
    suspicion: Array
    marked: Array
    """FedCorr's flags, 0 or 1."""


def trained(name: str, seed: int, scene: Scene, true: NDArray[np.int64]) -> Trained:
    """The cell's probabilities and scores, from the cache folder if they are there."""
    file = cache_root() / "audit-benchmark" / "trained" / f"{name}-{seed}.npz"
    if not file.is_file():
        made = _train(scene, true, seed)
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **{key: value.astype(np.float32) for key, value in made.items()})
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, buffer.getvalue())
    with np.load(file) as held:
        return Trained(**{field.name: held[field.name].astype(np.float64) for field in fields(Trained)})


def _train(scene: Scene, true: NDArray[np.int64], seed: int) -> dict[str, NDArray[np.generic]]:
    features = standard_features(scene)
    started = time.process_time()
    federated, ridge, history = federated_probabilities(scene, features, seed, whole=True)
    seconds = time.process_time() - started
    made: dict[str, NDArray[np.generic]] = {
        "federated": federated,
        "ridge": np.array(ridge),
        "seconds": np.array(seconds),
    }
    if (scene.given == true).all():
        return made | {key: np.zeros(0) for key in ("pooled", "local", "loss", "margin", "suspicion", "marked")}
    loss, margin = in_sample(history, features, scene.given)
    suspicion, marked = fedcorr_flags(scene, features, seed)
    return made | {
        "pooled": pooled_probabilities(scene, features),
        "local": local_probabilities(scene, features),
        "loss": loss,
        "margin": margin,
        "suspicion": suspicion,
        "marked": marked,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenarios", nargs="*", default=list(SCENARIOS))
    parser.add_argument("--seeds", nargs="+", type=int, default=list(REPORTED))
    chosen = parser.parse_args()
    for seed in chosen.seeds:
        for name in chosen.scenarios:
            started = time.process_time()
            trained(name, seed, *SCENARIOS[name](seed))
            print(name, seed, f"{time.process_time() - started:.1f} s", flush=True)


if __name__ == "__main__":
    main()
