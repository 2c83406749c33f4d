"""Golden operations of the data package: partitions, noise matrices, instance-dependent noise.

Each adapter maps (inputs, variant) to what the product's own functions give. A value that the definition
gives only as an expectation is measured and returned as `Measured`: compare it with `agrees`, not with a
tolerance.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from golden_harness import Adapters

from fedsift.core.numbers import floor_count
from fedsift.data.noise import instance
from fedsift.data.noise import transition_matrix as matrices
from fedsift.data.noise.base import NoiseInput
from fedsift.data.noise.class_missing import draw_masks
from fedsift.data.noise.fedcorr import FedCorrNoise, choose_samples, redraw
from fedsift.data.partitions import bernoulli_dirichlet as shares
from fedsift.data.partitions import open_set
from fedsift.data.partitions.base import Pool
from fedsift.data.partitions.iid import Iid
from fedsift.data.partitions.overlapping import draw_sample
from fedsift.data.splits import shares_to_counts

Inputs = dict[str, Any]
DRAWS = 40_000

_adapters = Adapters()


class Measured(float):
    """A measured share, mean or variance, with what it may differ by (section 6 of the vectors' README)."""

    allowance: Callable[[float], float]

    @classmethod
    def share(cls, values: Any) -> Measured:
        """A frequency: 5 standard errors; a probability of 0 or 1 must hold in every draw."""
        array = np.asarray(values, np.float64)
        measured = cls(array.mean())
        measured.allowance = lambda expected: 5 * (expected * (1 - expected) / array.size) ** 0.5 + 1e-12
        return measured

    @classmethod
    def mean(cls, values: Any) -> Measured:
        array = np.asarray(values, np.float64)
        measured = cls(array.mean())
        measured.allowance = lambda expected: 5 * float(array.std()) / array.size**0.5 + 1e-12 * abs(expected)
        return measured

    @classmethod
    def variance(cls, values: Any) -> Measured:
        measured = cls(np.asarray(values, np.float64).var())
        measured.allowance = lambda expected: 0.05 * expected
        return measured

    def agrees(self, expected: float) -> bool:
        return abs(self - expected) <= self.allowance(expected)


def generator(*path: int) -> np.random.Generator:
    return np.random.default_rng([20, *path])


def placed(partition: Any, labels: Any, n_classes: int, seed: int = 0) -> list[Any]:
    pool = Pool(np.asarray(labels, np.int64), tuple(str(c) for c in range(n_classes)))
    return list(partition.assign(pool, generator(seed)).rows)


def exactly_once(rows: list[Any], n: int) -> bool:
    return bool(np.array_equal(np.sort(np.concatenate(rows)), np.arange(n)))


@_adapters.add("partitions", "iid", "paper", "official", "both")
def iid(inputs: Inputs, variant: str) -> Inputs:
    n, partition = (
        inputs["n_samples"],
        Iid(inputs["n_clients"], drop_remainder=bool(inputs.get("drop_remainder")), allow_empty=True),
    )
    trials = [placed(partition, np.zeros(n), 1, seed) for seed in range(20)]
    sizes = [len(part) for rows in trials for part in rows]
    return {
        "every_sample_exactly_once": all(exactly_once(rows, n) for rows in trials),
        "size_min": min(sizes),
        "size_max": max(sizes),
        "assigned": len(np.unique(np.concatenate(trials[0]))),
    }


@_adapters.add("partitions", "bernoulli_dirichlet", "paper", "official", "both")
def bernoulli_dirichlet(inputs: Inputs, variant: str) -> Inputs:
    sites, classes, p, alpha = (inputs[key] for key in ("n_clients", "n_classes", "p", "alpha"))
    n, holders = inputs["samples_per_class"], inputs["holders"]
    labels = np.repeat(np.arange(classes), n)
    rng = generator(1)
    holds, _ = shares.draw_holders(sites, classes, p, rng)
    owner = shares.assign_by_shares(labels, holds, alpha, rng)
    rows = placed(shares.BernoulliDirichlet(sites, p, alpha), labels, classes)
    many, _ = shares.draw_holders(DRAWS, classes, p, rng)
    counts = np.concatenate(
        [
            np.bincount(shares.draw_owners(n, np.arange(holders), alpha, rng), minlength=holders)
            for _ in range(DRAWS // holders + 1)
        ]
    )
    kept = 1.0 - (1.0 - p) ** classes  # P(a row is not empty)
    return {
        "every_sample_exactly_once": exactly_once(rows, len(labels)),
        "no_empty_row": bool(many.any(axis=1).all()),
        "classes_only_where_phi_is_1": bool(holds[owner, labels].all()),
        "p_row_kept": kept,
        "p_entry": Measured.share(many),
        "mean_classes_per_client": Measured.mean(many.sum(axis=1)),
        "client_count_mean": Measured.mean(counts),
        "client_count_variance": Measured.variance(counts),
    }


@_adapters.add("partitions", "class_without_holder", "paper", "guarded")
def class_without_holder(inputs: Inputs, variant: str) -> Inputs:
    labels = np.repeat(np.arange(8), 10)
    if inputs["scheme"] == "bernoulli_dirichlet":
        partition: Any = shares.BernoulliDirichlet(sites=3, p=0.05)
    else:
        partition = open_set.OpenSet(sites=3, q=0.2)
    trials = [placed(partition, labels, 8, seed) for seed in range(30)]
    held = [set(labels[np.concatenate(rows)]) == set(range(8)) for rows in trials]
    return {
        "every_class_has_a_holder": all(held),
        "every_sample_exactly_once": all(exactly_once(rows, len(labels)) for rows in trials),
    }


@_adapters.add("partitions", "openset_rows", "paper")
def openset_rows(inputs: Inputs, variant: str) -> Inputs:
    classes, q = inputs["n_classes"], inputs["q"]
    rows = open_set.draw_open_rows(np.full((DRAWS, classes), q), generator(2))
    return {
        "no_client_with_all": not rows.all(axis=1).any(),
        "no_client_with_none": bool(rows.any(axis=1).all()),
        "p_row_kept": 1.0 - q**classes - (1.0 - q) ** classes,
        "p_entry": Measured.share(rows),
        "mean_classes_per_client": Measured.mean(rows.sum(axis=1)),
    }


@_adapters.add("partitions", "openset_uniform", "paper")
def openset_uniform(inputs: Inputs, variant: str) -> Inputs:
    rng = generator(3)
    counts = [open_set.uniform_counts(inputs["class_samples"], inputs["holders"], rng) for _ in range(50)]
    totals = {int(part.sum()) for part in counts}
    assert len(totals) == 1
    return {"size_min": int(np.min(counts)), "size_max": int(np.max(counts)), "assigned": totals.pop()}


@_adapters.add("partitions", "openset_dirichlet", "paper")
def openset_dirichlet(inputs: Inputs, variant: str) -> Inputs:
    rng = generator(4)
    drawn = np.array([shares.draw_shares(inputs["holders"], 1.0, rng) for _ in range(DRAWS)])
    totals = {int(shares_to_counts(row, inputs["class_samples"]).sum()) for row in drawn[:2000]}
    assert len(totals) == 1
    return {
        "assigned": totals.pop(),
        "share_mean": Measured.mean(drawn[:, 0]),
        "share_variance": Measured.variance(drawn),
    }


@_adapters.add("partitions", "overlapping", "paper", "official", "both")
def overlapping(inputs: Inputs, variant: str) -> Inputs:
    rng = generator(5)
    draws = [draw_sample(inputs["pool"], inputs["size"], rng) for _ in range(220)]
    member = np.zeros((len(draws), inputs["pool"]), np.float32)
    for k, draw in enumerate(draws):
        member[k, draw] = 1
    pairs = (member @ member.T)[np.triu_indices(len(draws), 1)]
    return {
        "client_size": {len(draw) for draw in draws}.pop(),
        "no_repetition_inside": bool((member.sum(axis=1) == inputs["size"]).all()),
        "pair_overlap_mean": Measured.mean(pairs),
        "pair_overlap_variance": Measured.variance(pairs),
    }


@_adapters.add("partitions", "missing_labels", "paper", "guarded")
def missing_labels(inputs: Inputs, variant: str) -> Inputs:
    sites, classes, missing = (inputs[key] for key in ("n_clients", "n_classes", "missing"))
    masks = np.array([draw_masks(sites, classes, missing, generator(6, seed)) for seed in range(200)])
    a_site = {int(count) for count in masks.sum(axis=2).ravel()}
    assert len(a_site) == 1
    return {
        "annotated_per_client": a_site.pop(),
        "min_clients_per_class": int(masks.sum(axis=1).min()),
        "total_annotations": int(masks[0].sum()),
    }


@_adapters.add("noise_matrices", "matrix", "paper", "official", "both")
def matrix(inputs: Inputs, variant: str) -> Inputs:
    classes, rate, counts = inputs["n_classes"], inputs["rate"], inputs["class_counts"]
    drawn_classes = inputs.get("drawn_classes") or classes
    measured: Any = None
    if inputs["kind"] == "symmetric":
        built = matrices.symmetric_matrix(classes, rate)
    elif inputs["kind"] == "pair":
        built = matrices.pair_matrix(classes, rate)
    else:  # FedCorr's noise draws label by label; its matrix is known here alone
        built = (1 - rate) * np.eye(classes)
        built[:, :drawn_classes] += rate / drawn_classes
        measured = [redrawn_shares(c, classes, rate, drawn_classes) for c in range(classes)]
    wrong = 1.0 - np.diagonal(built)
    share = np.array(counts) / np.sum(counts)
    return {
        "T": measured or built.tolist(),
        "per_class_rate": wrong.tolist(),
        "effective_rate": float(share @ wrong),
        "noisy_class_distribution": (share @ built).tolist(),
    }


def redrawn_shares(true: int, classes: int, rate: float, drawn_classes: int) -> list[Measured]:
    """Row `true` of the matrix by which FedCorr's noise corrupts labels."""
    rng = generator(9, true)
    chosen = choose_samples(DRAWS, rate, rng, exact=False)
    given = redraw(np.full(DRAWS, true), chosen, drawn_classes, rng)
    return [Measured.share(given == c) for c in range(classes)]


@_adapters.add("noise_matrices", "random_matrix", "corrected")
def random_matrix(inputs: Inputs, variant: str) -> Inputs:
    built = matrices.random_matrix(inputs["rate"], inputs["offsets"], inputs["shares"])
    return {"T": built.tolist(), "row_sums": built.sum(axis=1).tolist()}


@_adapters.add("noise_matrices", "random_matrix_constraints", "corrected")
def random_matrix_constraints(inputs: Inputs, variant: str) -> Inputs:
    low, high = max(0.0, 1.0 - inputs["rate"] - 0.05), min(1.0, 1.0 - inputs["rate"] + 0.05)
    drawn = np.array(
        [matrices.draw_random_matrix(inputs["n_classes"], inputs["rate"], generator(7, k)) for k in range(500)]
    )
    diagonals = np.diagonal(drawn, axis1=1, axis2=2)
    assert diagonals.min() >= low - 1e-12
    assert diagonals.max() <= high + 1e-12
    sums = drawn.sum(axis=2)
    return {
        "diagonal_low": low,
        "diagonal_high": high,
        "row_sum": float(sums.flat[np.abs(sums - 1).argmax()]),
        "min_entry": min(0.0, float(drawn.min())),
    }


@_adapters.add("noise_matrices", "fedcorr_clients", "paper", "both")
def fedcorr_clients(inputs: Inputs, variant: str) -> Inputs:
    sites, classes = 4000, inputs["n_classes"]
    clean = {str(k): np.arange(100) % classes for k in range(sites)}
    scene = NoiseInput(clean, classes, lambda site, purpose: generator(10, *f"{site} {purpose}".encode()))
    done = FedCorrNoise(rho=inputs["rho"], tau=inputs["tau"]).corrupt(scene)
    return {
        "mean_level_of_noisy": Measured.mean([done.level[site] for site in done.noisy]),
        "mean_level": Measured.mean(list(done.level.values())),
        "mean_wrong_share": Measured.mean([(done.given[s] != clean[s]).mean() for s in clean]),
    }


@_adapters.add("noise_matrices", "openset_estimate", "paper")
def openset_estimate(inputs: Inputs, variant: str) -> Inputs:
    """The best matrix that a site can see when only some classes occur: a fact about the setting (FedDPCont sec. 3.4),
    which no method of the product computes."""
    seen = np.array(inputs["T"]) * np.isin(np.arange(len(inputs["T"])), inputs["observed"])
    total = seen.sum(axis=1, keepdims=True)
    return {"T_observed": (seen / np.where(total > 0, total, 1.0)).tolist()}


@_adapters.add("h_idn_noise", "probabilities", "paper", "both", "guarded")
def probabilities(inputs: Inputs, variant: str) -> Inputs:
    soft, labels = np.array(inputs["soft_labels"]), np.array(inputs["labels"])
    if inputs.get("floor") is not None:
        soft = instance.floored(soft, inputs["floor"])
    return {
        "misclassification": instance.misclassification(soft, labels).tolist(),
        "draw": instance.draw_weights(soft, labels).tolist(),
        "flip": instance.flip_distribution(soft, labels).tolist(),
    }


@_adapters.add("h_idn_noise", "marginals", "paper", "both", "guarded")
def marginals(inputs: Inputs, variant: str) -> Inputs:
    soft, labels, rate = np.array(inputs["soft_labels"]), np.array(inputs["labels"]), inputs["rate"]
    rng = generator(8)
    drawn = floor_count(rate * len(labels))
    given = np.array([instance.corrupt_by(soft, labels, drawn, rng, floor=0.0) for _ in range(DRAWS)])
    changed = given != labels
    counts = {int(count) for count in changed.sum(axis=1)}
    assert len(counts) == 1
    count = counts.pop()
    return {
        "n_noisy": count,
        "inclusion": [Measured.share(changed[:, j]) for j in range(len(labels))],
        "label_distribution": [
            [Measured.share(given[:, j] == c) for c in range(soft.shape[1])] for j in range(len(labels))
        ],
        "noise_rate": count / len(labels),
    }


@_adapters.add("h_idn_noise", "counts", "guarded", "official")
def counts(inputs: Inputs, variant: str) -> Inputs:
    pairs = zip(inputs["rate"], inputs["size"])
    forgiving = variant != "official"
    return {"count": [floor_count(rate * size, forgiving=forgiving) for rate, size in pairs]}


ADAPTERS = _adapters.table
