"""`python -m benchmarks.audit.verdicts [--seeds 10 ...]`: what 100 verdicts a site, a tenth of them mistaken, change.

Every site of a CIFAR-10N federation draws the product's review plan (34 worst, 33 flagged, 33 unflagged), a simulated
reader answers it, and the audit is recalibrated by the verdicts. A reader's mistake: a wrong label is called right, a
right one wrong in favour of the proposal or, where there is none, of the next class. Measured before and after, over
all samples and over those that nobody looked at: AP and calibration error.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.audit.files import MISTAKEN, REVIEWED, VERDICTS
from benchmarks.audit.scenarios import SCENARIOS
from benchmarks.audit.trained import REPORTED, trained
from benchmarks.files import read_list, write_list
from numpy.typing import NDArray

from fedsift.formulas.metrics import average_precision, calibration_error
from fedsift.label_audit.from_probabilities import audit_labels
from fedsift.label_audit.recalibration import recalibrate
from fedsift.label_audit.review import ReviewPlan, draw_plan
from fedsift.label_audit.site_audit import SiteAudit
from fedsift.label_audit.verdicts import GIVEN, OTHER, PROPOSAL, ReviewVerdict

KEY = ("scenario", "reader_error", "seed")
ARMS = (34, 33, 33)


def read(audit: SiteAudit, plan: ReviewPlan, true: NDArray[np.int64], rng: np.random.Generator) -> list[ReviewVerdict]:
    """A reader's answers to the plan; true: `[n]` in the order of the audit."""
    told = []
    for item in plan.items:
        k = audit.row_of[item.id]
        given, proposed, truth = int(audit.given[k]), int(audit.proposed[k]), int(true[k])
        if rng.random() < MISTAKEN:
            truth = given if truth != given else (proposed if proposed != given else (given + 1) % len(audit.classes))
        decision = GIVEN if truth == given else (PROPOSAL if truth == proposed else OTHER)
        told.append(ReviewVerdict(item.id, decision, (audit.classes[truth],), "simulated"))
    return told


def cell(name: str, seed: int, reader_error: float | None) -> dict[str, Any]:
    scene, true = SCENARIOS[name](seed)
    p = trained(name, seed, scene, true).federated
    audits = audit_labels(scene.given, p, site=scene.site).sites
    rng = np.random.default_rng([seed, 70])
    before, after, wrong, seen, errors = [], [], [], [], []
    for audit in audits.values():
        truth = true[np.array([int(name) for name in audit.ids])]
        plan = draw_plan(audit, *ARMS, seed=seed)
        verdicts = read(audit, plan, truth, rng)
        moved, learnt = recalibrate(audit, plan, verdicts, reader_error)
        errors.append(learnt.reader_error)
        looked = {item.id for item in plan.items}
        before.append(audit.probability_wrong)
        after.append(moved.probability_wrong)
        wrong.append(audit.given != truth)
        seen.append(np.array([one in looked for one in audit.ids]))
    y, unseen = np.concatenate(wrong), ~np.concatenate(seen)
    parts = {"all": np.ones(len(y), np.bool_), "unseen": unseen}
    result: dict[str, Any] = {"scenario": name, "seed": seed, "reader_error": reader_error}
    result["mean_reader_error_used"] = round(float(np.mean(errors)), 4)
    for label, score in (("before", np.concatenate(before)), ("after", np.concatenate(after))):
        result[label] = {
            part: {
                "ap": round(average_precision(y[rows], score[rows]), 5),
                "calibration_error": round(calibration_error(score[rows], y[rows]), 5),
            }
            for part, rows in parts.items()
        }
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", nargs="+", type=int, default=list(REPORTED))
    parser.add_argument("--out", type=Path, default=VERDICTS)
    chosen = parser.parse_args()
    done = read_list(chosen.out)
    have = {(line["scenario"], line["seed"], line["reader_error"]) for line in done}
    for seed in chosen.seeds:
        for name in REVIEWED:
            for reader_error in (None, MISTAKEN):
                if (name, seed, reader_error) in have:
                    continue
                done.append(cell(name, seed, reader_error))
                write_list(chosen.out, done, KEY)
                print(done[-1], flush=True)


if __name__ == "__main__":
    main()
