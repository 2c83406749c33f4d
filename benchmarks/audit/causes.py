"""`python -m benchmarks.audit.causes [--seeds 100 ...]`: why bounds are missed, by controlled experiments.

One thing is changed at a time: how wrong labels are drawn, who holds which pictures, or what the fit has to find out
for itself and is told here instead. HAM10000 unless a case names the made X-rays. Tuning seeds only;
results/causes.csv holds a line a case and seed.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
from benchmarks.audit.__main__ import judged, wrong_by_site
from benchmarks.audit.federation import (
    Audit,
    Scene,
    federated_audit,
    federated_probabilities,
    standard_features,
)
from benchmarks.audit.files import CAUSES, CAUSES_KEY
from benchmarks.audit.scenarios import Labels, annotators_doubt, folded, ham, made_xrays, skin
from benchmarks.files import read_list, write_list
from numpy.typing import NDArray

from fedsift.data.noise.instance import corrupt_by
from fedsift.detection import label_posterior
from fedsift.detection.label_posterior import (
    LabelModel,
    SiteFit,
    fit_with_wrong,
    responsibilities,
    tempered_evidence,
)
from fedsift.detection.label_rates import site_rate
from fedsift.formulas.metrics import average_precision, calibration_error

Array = NDArray[np.float64]
SEEDS = (100, 101, 102, 103, 104)
EXPONENTS = np.arange(0.5, 4.01, 0.25)


# How labels are wrong, and where --------------------------------------------------------------------------------------


def shuffled(seed: int) -> tuple[Scene, Labels]:
    """The same mistakes, dealt anew among the pictures of a class at a site."""
    (scene, true), rng = skin(seed), np.random.default_rng([seed, 22])
    given = scene.given.copy()
    for rows in scene.rows:
        for c in range(scene.classes):
            same = rows[true[rows] == c]
            given[same] = given[rng.permutation(same)]
    return replace(scene, given=given), true


def redrawn(seed: int, places: Labels, noisy: list[int], *, even: bool = False) -> tuple[Scene, Labels]:
    """An annotator's labels at the noisy places, 30-50 % wrong; even: as many of every class, the hard ones first."""
    held, rng = ham(), np.random.default_rng([seed, 23])
    given = held.true.copy()
    for s in noisy:
        rows = np.flatnonzero(places == s)
        true, rate = held.true[rows], rng.uniform(0.3, 0.5)
        soft = annotators_doubt(held.features[rows], true, held.classes, rng)
        if not even:
            given[rows] = corrupt_by(soft, true, round(rate * len(rows)), rng)
            continue
        for c in range(held.classes):
            same = true == c
            given[rows[same]] = corrupt_by(soft[same], true[same], round(rate * int(same.sum())), rng)
    fold = folded(places, held.group, rng)
    return Scene(held.features, given, places, fold, held.classes), held.true


def natural(seed: int, noisy: int, *, even: bool = False) -> tuple[Scene, Labels]:
    places = ham().site
    assert places is not None
    chosen = np.random.default_rng([seed, 20]).permutation(4)[:noisy]
    return redrawn(seed, places, chosen.tolist(), even=even)


