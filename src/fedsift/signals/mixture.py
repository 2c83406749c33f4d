"""Two-component Gaussian mixtures that part noisy from clean: sites by a signal, samples by their loss."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from threadpoolctl import ThreadpoolController

from fedsift.contract.errors import ConfigError, DataError
from fedsift.signals.two_gaussians import best_split, estimated

Rule = Literal["sum", "norm"]

_ALIKE = 1e-8
"""Values within this range are one group: an unguarded fit would call all of them noisy."""


@cache
def _threads() -> ThreadpoolController:
    return ThreadpoolController()


@dataclass(frozen=True)
class Split:
    """Who is noisy, ascending, and the share that is."""

    noisy: NDArray[np.int64]
    n: int
    means: NDArray[np.float64] | None = None
    """Component means, clean first; None when the values could not be parted."""

    @property
    def fraction(self) -> float:
        return len(self.noisy) / self.n if self.n else 0.0

    @property
    def clean(self) -> NDArray[np.int64]:
        return np.setdiff1d(np.arange(self.n), self.noisy)


def noisy_component(means: ArrayLike, rule: Rule = "sum") -> int:
    """The component with the larger mean vector (FedNoRo section 4.1).

    rule: larger by its "sum" (as released) or by its L2 "norm" (as printed).
    """
    vectors = np.asarray(means, dtype=np.float64)
    if rule == "sum":
        return int(vectors.sum(axis=1).argmax())
    if rule == "norm":
        return int(np.linalg.norm(vectors, axis=1).argmax())
    raise ConfigError(f"noisy_by = '{rule}': choose 'sum' or 'norm'")


def _fit(
    rows: NDArray[np.float64], seed: int, covariance: str, reg_covar: float
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Component of every row and the component means of one fit.

    On one thread: the tables are small, a pool of threads would only disturb the training around it.
    """
    # imported when needed: scikit-learn would add most of a second to every start of the command line
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.mixture import GaussianMixture

    mixture = GaussianMixture(2, covariance_type=covariance, reg_covar=reg_covar, random_state=seed)
    with _threads().limit(limits=1), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the last iterate still parts the groups
        members = mixture.fit_predict(rows)
    return members, mixture.means_


def split_matrix(
    matrix: ArrayLike,
    rule: Rule = "sum",
    seed: int = 0,
    covariance: str = "full",
    reg_covar: float = 1e-6,
) -> Split:
    """Part the rows `[S, K]` into clean and noisy by one fit (FedNoRo section 4.1).

    Nobody is noisy when there are fewer than two rows, all rows are alike, or one component has no members.
    """
    rows = np.asarray(matrix, dtype=np.float64)
    if not np.isfinite(rows).all():
        raise DataError(
            "a mixture needs finite values; fill or drop missing entries first (see per_class.normalise)"
        )
    n = len(rows)
    nobody = Split(np.zeros(0, dtype=np.int64), n)
    if n < 2 or rows.shape[1] == 0 or np.ptp(rows, axis=0).max() <= _ALIKE:
        return nobody
    members, means = _fit(rows, seed, covariance, reg_covar)
    if len(np.unique(members)) < 2:
        return nobody
    component = noisy_component(means, rule)
    return Split(np.flatnonzero(members == component).astype(np.int64), n, means[[1 - component, component]])


def split_values(values: ArrayLike, seed: int = 0) -> Split:
    """Part scalars `[n]`; noisy is the component with the larger mean (FedCorr Alg. 1 lines 9 and 11).

    For samples, `fraction` is the estimated noise level mu_hat of their site.
    """
    return split_matrix(np.asarray(values, dtype=np.float64).reshape(-1, 1), rule="sum", seed=seed)


def suspects(losses: ArrayLike, least: float = math.log(2)) -> NDArray[np.int64]:
    """Samples that look wrongly labelled, ascending: the component of larger loss, of it those above `least`.

    A mixture parts any losses in two, those of clean labels too. Above log 2 the network holds the given label for less
    likely than all others together, so a site whose samples are fitted well has no suspects. Their share is an estimate
    of the site's noise rate.
    """
    values = np.asarray(losses, dtype=np.float64)
    noisy = clean_probability(values, max_iter=100, tol=1e-3, reg_covar=1e-6) < 0.5
    return np.flatnonzero(noisy & (values > least)).astype(np.int64)


def clean_probability(
    losses: ArrayLike, max_iter: int = 10, tol: float = 1e-2, reg_covar: float = 5e-4
) -> NDArray[np.float64]:
    """Posterior of the component of smaller loss for each sample, `[n]` (DivideMix section 3.1; settings as released).

    Losses are first scaled to 0..1. All samples are clean where they cannot be parted: fewer than two, or all alike.
    """
    values = np.asarray(losses, dtype=np.float64)
    if not np.isfinite(values).all():
        raise DataError("a mixture needs finite losses; lower train.lr or set train.clip")
    if len(values) < 2 or np.ptp(values) <= _ALIKE:
        return np.ones(len(values))
    scaled = (values - values.min()) / np.ptp(values)
    return _posterior_of_smaller(scaled, max_iter, tol, reg_covar)


def _posterior_of_smaller(
    values: NDArray[np.float64], max_iter: int, tol: float, reg_covar: float
) -> NDArray[np.float64]:
    """EM for two Gaussians on a line, from the best split in two; what scikit-learn's does, without its overhead.

    A site's fit takes part of a millisecond instead of six, which counts where every site fits two in every visit.
    """
    lower = best_split(values)
    mixture, bound = estimated(values, np.stack([lower, 1 - lower], axis=1), reg_covar), -np.inf
    for _ in range(max_iter):
        before, (bound, parts) = bound, mixture.posterior(values)
        mixture = estimated(values, parts, reg_covar)
        if abs(bound - before) < tol:
            break
    return mixture.posterior(values)[1][:, int(mixture.means.argmin())]


def vote(sets: Iterable[Iterable[int]]) -> tuple[list[int], int]:
    """The most frequent set, ascending, and its number of votes; ties go to the one met first."""
    counts: dict[frozenset[int], int] = {}
    for members in sets:
        key = frozenset(int(member) for member in members)
        counts[key] = counts.get(key, 0) + 1
    if not counts:
        return [], 0
    winner = max(counts, key=lambda key: counts[key])
    return sorted(winner), counts[winner]


@dataclass(frozen=True)
class Vote:
    """The outcome of several fits that differ by their seed alone."""

    noisy: NDArray[np.int64]
    votes: int
    """How many fits found exactly this set."""
    sets: tuple[tuple[int, ...], ...]
    """What each fit found, in the order of the seeds."""


def split_by_vote(
    matrix: ArrayLike,
    seeds: Sequence[int] = tuple(range(9)),
    rule: Rule = "sum",
    covariance: str = "full",
    reg_covar: float = 1e-6,
) -> Vote:
    """Fit once for every seed and keep the most frequent noisy set (FedNoRo's release: seeds 0..8)."""
    sets = [split_matrix(matrix, rule, seed, covariance, reg_covar).noisy.tolist() for seed in seeds]
    noisy, votes = vote(sets)
    return Vote(np.asarray(noisy, dtype=np.int64), votes, tuple(tuple(found) for found in sets))
