"""Joint EM, the rival of tempering: the model is trained through T, and T is fitted in turn with it.

At site s the loss of a sample is -log sum_c q(c | x, s) T_s[c, given], q = softmax(z(x) + log pi_s - log pi): its slope
is q - r with r the responsibilities under the present model, so that every step of the descent is an M step towards
them (forward correction). Each of the k models leaves a fold out, as always; T_s and pi_s are fitted once a round, on
probabilities out of fold, by the product's own equations without tempering.

"retrained": the simpler form. The tempered fit's posteriors, out of fold, are the soft targets of a second training.

`python -m benchmarks.audit.joint` compares all of them on tuning seeds and writes results/joint.csv.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

import numpy as np
from benchmarks.audit.__main__ import wrong_by_site
from benchmarks.audit.federation import (
    Audit,
    Scene,
    federated_audit,
    federated_probabilities,
    standard_features,
)
from benchmarks.audit.files import COMPARED, JOINT, JOINT_KEY, MOMENTS
from benchmarks.audit.scenarios import SCENARIOS
from benchmarks.files import read_tree, write_tree
from numpy.typing import NDArray

from fedsift.detection.label_posterior import LabelModel, SiteFit, responsibilities
from fedsift.formulas.metrics import average_precision, calibration_error
from fedsift.label_audit.linear_crossfit import CrossfitSettings, as_probabilities, averaged, out_of_fold

Array = NDArray[np.float64]
Floats = NDArray[np.float32]
Labels = NDArray[np.int64]
_TINY = 1e-9


WARM = 3
"""Rounds on the given labels before T enters: few, as a model that knows them by heart leaves T the identity."""
SEEDS = (100, 101, 102)


def through_errors(
    weights: Floats,
    x: Floats,
    given: Labels,
    fold: Labels,
    held: Labels,
    ridge: float,
    rng: np.random.Generator,
    shift: Array,
    errors: Array,
    settings: CrossfitSettings,
) -> Floats:
    """One site's part of a round: `crossfit_step` whose targets are the present responsibilities."""
    w, velocity = weights.copy(), np.zeros_like(weights)
    size, models, classes = w.shape
    chance = np.maximum(errors, _TINY).T[given].astype(np.float32)
    for _ in range(settings.epochs_for(len(x))):
        order = rng.permutation(len(x))
        for start in range(0, len(order), settings.batch):
            rows = order[start : start + settings.batch]
            z = (x[rows] @ w.reshape(size, -1)).reshape(len(rows), models, classes) + shift.astype(np.float32)
            q = as_probabilities(z).astype(np.float32)
            r = q * chance[rows, None]
            error = q - r / r.sum(-1, keepdims=True)
            used = (fold[rows, None] != held).astype(np.float32)
            error *= (used / np.maximum(used.sum(0), 1.0))[:, :, None]
            slope = (x[rows].T @ error.reshape(len(rows), -1)).reshape(w.shape) + np.float32(ridge) * w
            velocity = np.float32(settings.momentum) * velocity + slope
            w -= np.float32(settings.lr) * velocity
    return w


def joint(scene: Scene, features: Floats, seed: int, tempered: Audit, ridge: float) -> list[tuple[Array, Audit]]:
    """Probabilities out of fold `[n, K]` of joint training at each of `MOMENTS`, and the audit that its own T and pi,
    begun at the tempered fit's, make of them."""
    rng, rows = np.random.default_rng([seed, 60]), scene.rows
    held = np.arange(int(scene.fold.max()) + 1)
    identity = np.eye(scene.classes)
    shares = [fit.shares for fit in tempered.fits]
    learnt = [fit.any_wrong * fit.errors + (1 - fit.any_wrong) * identity for fit in tempered.fits]
    pi = np.average(shares, axis=0, weights=[len(r) for r in rows])
    models = np.zeros((features.shape[1], len(held), scene.classes), np.float32)
    found = []
    for step in range(WARM + MOMENTS[-1]):
        errors = [identity] * len(rows) if step < WARM else learnt
        made = [
            through_errors(
                models, features[r], scene.given[r], scene.fold[r], held, ridge, rng,
                np.log(shares[s] + _TINY) - np.log(pi + _TINY), errors[s], CrossfitSettings(),
            )
            for s, r in enumerate(rows)
            if len(r)
        ]  # fmt: skip
        models = averaged(made, [len(r) for r in rows if len(r)])
        p = as_probabilities(out_of_fold(models, features, scene.fold, held))
        model = replace(tempered.model, given_shares=pi, tempering=1.0)
        fits = [
            _one_step(p[r], scene.given[r], model, shares[s], learnt[s], fit)
            for s, (r, fit) in enumerate(zip(rows, tempered.fits, strict=True))
        ]
        if step >= WARM:
            shares, learnt = [fit.shares for fit in fits], [fit.errors for fit in fits]
            pi = np.average(shares, axis=0, weights=[len(r) for r in rows])
        if step + 1 - WARM in MOMENTS:
            found.append((p, Audit(replace(tempered.model, given_shares=pi, tempering=1.0), fits)))
    return found