def dealt_at_random(seed: int, sites: int) -> tuple[Scene, Labels]:
    """Whole lesions dealt to sites; half of these are noisy."""
    group, rng = ham().group, np.random.default_rng([seed, 21])
    assert group is not None
    places = (rng.permutation(int(group.max()) + 1) % sites)[group]
    return redrawn(seed, places, rng.permutation(sites)[: sites // 2].tolist())


SCENES = {
    "as reported": skin,
    "no wrong label at all": lambda seed: natural(seed, 0),
    "one noisy place": lambda seed: natural(seed, 1),
    "the same mistakes shuffled among the pictures of a class": shuffled,
    "as many mistakes in every class": lambda seed: natural(seed, 2, even=True),
    "pictures dealt at random to 4 sites": lambda seed: dealt_at_random(seed, 4),
    "pictures dealt at random to 20 sites": lambda seed: dealt_at_random(seed, 20),
}

XRAYS = {
    "made X-rays: as reported": label_posterior.FOLLOWS,
    "made X-rays: told that mistakes follow no picture (d = 0)": 0.0,
}
"""d of the fit. The wrong labels of these X-rays are drawn at random, which given labels cannot tell."""


# What the fit is told -------------------------------------------------------------------------------------------------


def true_table(true: Labels, given: Labels, classes: int) -> Array:
    table = np.zeros((classes, classes))
    np.add.at(table, (true, given), 1.0)
    return table


def best_exponent(p: Array, true: Labels, model: LabelModel) -> float:
    """The exponent at which the site's true labels are likeliest, with its true shares."""
    shares = np.bincount(true, minlength=p.shape[1]) + 0.5
    each = np.arange(len(true))

    def score(a: float) -> float:
        q = tempered_evidence(p, model.with_tempering(a)) * shares
        return float(np.log(q[each, true] / q.sum(1)).sum())

    return float(max(EXPONENTS, key=score))


def told_fit(p: Array, given: Labels, true: Labels, model: LabelModel, told: frozenset[str]) -> SiteFit:
    """A noisy site's fit that knows some of the truth."""
    classes = p.shape[1]
    table = true_table(true, given, classes)
    if "exponent" in told:
        model = model.with_tempering(best_exponent(p, true, model))
    if "shares" in told:
        shares = (table.sum(1) + 0.01) / (len(true) + 0.01 * classes)
        model = replace(model, shares=shares, concentration=1e9)
    if "confusions" in told:
        apart = np.where(np.eye(classes, dtype=bool), 0.0, table)
        rate = apart.sum() / table.sum()
        relative = (apart.sum(1) + 100 * rate) / (table.sum(1) + 100) / rate
        even = apart + 0.5 * (1 - np.eye(classes))
        model = replace(model, confusion=even / even.sum(1, keepdims=True), relative_rates=relative)
    fit = fit_with_wrong(p, given, model)
    if "errors" not in told:
        return fit
    errors = table + 0.01 * np.eye(classes)
    errors /= errors.sum(1, keepdims=True)
    posterior, total, _ = responsibilities(tempered_evidence(p, model), given, model.shares, errors)
    counts = posterior.T @ np.eye(classes)[given]
    return replace(fit, posterior=posterior, counts=counts, errors=errors, log_likelihood=float(total.sum()))


TOLD = {
    "told: which sites have wrong labels": frozenset({"noisy"}),
    "told: and the exponent": frozenset({"noisy", "exponent"}),
    "told: and the sites' true class shares": frozenset({"noisy", "exponent", "shares"}),
    "told: and who is mistaken for whom, and which classes": frozenset({"noisy", "exponent", "shares", "confusions"}),
    "told: and T of every site": frozenset({"noisy", "exponent", "shares", "confusions", "errors"}),
    "told: which sites; the model learnt from right labels": frozenset({"noisy", "model", "exponent"}),
}


def told_audit(p: Array, scene: Scene, true: Labels, model: LabelModel, told: frozenset[str]) -> Audit:
    fits = []
    for rows in scene.rows:
        given = scene.given[rows]
        if (given == true[rows]).all():
            right = np.eye(scene.classes)[given]
            fit = fit_with_wrong(p[rows], given, model)
            fits.append(replace(fit, posterior=right, any_wrong=1e-9, surely_wrong=0.0))
        else:
            fits.append(told_fit(p[rows], given, true[rows], model, told))
    return Audit(model, fits)


# What is counted ------------------------------------------------------------------------------------------------------


def line(case: str, seed: int, audit: Audit, scene: Scene, true: Labels) -> dict[str, Any]:
    wrong, p = scene.given != true, wrong_by_site(audit, scene)
    rates = [site_rate(fit, scene.given[r]) for fit, r in zip(audit.fits, scene.rows, strict=True)]
    actual = [int(wrong[r].sum()) for r in scene.rows]
    off = [100 * (x.wrong - k) / max(x.samples, 1) for x, k in zip(rates, actual, strict=True)]
    noisy = [k > 0 for k in actual]
    done = judged(audit, scene, true)
    lost = sum(int(_lost(true[r], scene.given[r], scene.classes)) for r in scene.rows)
    return {
        "case": case,
        "seed": seed,
        "sites": len(rates),
        "ap": round(average_precision(wrong, p), 5) if wrong.any() else None,
        "rate_error": round(float(np.abs(off).mean()), 3),
        "bias_where_noisy": round(float(np.mean([x for x, n in zip(off, noisy, strict=True) if n])), 3)
        if any(noisy)
        else None,
        "covered": sum(x.low <= k <= x.high for x, k in zip(rates, actual, strict=True)),
        "clean_sites": len(noisy) - sum(noisy),
        "clean_told": sum(x.evidence and not n for x, n in zip(rates, noisy, strict=True)),
        "noisy_told": sum(x.evidence and n for x, n in zip(rates, noisy, strict=True)),
        "calibration_error": round(calibration_error(p, wrong), 5),
        "wrong": int(wrong.sum()),
        "wrong_of_lost_classes": lost,
        "fixed": done["fixed"],
        "harmed": done["harmed"],
    }


def _lost(true: Labels, given: Labels, classes: int) -> float:
    """Wrong labels of classes that are given as another one more often than as themselves at the site."""
    table = true_table(true, given, classes)
    apart = np.where(np.eye(classes, dtype=bool), 0.0, table)
    return float(apart[apart.max(1) > np.diag(table)].sum())


def experiment(case: str, seed: int) -> dict[str, Any]:
    if case in XRAYS:
        scene, true = made_xrays(seed)
        p, _ = _probabilities(scene, seed)
        with patch.object(label_posterior, "FOLLOWS", XRAYS[case]):
            audit = federated_audit(p, scene.given, scene.rows, scene.classes)
        return line(case, seed, audit, scene, true)
    scene, true = SCENES.get(case, skin)(seed)
    p, ridge = _probabilities(scene, seed)
    audit = federated_audit(p, scene.given, scene.rows, scene.classes)
    if case in SCENES:
        return line(case, seed, audit, scene, true)
    told, model = TOLD[case], audit.model
    if "model" in told:
        p, _ = _probabilities(replace(scene, given=true), seed, ridge)
        model = replace(model, given_shares=np.bincount(true, minlength=scene.classes) / len(true))
    return line(case, seed, told_audit(p, scene, true, model, told), scene, true)


_LAST: dict[bytes, tuple[Array, float]] = {}


def _probabilities(scene: Scene, seed: int, ridge: float | None = None) -> tuple[Array, float]:
    """Trained once for all cases that share the same labels at the same sites."""
    key = scene.given.tobytes() + scene.site.tobytes() + scene.fold.tobytes()
    if key not in _LAST:
        p, chosen, _ = federated_probabilities(scene, standard_features(scene), seed, ridge=ridge)
        _LAST.clear()
        _LAST[key] = p, chosen
    return _LAST[key]


CASES = ["as reported", *TOLD, *(case for case in SCENES if case != "as reported"), *XRAYS]
"""In the order of the page."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", nargs="+", type=int, default=list(SEEDS))
    parser.add_argument("--cases", nargs="+", default=CASES, choices=CASES, metavar="CASE")
    chosen = parser.parse_args()
    done = read_list(CAUSES)
    have = {(x["case"], x["seed"]) for x in done}
    for seed in chosen.seeds:
        for case in chosen.cases:
            if (case, seed) in have:
                continue
            done.append({"number": CASES.index(case) + 1, **experiment(case, seed)})
            write_list(CAUSES, done, CAUSES_KEY)
            print(case, seed, flush=True)


if __name__ == "__main__":
    main()
