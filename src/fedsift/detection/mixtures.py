"""Two-component Gaussian mixtures that split noisy from clean: sites by an indicator, samples by their loss."""

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

from fedsift.core.errors import ConfigError, DataError

# A mixture of two Gaussians on a line: the posterior, one step of EM, and how sites' mixtures become
# one
# ------------------------------------------------------------------------------

Floats = NDArray[np.float64]

LEAST_VARIANCE = 1e-6
"""A component that sits on one value would else have an infinite density."""
LEAST_SHARE = 1e-3
"""A component without members keeps so much: a share of 0 could never grow again."""
FEWEST, SMALLEST = 5.0, 0.01
"""A component is empty at a site when its members weigh less than so many samples, or this share of them."""
APART = 1e-6
"""Means nearer to each other than this are one group."""
MOST_STEPS, CLOSE = 1000, 1e-8
"""EM stops when no number of the mixture moves by more, or after so many steps."""


@dataclass(frozen=True)
class TwoGaussians:
    """Means, variances and shares, `[2]` each."""

    means: Floats
    variances: Floats
    shares: Floats

    @classmethod
    def of(cls, table: ArrayLike) -> TwoGaussians:
        """From its six numbers `[3, 2]`: means, variances, shares."""
        means, variances, shares = np.asarray(table, dtype=np.float64)
        return cls(means, variances, shares)

    @property
    def table(self) -> Floats:
        """Six numbers, `[3, 2]`."""
        return np.stack([self.means, self.variances, self.shares])

    def posterior(self, values: Floats) -> tuple[float, Floats]:
        """The E-step in log space: mean log-likelihood, and each value's share in both components, `[n, 2]`."""
        log_p = np.log(self.shares) - 0.5 * np.log(2 * np.pi * self.variances)
        log_p = log_p - 0.5 * (values[:, None] - self.means) ** 2 / self.variances
        total = np.logaddexp(log_p[:, 0], log_p[:, 1])
        return float(total.mean()), np.exp(log_p - total[:, None])

    def sorted(self) -> TwoGaussians:
        """The smaller mean first."""
        return TwoGaussians.of(self.table[:, np.argsort(self.means, kind="stable")])


def estimated(values: Floats, parts: Floats, added: float = 0.0) -> TwoGaussians:
    """The M-step: the mixture of these values `[n]` with these responsibilities `[n, 2]`; `added` to both variances."""
    sizes = parts.sum(0) + 10 * np.finfo(np.float64).eps
    means = values @ parts / sizes
    variances = (parts * (values[:, None] - means) ** 2).sum(0) / sizes + added
    return TwoGaussians(means, variances, sizes / len(values))


def best_split(values: Floats) -> Floats:
    """1 for the lower part of the split in two with the least squared distances to the parts' means, `[n]`."""
    order = np.argsort(values, kind="stable")
    n = len(values)
    below = values[order].cumsum()[:-1]
    sizes = np.arange(1, n)
    gain = below**2 / sizes + (values.sum() - below) ** 2 / (n - sizes)
    lower = np.zeros(n)
    lower[order[: int(gain.argmax()) + 1]] = 1.0
    return lower


# A noise filter that sites share (FedDiv) ----------------------------------------------------------------------------


def first_filter(losses: ArrayLike) -> TwoGaussians:
    """A site's mixture of its losses `[n]`, from the best split in two, smaller mean first.

    One value, or values that are all alike, give two coincident components: such a filter calls everything clean.
    """
    values = _finite(losses)
    if len(values) < 2 or np.ptp(values) <= APART:
        middle = float(values.mean()) if len(values) else 0.0
        return TwoGaussians(np.full(2, middle), np.full(2, LEAST_VARIANCE), np.array([1 - LEAST_SHARE, LEAST_SHARE]))
    lower = best_split(values)
    start = estimated(values, np.stack([lower, 1 - lower], axis=1))
    return local_filter(values, _within_bounds(start))


def local_filter(losses: ArrayLike, received: TwoGaussians, steps: int | None = None) -> TwoGaussians:
    """EM on a site's losses `[n]`, started at the received mixture (FedDiv Alg. 1): smaller mean first.

    A component whose members weigh less than max(5, 1% of n) keeps the received mean and variance and only its share
    moves: a clean site has next to no members of the noisy component, and the mean of nobody is not near that of the
    noisy sites. steps: how many of EM's; None: until nothing moves.
    """
    values = _finite(losses)
    if not len(values):
        return received
    mixture = received
    fewest = max(FEWEST, SMALLEST * len(values))
    for _ in range(MOST_STEPS if steps is None else steps):
        before = mixture.table
        parts = mixture.posterior(values)[1]
        new = estimated(values, parts)
        held = parts.sum(0) >= fewest
        mixture = _within_bounds(
            TwoGaussians(
                np.where(held, new.means, received.means),
                np.where(held, new.variances, received.variances),
                new.shares,
            )
        )
        if steps is None and np.abs(mixture.table - before).max() <= CLOSE:
            break
    return mixture.sorted()


