"""`python -m benchmarks.audit.speed`: 50,000 samples, 20 sites, five folds on frozen features; seconds and memory.

Rows are CIFAR-10N's first 12,000 pictures repeated with a little noise, so that nothing need be embedded for it.
"""

from __future__ import annotations

import resource
import time

import numpy as np
from benchmarks.audit import pictures
from benchmarks.audit.federation import Scene, federated_audit, federated_probabilities, standard_features
from benchmarks.audit.files import SPEED
from benchmarks.audit.scenarios import dealt, folded
from benchmarks.files import write_list

COUNT = 50_000


def main() -> None:
    held, rng = pictures.cifar10n(), np.random.default_rng(0)
    assert held.given is not None
    rows = np.arange(COUNT) % len(held.true)
    features = held.features[rows]
    for start in range(0, COUNT, 5000):
        features[start : start + 5000] += rng.normal(0, 0.1, features[start : start + 5000].shape)
    site = dealt(held.true[rows], 20, 1.0, rng)
    scene = Scene(features, held.given["worse_label"][rows], site, folded(site, None, rng), 10)
    wall, cpu = time.perf_counter(), time.process_time()
    ready = standard_features(scene)
    p, _, _ = federated_probabilities(scene, ready, 0)
    federated_audit(p, scene.given, scene.rows, 10)
    result = {
        "samples": COUNT, "sites": 20, "folds": 5,
        "cpu_seconds": round(time.process_time() - cpu, 1), "wall_seconds": round(time.perf_counter() - wall, 1),
        "peak_megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }  # fmt: skip
    write_list(SPEED, [result], ("samples", "sites"))
    print(result)


if __name__ == "__main__":
    main()
