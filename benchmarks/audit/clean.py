"""`python -m benchmarks.audit.clean`: 200 federations without a wrong label, of 10 and of 20 sites.

Classes are normal clouds that overlap (a tenth to a quarter of the samples lie nearer to another class), sites equal or
skewed, of 40 to 400 samples: cross-fitted and audited as always. Counted: sites told "wrong labels here", and labels
flagged. One in four federations is then given 30 % wrong labels at one site, to see that the answer can also be yes.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.audit.federation import Scene, federated_audit, federated_probabilities, standard_features
from benchmarks.audit.files import CLEAN
from benchmarks.audit.scenarios import dealt, flipped, folded
from benchmarks.files import read_list, write_list

from fedsift.detection.label_posterior import probability_wrong
from fedsift.detection.label_rates import FALSE_ALARM, flagged, site_rate


def federation(seed: int, noisy: bool) -> tuple[Scene, np.ndarray]:
    rng = np.random.default_rng([seed, 50])
    sites = 10 if seed % 2 else 20
    classes, width = int(rng.integers(2, 8)), 24
    count = int(rng.integers(80, 300)) * sites
    means = rng.normal(size=(classes, width)) * rng.uniform(0.45, 0.9)
    true = rng.choice(classes, count, p=rng.dirichlet(np.full(classes, 5.0)))
    features = (means[true] + rng.normal(size=(count, width))).astype(np.float32)
    site = dealt(true, sites, None if rng.random() < 0.5 else 2.0, rng)
    rates = np.where(np.arange(sites) == 0, 0.3 if noisy else 0.0, 0.0)
    given = flipped(true, site, rates, classes, rng)
    return Scene(features, given, site, folded(site, None, rng), classes), true


def one(seed: int, noisy: bool) -> dict[str, Any]:
    scene, _ = federation(seed, noisy)
    p, _, _ = federated_probabilities(scene, standard_features(scene), seed)
    audit = federated_audit(p, scene.given, scene.rows, scene.classes)
    told, marked = [], 0
    for fit, rows in zip(audit.fits, scene.rows, strict=True):
        rate = site_rate(fit, scene.given[rows])
        told.append(rate.evidence)
        marked += int(flagged(probability_wrong(fit, scene.given[rows]), rate).sum())
    return {
        "seed": seed,
        "noisy": noisy,
        "sites": len(told),
        "told": int(sum(told)),
        "first_told": bool(told[0]),
        "samples": len(scene.given),
        "flagged": marked,
        "tempering": round(audit.model.tempering, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--federations", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--out", type=Path, default=CLEAN)
    chosen = parser.parse_args()
    done = read_list(chosen.out)
    have = {(line["seed"], line["noisy"]) for line in done}
    for seed in range(chosen.first, chosen.first + chosen.federations):
        for noisy in (False, True) if seed % 4 == 0 else (False,):
            if (seed, noisy) not in have:
                done.append(one(seed, noisy))
        if seed % 20 == 19 or seed == chosen.first + chosen.federations - 1:
            write_list(chosen.out, done, ("noisy", "seed"))
    print(json.dumps(summary(done), indent=1))


def summary(done: list[dict[str, Any]]) -> dict[str, Any]:
    clean, noisy = [x for x in done if not x["noisy"]], [x for x in done if x["noisy"]]
    return {
        "stated_false_alarm": FALSE_ALARM,
        "clean_federations": len(clean),
        "clean_sites_told_share": sum(x["told"] for x in clean) / max(sum(x["sites"] for x in clean), 1),
        "clean_federations_with_any_told": sum(x["told"] > 0 for x in clean),
        "clean_flagged_share": sum(x["flagged"] for x in clean) / max(sum(x["samples"] for x in clean), 1),
        "noisy_sites_found_share": sum(x["first_told"] for x in noisy) / max(len(noisy), 1),
    }


if __name__ == "__main__":
    main()