def clean_share(losses: ArrayLike, mixture: TwoGaussians) -> Floats:
    """c_i: each loss's posterior of the component of smaller mean, `[n]` (FedDiv eq. 7); 1 where means coincide.

    Also 1 below the clean mean: a wide noisy component overtakes a narrow clean one on both sides of it.
    """
    values = _finite(losses)
    if abs(float(np.diff(mixture.means)[0])) <= APART:
        return np.ones(len(values))
    ordered = mixture.sorted()
    posterior = ordered.posterior(values)[1][:, 0]
    return np.where(values <= ordered.means[0], 1.0, posterior)


def pooled(
    mixtures: Sequence[TwoGaussians],
    sizes: Sequence[float],
    weigh: Literal["size", "members"] = "size",
    power: int = 1,
) -> TwoGaussians:
    """The sites' mixtures as one: sum_k n_k W_k / sum_k n_k for means, variances and shares alike (FedDiv eq. 5).

    weigh: "members" lets a site count in a component's mean and variance by n_k pi_kg, so by how many members it has
    there. power: of n_k / n in the variance's sum; 2 is the released code's, K times too small among K equal sites.
    """
    tables = np.stack([mixture.sorted().table for mixture in mixtures])
    n = np.asarray(sizes, dtype=np.float64)
    w = n / n.sum()
    shares = w @ tables[:, 2]
    own = w[:, None] * tables[:, 2] if weigh == "members" else np.repeat(w[:, None], 2, axis=1)
    own = own / own.sum(0)
    means = (own * tables[:, 0]).sum(0)
    variances = (own**power * tables[:, 1]).sum(0)
    return _within_bounds(TwoGaussians(means, variances, shares)).sorted()


def scaled_to_one(losses: ArrayLike) -> Floats:
    """Losses `[n]` scaled to 0..1 within a site, as FedDiv's release has them; all 0 where they are alike."""
    values = _finite(losses)
    span = float(np.ptp(values)) if len(values) else 0.0
    return (values - values.min()) / span if span > APART else np.zeros(len(values))


def _within_bounds(mixture: TwoGaussians) -> TwoGaussians:
    shares = np.maximum(mixture.shares, LEAST_SHARE)
    return TwoGaussians(mixture.means, np.maximum(mixture.variances, LEAST_VARIANCE), shares / shares.sum())


def _finite(values: ArrayLike) -> Floats:
    found = np.asarray(values, dtype=np.float64)
    if not np.isfinite(found).all():
        raise DataError("a mixture needs finite losses; lower train.lr or set train.clip")
    return found


Rule = Literal["sum", "norm"]

_ALIKE = 1e-8
"""Values within this range are one group: an unguarded fit would call all of them noisy."""


@cache
def _threads() -> ThreadpoolController:
    return ThreadpoolController()


@dataclass(frozen=True)
class SiteSplit:
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


def _fit(rows: NDArray[np.float64], seed: int, covariance: str, reg_covar: float) -> tuple[NDArray[Any], NDArray[Any]]:
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
) -> SiteSplit:
    """Part the rows `[S, K]` into clean and noisy by one fit (FedNoRo section 4.1).

    Nobody is noisy when there are fewer than two rows, all rows are alike, or one component has no members.
    """
    rows = np.asarray(matrix, dtype=np.float64)
    if not np.isfinite(rows).all():
        raise DataError("a mixture needs finite values; fill or drop missing entries first (see per_class.normalise)")
    n = len(rows)
    nobody = SiteSplit(np.zeros(0, dtype=np.int64), n)
    if n < 2 or rows.shape[1] == 0 or np.ptp(rows, axis=0).max() <= _ALIKE:
        return nobody
    members, means = _fit(rows, seed, covariance, reg_covar)
    if len(np.unique(members)) < 2:
        return nobody
    component = noisy_component(means, rule)
    return SiteSplit(np.flatnonzero(members == component).astype(np.int64), n, means[[1 - component, component]])


def split_values(values: ArrayLike, seed: int = 0) -> SiteSplit:
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
class SplitVote:
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
) -> SplitVote:
    """Fit once for every seed and keep the most frequent noisy set (FedNoRo's release: seeds 0..8)."""
    sets = [split_matrix(matrix, rule, seed, covariance, reg_covar).noisy.tolist() for seed in seeds]
    noisy, votes = vote(sets)
    return SplitVote(np.asarray(noisy, dtype=np.int64), votes, tuple(tuple(found) for found in sets))