def _one_step(p: Array, given: Labels, model: LabelModel, shares: Array, errors: Array, before: SiteFit) -> SiteFit:
    """E and M of a site on probabilities out of fold: pi_s drawn to pi, T_s by counts with a sample's worth of T_s."""
    evidence = p / np.maximum(model.given_shares, _TINY)
    posterior, total, _ = responsibilities(evidence, given, shares, errors, 0.0)
    counts = posterior.T @ np.eye(p.shape[1])[given]
    n, kappa = len(given), model.concentration
    new_shares = (posterior.sum(0) + kappa * model.shares) / (n + kappa)
    new_errors = counts + errors
    new_errors /= new_errors.sum(1, keepdims=True)
    return replace(
        before, posterior=posterior, counts=counts, shares=new_shares, errors=new_errors,
        log_likelihood=float(total.sum()), any_wrong=1.0, follows=0.0, swapped=False,
    )  # fmt: skip


def retrained(scene: Scene, features: Floats, seed: int, audit: Audit, ridge: float) -> tuple[Array, LabelModel]:
    """Probabilities of a second training on the audit's posteriors, and the model that an audit of them starts with."""
    targets = np.zeros((len(scene.given), scene.classes))
    for fit, rows in zip(audit.fits, scene.rows, strict=True):
        targets[rows] = fit.posterior
    pi = targets.mean(0) + 0.5 / len(targets)
    pi /= pi.sum()
    shifts = np.stack([np.log(fit.shares + _TINY) - np.log(pi) for fit in audit.fits])
    p, _, _ = federated_probabilities(scene, features, seed, targets=targets, ridge=ridge, shifts=shifts)
    return p, LabelModel.start(pi)


def measured(audit: Audit, scene: Scene, true: Labels, *, spread: bool = True) -> dict[str, float]:
    """AP, the sites' mean rate error and bias in points, and calibration error; spread=False: P(wrong) as T says it."""
    wrong, p = scene.given != true, wrong_by_site(audit, scene)
    if not spread:
        for fit, rows in zip(audit.fits, scene.rows, strict=True):
            p[rows] = fit.doubt(scene.given[rows])
    errors = [100 * (p[rows].mean() - wrong[rows].mean()) for rows in scene.rows if len(rows)]
    return {
        "ap": round(average_precision(wrong, p), 5),
        "rate_error": round(float(np.abs(errors).mean()), 3),
        "bias": round(float(np.mean(errors)), 3),
        "calibration_error": round(calibration_error(p, wrong), 5),
    }


def compared(name: str, seed: int) -> dict[str, Any]:
    scene, true = SCENARIOS[name](seed)
    features = standard_features(scene)
    p, ridge, _ = federated_probabilities(scene, features, seed)
    tempered = federated_audit(p, scene.given, scene.rows, scene.classes)
    told = {"tempered (ours)": measured(tempered, scene, true)}
    for rounds, (later, audit) in zip(MOMENTS, joint(scene, features, seed, tempered, ridge), strict=True):
        told[f"joint, {rounds} rounds"] = measured(audit, scene, true, spread=False)
        start = LabelModel.start(audit.model.given_shares)
        again = federated_audit(later, scene.given, scene.rows, scene.classes, start=start)
        told[f"joint, {rounds} rounds, then tempered"] = measured(again, scene, true)
    second, start = retrained(scene, features, seed, tempered, ridge)
    again = federated_audit(second, scene.given, scene.rows, scene.classes, start=start)
    told["retrained on posteriors, then tempered"] = measured(again, scene, true)
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenarios", nargs="*", default=list(COMPARED))
    parser.add_argument("--seeds", nargs="+", type=int, default=list(SEEDS))
    chosen = parser.parse_args()
    done = read_tree(JOINT, JOINT_KEY)
    for seed in chosen.seeds:
        for name in chosen.scenarios:
            if seed not in done.get(name, {}):
                done.setdefault(name, {})[seed] = compared(name, seed)
                write_tree(JOINT, done, JOINT_KEY)
                print(name, seed, done[name][seed], flush=True)


if __name__ == "__main__":
    main()
