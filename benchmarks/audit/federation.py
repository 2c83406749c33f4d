"""A federation in one process: the sites' parts of cross-fitting and of the audit, one after the other.

Nothing passes between the sites but what the product sends: averaged models, and the three exchanges of whole numbers
in tables with the default floor.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedsift.detection.label_posterior import LabelModel, SiteFit
from fedsift.detection.label_rates import shares_of
from fedsift.formulas.small_counts import MIN_COUNT
from fedsift.label_audit.linear_crossfit import (
    RIDGES,
    as_probabilities,
    averaged,
    crossfit_step,
    held_out_likelihoods,
    out_of_fold,
    own_scale,
    share_shift,
    standardised,
)
from fedsift.label_audit.messages import first_reply, last_fit, second_reply, shared_model, start_model

Array = NDArray[np.float64]
Labels = NDArray[np.int64]
ROUNDS = 12


@dataclass(frozen=True)
class Scene:
    """Pictures at sites, with given labels and folds."""

    features: NDArray[np.float32]
    given: Labels
    site: Labels
    fold: Labels
    classes: int

    @property
    def rows(self) -> list[Labels]:
        return [np.flatnonzero(self.site == s) for s in range(int(self.site.max()) + 1)]


def standard_features(scene: Scene) -> NDArray[np.float32]:
    """Each site's by its own means and deviations, as in an audit."""
    found = np.empty((len(scene.site), scene.features.shape[1] + 1), np.float32)
    for rows in scene.rows:
        found[rows] = standardised(scene.features[rows], own_scale(scene.features[rows], scene.given[rows]))
    return found


def federated_shares(scene: Scene, min_count: int = MIN_COUNT) -> Array:
    """The first exchange: counts of given labels."""
    return shares_of([first_reply(scene.given[rows], scene.classes, min_count) for rows in scene.rows])


def federated_probabilities(
    scene: Scene,
    features: NDArray[np.float32],
    seed: int,
    *,
    folds: int = 5,
    rounds: int = ROUNDS,
    targets: Array | None = None,
    ridge: float | None = None,
    shifts: Array | None = None,
    whole: bool = False,
) -> tuple[Array, float, list[NDArray[np.float32]]]:
    """Out-of-fold p `[n, K]` of averaged softmax regressions, the ridge's strength, and the models of every round.

    whole: one more model, the last, that leaves nothing out.
    The strength is chosen on the first fold alone, by the likelihood of the given labels that it left out.
    """
    if shifts is None:
        shares = federated_shares(scene)
        shifts = np.stack(
            [share_shift(np.bincount(scene.given[r], minlength=scene.classes), shares) for r in scene.rows]
        )
    if ridge is None:
        held = np.zeros(len(RIDGES), np.int64)
        models = _train(scene, features, scene.given, held, np.array(RIDGES), shifts, rounds, seed)[-1]
        sums = [
            held_out_likelihoods(models, features[r], scene.given[r], scene.fold[r], held, shifts[s])
            for s, r in enumerate(scene.rows)
        ]
        ridge = RIDGES[int(np.sum(sums, axis=0).argmax())]
    held = np.append(np.arange(folds), -1) if whole else np.arange(folds)
    wanted = scene.given if targets is None else targets
    history = _train(scene, features, wanted, held, np.full(len(held), ridge), shifts, rounds, seed)
    z = out_of_fold(history[-1], features, scene.fold, held)
    assert not np.isnan(z).any()
    return as_probabilities(z), float(ridge), history


def _train(
    scene: Scene,
    features: NDArray[np.float32],
    targets: NDArray[np.generic],
    held: Labels,
    ridge: Array,
    shifts: Array,
    rounds: int,
    seed: int,
) -> list[NDArray[np.float32]]:
    rng = np.random.default_rng(seed)
    models = np.zeros((features.shape[1], len(held), scene.classes), np.float32)
    parts = [(features[rows], targets[rows], scene.fold[rows]) for rows in scene.rows]
    sizes = [len(rows) for rows in scene.rows]
    history = []
    for _ in range(rounds):
        made = [
            crossfit_step(models, x, y, fold, held, ridge, rng, shift=shifts[s])
            for s, (x, y, fold) in enumerate(parts)
            if len(x)
        ]
        models = averaged(made, [size for size in sizes if size])
        history.append(models)
    return history


@dataclass(frozen=True)
class Audit:
    """What the sites end up with."""

    model: LabelModel
    fits: list[SiteFit]


def federated_audit(
    probabilities: Array,
    given: Labels,
    rows: list[Labels],
    classes: int,
    *,
    min_count: int = MIN_COUNT,
    class_shares: bool = True,
    start: LabelModel | None = None,
) -> Audit:
    """The first two exchanges and the sites' own fits; `class_shares=False` keeps every site's shares at pi.

    start: what the first exchange ends in, where the probabilities come of a model that was trained on other labels.
    """
    start = start or start_model([first_reply(given[r], classes, min_count) for r in rows])
    if not class_shares:
        start = replace(start, concentration=1e9)
    replies = [second_reply(probabilities[r], given[r], start, min_count) for r in rows]
    shared = shared_model(replies, start)
    if not class_shares:
        shared = replace(shared, model=replace(shared.model, concentration=1e9))
    fits = [last_fit(probabilities[r], given[r], shared, own) for r, own in zip(rows, replies, strict=True)]
    return Audit(shared.model, fits)
