"""Joint EM, the rival of tempering: the model is trained through T, and T is fitted in turn with it.

At site s the loss of a sample is -log sum_c q(c | x, s) T_s[c, given], q = softmax(z(x) + log pi_s - log pi): its slope
is q - r with r the responsibilities under the present model, so that every step of the descent is an M step towards
them (forward correction). Each of the k models leaves a fold out, as always; T_s and pi_s are fitted once a round, on
probabilities out of fold, by the product's own equations without tempering.

"retrained": the simpler form. The tempered fit's posteriors, out of fold, are the soft targets of a second training.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from benchmarks.audit.federation import Audit, Scene, federated_probabilities
from numpy.typing import NDArray

from fedsift.signals.label_crossfit import CrossfitSettings, as_probabilities, averaged, out_of_fold
from fedsift.signals.label_posterior import LabelModel, SiteFit, responsibilities

Array = NDArray[np.float64]
Floats = NDArray[np.float32]
Labels = NDArray[np.int64]
_TINY = 1e-9


@dataclass(frozen=True)
class Schedule:
    """How joint training is begun, and for how long."""

    warm: int = 3
    """Rounds on the given labels before T enters: few, as a model that knows them by heart leaves T the identity."""
    rounds: int = 12
    """Rounds through T."""
    fit_errors: bool = True
    """Whether T_s and pi_s are fitted anew after every round; else they stay the tempered fit's."""


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


def joint(
    scene: Scene, features: Floats, seed: int, tempered: Audit, ridge: float, schedule: Schedule
) -> tuple[Array, Audit]:
    """Probabilities out of fold `[n, K]` of joint training, and the audit that its own T and pi make of them."""
    rng, rows = np.random.default_rng([seed, 60]), scene.rows
    held = np.arange(int(scene.fold.max()) + 1)
    identity = np.eye(scene.classes)
    shares = [fit.shares for fit in tempered.fits]
    learnt = [fit.any_wrong * fit.errors + (1 - fit.any_wrong) * identity for fit in tempered.fits]
    pi = np.average(shares, axis=0, weights=[len(r) for r in rows])
    models = np.zeros((features.shape[1], len(held), scene.classes), np.float32)
    fits = tempered.fits
    p = np.zeros((len(scene.given), scene.classes))
    for step in range(schedule.warm + schedule.rounds):
        errors = [identity] * len(rows) if step < schedule.warm else learnt
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
        if schedule.fit_errors and step >= schedule.warm:
            shares, learnt = [fit.shares for fit in fits], [fit.errors for fit in fits]
            pi = np.average(shares, axis=0, weights=[len(r) for r in rows])
    return p, Audit(replace(tempered.model, given_shares=pi, tempering=1.0), fits)


def _one_step(
    p: Array, given: Labels, model: LabelModel, shares: Array, errors: Array, before: SiteFit
) -> SiteFit:
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


def retrained(
    scene: Scene, features: Floats, seed: int, audit: Audit, ridge: float
) -> tuple[Array, LabelModel]:
    """Probabilities of a second training on the audit's posteriors, and the model that an audit of them starts with."""
    targets = np.zeros((len(scene.given), scene.classes))
    for fit, rows in zip(audit.fits, scene.rows, strict=True):
        targets[rows] = fit.posterior
    pi = targets.mean(0) + 0.5 / len(targets)
    pi /= pi.sum()
    shifts = np.stack([np.log(fit.shares + _TINY) - np.log(pi) for fit in audit.fits])
    p, _, _ = federated_probabilities(scene, features, seed, targets=targets, ridge=ridge, shifts=shifts)
    return p, LabelModel.start(pi)
