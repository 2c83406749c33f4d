"""`python -m benchmarks.audit.chest`: NIH X-rays, eight findings, at ten sites, with missing annotation.

Every site leaves two findings out (all zero there); at half of the sites 30 % of the positives are missed and 3 % of
the negatives marked. The labels of the NIH, which are not certain themselves, count as the truth; besides, on the
pictures that radiologists read, the audit of the NIH's own labels is compared with their reading, without a bound.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
from benchmarks.audit import pictures
from benchmarks.audit.federation import ROUNDS, Scene, standard_features
from benchmarks.audit.files import CHEST
from benchmarks.audit.scenarios import FOLDS, folded
from benchmarks.audit.trained import REPORTED
from benchmarks.files import read_list, write_list
from numpy.typing import NDArray

from fedsift.detection.label_posterior import LabelModel, probability_wrong
from fedsift.formulas.metrics import average_precision, calibration_error, roc_area
from fedsift.label_audit.linear_crossfit import as_probabilities, averaged, crossfit_step, out_of_fold
from fedsift.label_audit.messages import first_reply, second_reply, shared_model, site_tempering, start_model
from fedsift.label_audit.multilabel import fit_questions, never_annotated, site_rates, two_columns

SITES = 10
RIDGE = 1e-2
Array = NDArray[np.float64]
Labels = NDArray[np.int64]


def federated(scene: Scene, given: Labels, annotated: NDArray[np.bool_], rows: list[Labels], seed: int) -> Array:
    """Out-of-fold P(finding) `[n, K]`; a finding is averaged over the sites that annotate it."""
    features, rng, held = standard_features(scene), np.random.default_rng(seed), np.arange(FOLDS)
    models = np.zeros((features.shape[1], FOLDS, given.shape[1]), np.float32)
    for _ in range(ROUNDS):
        made = [
            crossfit_step(
                models,
                features[r],
                given[r],
                scene.fold[r],
                held,
                np.full(FOLDS, RIDGE),
                rng,
                annotated=known,
            )
            for r, known in zip(rows, annotated, strict=True)
        ]
        for k in range(given.shape[1]):
            of = [(m[:, :, k], len(r)) for m, r, known in zip(made, rows, annotated, strict=True) if known[k]]
            models[:, :, k] = averaged([m for m, _ in of], [n for _, n in of])
    return as_probabilities(out_of_fold(models, features, scene.fold, held), sigmoid=True)


def centrally(
    scene: Scene, given: Labels, annotated: NDArray[np.bool_], parts: list[Labels], sites: list[Labels]
) -> Array:
    """Out-of-fold P(finding) `[n, K]` of a logistic regression for every part: all sites together, or each alone.

    A part is a list of numbers of sites; a finding is learnt from the part's sites that annotate it.
    """
    from sklearn.linear_model import LogisticRegression

    features, p = standard_features(scene), np.full(given.shape, np.nan)
    for part in parts:
        for k in range(given.shape[1]):
            known = [sites[s] for s in part if annotated[s, k]]
            if not known:
                continue
            rows = np.concatenate(known)
            for fold in range(FOLDS):
                out, used = rows[scene.fold[rows] == fold], rows[scene.fold[rows] != fold]
                if not len(out):
                    continue
                if len(np.unique(given[used, k])) < 2:
                    p[out, k] = given[used, k].mean() if len(used) else 0.5
                    continue
                model = LogisticRegression(C=1 / (RIDGE * len(used)), max_iter=100)
                p[out, k] = model.fit(features[used], given[used, k]).predict_proba(features[out])[:, 1]
    return p


def audited(
    p: Array, given: Labels, annotated: NDArray[np.bool_], rows: list[Labels]
) -> tuple[Array, NDArray[np.bool_], Array]:
    """P(wrong) `[n, K]`, NaN where a site does not annotate; the sites with evidence `[S]`, and their rates `[S]`."""
    wrong, models = np.full(p.shape, np.nan), [[LabelModel.start([1, 1])] * p.shape[1] for _ in rows]
    for k in range(p.shape[1]):
        sites = [s for s in range(len(rows)) if annotated[s, k]]
        start = start_model([first_reply(given[rows[s], k], 2) for s in sites])
        own = [second_reply(two_columns(p[rows[s], k]), given[rows[s], k], start) for s in sites]
        shared = shared_model(own, start)
        for s, reply in zip(sites, own, strict=True):
            models[s][k] = shared.model.with_tempering(site_tempering(shared, reply))
    told, shares = np.zeros(len(rows), np.bool_), np.zeros(len(rows))
    for s, r in enumerate(rows):
        fits = fit_questions(two_columns(p[r]), given[r], annotated[s], models[s])
        rates = [rate for rate in site_rates(fits, given[r]) if rate is not None]
        told[s] = any(rate.evidence for rate in rates)
        shares[s] = sum(rate.wrong for rate in rates) / max(sum(rate.samples for rate in rates), 1)
        for k, fit in enumerate(fits):
            if fit is not None:
                wrong[r, k] = probability_wrong(fit, given[r, k])
    return wrong, told, shares


def cell(seed: int) -> dict[str, Any]:
    held, rng = pictures.chest(), np.random.default_rng([seed, 60])
    assert held.group is not None
    home = rng.integers(SITES, size=int(held.group.max()) + 1)
    site = home[held.group]
    rows = [np.flatnonzero(site == s) for s in range(SITES)]
    left_out = np.stack([np.isin(np.arange(held.classes), rng.permutation(held.classes)[:2]) for _ in rows])
    noisy = rng.permutation(SITES) < SITES // 2
    given = held.true.copy()
    for s, r in enumerate(rows):
        if noisy[s]:
            chance = np.where(held.true[r] > 0, 0.3, 0.03)
            given[r] ^= rng.random(given[r].shape) < chance
        given[r[:, None], np.flatnonzero(left_out[s])] = 0
    scene = Scene(held.features, given[:, 0], site, folded(site, held.group, rng), 2)
    shares = given.sum(0) / (~left_out[site]).sum(0)
    found = np.stack([never_annotated(given[r], shares) for r in rows])
    p = federated(scene, given, ~found, rows, seed)
    told, evidence, rates = audited(p, given, ~found, rows)
    clean = np.where(left_out[site], 0, held.true)
    nothing_wrong = audited(federated(scene, clean, ~found, rows, seed), clean, ~found, rows)[1]
    judged = ~np.isnan(told)
    bad = given != held.true

    def suspicion(own: Array) -> float:
        """AP of cleanlab's self-confidence of every label, turned round."""
        return average_precision(bad[judged], np.where(given > 0, 1 - own, own)[judged])

    everybody = [np.arange(SITES)]
    return {
        "scenario": "nih-missing-annotation-10", "seed": seed, "wrong": int(bad[judged].sum()),
        "labels": int(judged.sum()), "left_out": int(left_out.sum()),
        "left_out_found": int((found & left_out).sum()), "left_out_falsely": int((found & ~left_out).sum()),
        "ap": average_precision(bad[judged], told[judged]),
        "ap_self_confidence": suspicion(p),
        "ap_pooled": suspicion(centrally(scene, given, ~found, everybody, rows)),
        "ap_local": suspicion(centrally(scene, given, ~found, [np.array([s]) for s in range(SITES)], rows)),
        "calibration_error": calibration_error(told[judged], bad[judged]),
        "noisy_sites": noisy.tolist(), "noisy_sites_told": evidence.tolist(),
        "rates": rates.round(4).tolist(),
        "true_rates": [float(bad[r][judged[r]].mean().round(4)) for r in rows],
        "clean_sites_told": int(nothing_wrong.sum()),
        "radiologists": radiologists(held, scene, rows, seed),
    }  # fmt: skip


