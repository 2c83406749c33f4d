"""`python -m benchmarks.audit [SCENARIO ...] [--seeds 10 11 ...]`: the label audit beside others, with the truth known.

Every cell (a scenario with a seed) is a row of `results/cells.csv`; cells that are there are not computed again.
README.md says on which seeds the settings were chosen. `--summary` prints what is there.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.audit.federation import Audit, Scene, federated_audit
from benchmarks.audit.rivals import adjusted_by_site, normalised_margin, self_confidence
from benchmarks.audit.scenarios import SCENARIOS
from benchmarks.audit.summary import SETTINGS, keep, print_summary, read
from benchmarks.audit.trained import REPORTED, trained
from numpy.typing import NDArray

from fedsift.detection.label_posterior import probability_wrong
from fedsift.detection.label_rates import applied, flagged, site_rate
from fedsift.formulas.metrics import average_precision, calibration_error, roc_area

RESULTS = Path(__file__).parent / "results"
Array = NDArray[np.float64]
Labels = NDArray[np.int64]


def ranking(wrong: NDArray[np.bool_], score: Array) -> dict[str, float]:
    """AP, ROC area and the share of wrong labels among as many suspects as there are wrong ones."""
    budget = np.argsort(-score, kind="stable")[: int(wrong.sum())]
    return {
        "ap": round(average_precision(wrong, score), 5),
        "auroc": round(roc_area(wrong, score), 5),
        "recall_at_budget": round(float(wrong[budget].mean()), 5) if len(budget) else float("nan"),
    }


def wrong_by_site(audit: Audit, scene: Scene) -> Array:
    p = np.zeros(len(scene.given))
    for fit, rows in zip(audit.fits, scene.rows, strict=True):
        p[rows] = probability_wrong(fit, scene.given[rows])
    return p


def judged(audit: Audit, scene: Scene, true: Labels) -> dict[str, Any]:
    """Rates, intervals, calibration, and what applying by the default rule does."""
    wrong = scene.given != true
    sites, flags, applies, harms, fixes = [], 0, 0, 0, 0
    for fit, rows in zip(audit.fits, scene.rows, strict=True):
        given, p = scene.given[rows], probability_wrong(fit, scene.given[rows])
        rate = site_rate(fit, given)
        change = applied(p, given, fit.proposed, rate)
        flags += int(flagged(p, rate).sum())
        applies += int(change.sum())
        fixes += int((change & wrong[rows] & (fit.proposed == true[rows])).sum())
        harms += int((change & ~wrong[rows]).sum())
        sites.append(
            {
                "samples": len(rows),
                "wrong": int(wrong[rows].sum()),
                "estimated": rate.wrong,
                "low": rate.low,
                "high": rate.high,
                "evidence": rate.evidence,
                "swapped": fit.swapped,
            }
        )
    return {
        "settings": SETTINGS,
        "tempering": round(audit.model.tempering, 3),
        "concentration": round(audit.model.concentration, 2),
        "calibration_error": round(calibration_error(wrong_by_site(audit, scene), wrong), 5),
        "flagged": flags,
        "applied": applies,
        "fixed": fixes,
        "harmed": harms,
        "sites": sites,
    }


def cell(name: str, seed: int, parts: bool = True) -> dict[str, Any]:
    """One scenario with one seed; parts: also the rows that tell where the gain comes from."""
    scene, true = SCENARIOS[name](seed)
    wrong = scene.given != true
    made = trained(name, seed, scene, true)
    started = time.process_time()
    audit = federated_audit(made.federated, scene.given, scene.rows, scene.classes)
    done = time.process_time()
    result: dict[str, Any] = {
        "scenario": name,
        "seed": seed,
        "samples": len(true),
        "wrong": int(wrong.sum()),
        "ridge": round(float(made.ridge), 6),
        "ours": judged(audit, scene, true),
        "cpu_seconds": {"crossfit": round(float(made.seconds), 1), "audit": round(done - started, 1)},
    }
    if not wrong.any():
        return result

    def posterior(p: Array, **options: Any) -> Array:
        return wrong_by_site(federated_audit(p, scene.given, scene.rows, scene.classes, **options), scene)

    scores = {
        "ours": wrong_by_site(audit, scene),
        "cleanlab, each site alone": self_confidence(made.local, scene.given),
        "cleanlab, pooled": self_confidence(made.pooled, scene.given),
        "cleanlab, pooled, normalised margin": normalised_margin(made.pooled, scene.given),
        "cleanlab at each site on pooled": adjusted_by_site(made.pooled, scene),
        "self-confidence, federated": self_confidence(made.federated, scene.given),
        "final model's loss": made.loss,
        "margins averaged over rounds": made.margin,
        "FedCorr's flags": made.suspicion,
    }
    if parts:
        scores |= {
            "ours without class shares": posterior(made.federated, class_shares=False),
            "ours without the floor": posterior(made.federated, min_count=0),
            "posterior on pooled": posterior(made.pooled),
            "posterior on local": posterior(made.local),
        }
    marked = made.marked > 0
    result["ranking"] = {label: ranking(wrong, score) for label, score in scores.items()}
    result["fedcorr"] = {"flagged": int(marked.sum()), "flagged_wrong": int((marked & wrong).sum())}
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenarios", nargs="*", default=list(SCENARIOS))
    parser.add_argument("--seeds", nargs="+", type=int, default=list(REPORTED))
    parser.add_argument("--no-parts", action="store_true", help="without the rows on where the gain comes from")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--summary", action="store_true", help="only print what is there")
    chosen = parser.parse_args()
    for seed in chosen.seeds if not chosen.summary else []:
        for name in chosen.scenarios:
            if seed in {cell["seed"] for cell in read(chosen.results).get(name, [])}:
                continue
            result = cell(name, seed, not chosen.no_parts)
            keep(chosen.results, result)
            print(name, seed, {k: v["ap"] for k, v in result.get("ranking", {}).items()}, flush=True)
    print_summary(chosen.results)


if __name__ == "__main__":
    main()