def radiologists(held: pictures.Pictures, scene: Scene, rows: list[Labels], seed: int) -> dict[str, Any]:
    """The NIH's own labels audited, against what radiologists read, for the findings that both have."""
    reading, read_classes, names = pictures.adjudicated()
    everywhere = np.ones((len(rows), held.classes), np.bool_)
    p = federated(scene, held.true, everywhere, rows, seed)
    told, _, _ = audited(p, held.true, everywhere, rows)
    wrong, score = [], []
    for j, name in enumerate(read_classes):
        if name in names:
            k = names.index(name)
            seen = np.flatnonzero(reading[:, j] != 255)
            wrong.append(reading[seen, j] != held.true[seen, k])
            score.append(told[seen, k])
    if not wrong:
        return {"labels": 0}
    bad, values = np.concatenate(wrong), np.concatenate(score)
    rng = np.random.default_rng(0)
    draws = [rng.integers(len(bad), size=len(bad)) for _ in range(500)]
    areas = [roc_area(bad[d], values[d]) for d in draws]
    return {
        "labels": len(bad), "wrong": int(bad.sum()), "auroc": roc_area(bad, values),
        "auroc_interval": np.nanquantile(areas, [0.025, 0.975]).round(3).tolist(),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", nargs="+", type=int, default=list(REPORTED))
    for seed in parser.parse_args().seeds:
        done = read_list(CHEST)
        if seed not in {row["seed"] for row in done}:
            write_list(CHEST, [*done, cell(seed)], ("scenario", "seed"))
        print(next(row for row in read_list(CHEST) if row["seed"] == seed))


if __name__ == "__main__":
    main()
