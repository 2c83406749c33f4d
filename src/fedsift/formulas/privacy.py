"""Private releases: FedDPCont's randomised labels and their inversion (Alg. 1, Def. 2), Gaussian noise on updates."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedsift.core.errors import ConfigError, DataError


def response_probabilities(epsilon: float | None, n_classes: int) -> tuple[float, float]:
    """Chance of releasing the own label, and of one given other label: e^eps and 1 over (e^eps + K - 1).

    Written with e^-eps, so that a huge epsilon cannot overflow. None: no privacy noise, (1, 0).
    """
    if epsilon is None:
        return 1.0, 0.0
    if not epsilon >= 0:
        raise ConfigError(f"epsilon = {epsilon}: it must be 0 or more, or none for no privacy noise")
    small = math.exp(-epsilon)
    scale = 1.0 + (n_classes - 1) * small
    return 1.0 / scale, small / scale


def randomised_response(
    labels: ArrayLike, epsilon: float | None, n_classes: int, random: np.random.Generator
) -> NDArray[np.int64]:
    """One randomised label a sample, `[n] -> [n]`: the own one with chance T_ii, else any other one.

    Release once and keep it: every further release of the same labels adds epsilon to what is given away.
    """
    own = np.asarray(labels, dtype=np.int64)
    keep, _ = response_probabilities(epsilon, n_classes)
    if n_classes < 2:
        return own.copy()
    stays = random.random(own.shape) < keep
    shift = random.integers(1, n_classes, size=own.shape)
    return np.where(stays, own, (own + shift) % n_classes)


def project_on_simplex(vector: ArrayLike) -> NDArray[np.float64]:
    """The nearest distribution, `[K] -> [K]`: max(v - theta, 0) with theta such that the sum is 1."""
    v = np.asarray(vector, dtype=np.float64)
    v = v - v.max()  # the projection does not mind a shift, but rounding minds huge entries
    falling = np.sort(v)[::-1]
    excess = (np.cumsum(falling) - 1.0) / np.arange(1, len(v) + 1)
    last = np.flatnonzero(falling > excess)[-1]
    return np.asarray(np.maximum(v - excess[last], 0.0))


def response_noise(epsilon: float | None, n_classes: int, samples: float) -> float:
    """E ||raw - pi||^2: how far recovered shares lie from the true ones pi, by the randomisation alone.

    (T_ii (1 - T_ii) + (K - 1) T_ij (1 - T_ij)) / (n (T_ii - T_ij)^2), whatever pi is; inf for epsilon = 0.
    """
    keep, other = response_probabilities(epsilon, n_classes)
    spread = keep * (1.0 - keep) + (n_classes - 1) * other * (1.0 - other)
    return spread / (samples * (keep - other) ** 2) if keep > other else math.inf


def shrink_to_uniform(raw: ArrayLike, noise: float) -> NDArray[np.float64]:
    """1 / K + s (raw - 1 / K) with s = A / (A + noise), `[K] -> [K]`; negative shares are then cut.

    A estimates ||pi - 1 / K||^2, what there is to know beyond equal shares: ||raw - 1 / K||^2 - noise, at
    least 0 and at most 1 - 1 / K, the most that a distribution can have. Without noise raw stays as it is.
    """
    shares = np.asarray(raw, dtype=np.float64)
    equal = 1.0 / len(shares)
    if math.isinf(noise):
        return np.full(len(shares), equal)
    away = shares - equal
    signal = min(max(float(away @ away) - noise, 0.0), 1.0 - equal)
    kept = signal / (signal + noise) if noise > 0 else 1.0
    positive = np.maximum(equal + kept * away, 0.0)
    return np.asarray(positive / positive.sum())


LEAST_INFORMATIVE = 1e-9
"""1 - e^-epsilon below which labels carry no information: what is left of it is lost in rounding."""


@dataclass(frozen=True)
class LabelPosterior:
    """Label shares recovered from released labels, `[K]` each."""

    released: NDArray[np.float64]
    """Shares of the released labels."""
    raw: NDArray[np.float64] | None
    """(T^T)^-1 released: sums to 1 but may hold negative entries; None for epsilon = 0."""
    clipped: NDArray[np.float64]
    """max(raw, 0), rescaled to sum to 1; uniform for epsilon = 0."""
    projected: NDArray[np.float64]
    """The distribution nearest to raw; uniform for epsilon = 0."""


def _undo_response(released: NDArray[np.float64], epsilon: float | None) -> NDArray[np.float64] | None:
    """((e^eps + K - 1) p_i - 1) / (e^eps - 1): the inverse matrix times p, without forming it."""
    if epsilon is None:
        return released.copy()
    response_probabilities(epsilon, len(released))
    small, gap = math.exp(-epsilon), -math.expm1(-epsilon)
    if gap < LEAST_INFORMATIVE:
        return None
    return ((1.0 + (len(released) - 1) * small) * released - small) / gap


def posterior(counts: ArrayLike, epsilon: float | None) -> LabelPosterior:
    """Global label shares from the summed counts of released labels, `[K]` (Alg. 1 lines 8-10)."""
    numbers = np.asarray(counts, dtype=np.float64)
    if numbers.ndim != 1 or not np.isfinite(numbers).all() or (numbers < 0).any() or numbers.sum() <= 0:
        raise DataError(f"label counts {numbers.tolist()} are no histogram: one count a class, at least one sample")
    released = numbers / numbers.sum()
    raw = _undo_response(released, epsilon)
    if raw is None:
        uniform = np.full(len(numbers), 1.0 / len(numbers))
        return LabelPosterior(released, None, uniform, uniform.copy())
    positive = np.maximum(raw, 0.0)
    return LabelPosterior(released, raw, positive / positive.sum(), project_on_simplex(raw))


# Gaussian noise on clipped updates, accounted in zero-concentrated differential privacy (Bun and Steinke 2016) --------


def clipping_share(length: float, bound: float) -> float:
    """min(1, C / ||u||): what an update of this length is multiplied by, so that it is no longer than C."""
    if not bound > 0:
        raise ConfigError(f"clip = {bound}: an update's longest length must be above 0")
    return 1.0 if length <= bound else bound / length


def gaussian_zcdp(sensitivity: float, sigma: float) -> float:
    """rho of one release with noise N(0, sigma^2 I): Delta^2 / (2 sigma^2) (Prop. 1.6); releases add up (Lemma 2.3)."""
    if not sigma > 0:
        return math.inf
    return sensitivity**2 / (2.0 * sigma**2)


def update_zcdp(noise: float, updates: int = 1) -> float:
    """rho of updates clipped at C with noise of standard deviation `noise` times C, whatever data a site holds.

    Two updates no longer than C differ by 2 C at most, so the sensitivity of a whole dataset is 2 C: rho = 2 / noise^2.
    What holds for all samples exchanged at once holds for one of them.
    """
    return updates * gaussian_zcdp(2.0, noise)


def zcdp_epsilon(rho: float, delta: float) -> float:
    """The least epsilon of (epsilon, delta)-privacy that rho-zCDP implies, over all Renyi orders alpha > 1:

    alpha rho + (ln(1 / delta) + (alpha - 1) ln(1 - 1 / alpha) - ln alpha) / (alpha - 1), Canonne, Kamath and Steinke
    2020, Prop. 12. Every order gives a bound that holds, so the search need not be exact.
    """
    if not 0 < delta < 1:
        raise ConfigError(f"delta = {delta}: it must lie between 0 and 1")
    if not math.isfinite(rho):
        return math.inf
    if rho <= 0:
        return 0.0
    middle, width, best = 0.0, 40.0, math.inf
    for _ in range(6):  # on a logarithmic scale of alpha - 1, each time more finely about the least value
        above = np.exp(np.linspace(middle - width, middle + width, 801))
        alpha = 1.0 + above
        bounds = alpha * rho + (-math.log(delta) - np.log(alpha)) / above - np.log1p(1.0 / above)
        place = int(np.argmin(bounds))
        best, middle, width = min(best, float(bounds[place])), math.log(above[place]), width / 100
    return max(best, 0.0)


# The discrete Gaussian (Canonne, Kamath and Steinke 2020), from whole numbers alone: no rounding tells of anything ----

GRID_BITS = 20
"""The noise's standard deviation is 2^20 steps of the grid on which noised numbers leave."""
_WORD = 8


@dataclass
class RandomWords:
    """Whole random numbers from bytes."""

    entropy: Callable[[int], bytes]
    """So many random bytes."""

    def below(self, bits: int, count: int) -> NDArray[np.int64]:
        """Uniform on 0 ... 2^bits - 1, `[count]`."""
        words = np.frombuffer(self.entropy(_WORD * count), dtype="<u8", count=count)
        return (words >> np.uint64(64 - bits)).astype(np.int64)

    def one_of(self, many: int, count: int) -> NDArray[np.bool_]:
        """True with chance 1 / many, `[count]`."""
        most = 2**62 // many * many  # above it the remainders would not be equally likely
        found = np.full(count, most, np.int64)
        while (odd := np.flatnonzero(found >= most)).size:
            found[odd] = self.below(62, odd.size)
        return np.asarray(found % many == 0)

    def decaying(self, parts: NDArray[np.int64], bits: int) -> NDArray[np.bool_]:
        """True with chance exp(-parts / 2^bits), `[n]`; 0 <= parts <= 2^bits (their Alg. 1)."""
        odd, going = np.ones(len(parts), np.bool_), np.arange(len(parts))
        k = 1
        while going.size:
            again = (self.below(bits, going.size) < parts[going]) & self.one_of(k, going.size)
            odd[going[~again]] = k % 2 == 1
            going, k = going[again], k + 1
        return odd

    def falling(self, parts: NDArray[np.int64], bits: int) -> NDArray[np.bool_]:
        """The same for any parts >= 0: one factor exp(-1) for each whole, one for what is left."""
        whole, rest = parts >> bits, parts & ((1 << bits) - 1)
        kept = self.decaying(rest, bits)
        while (going := np.flatnonzero(kept & (whole > 0))).size:
            kept[going] = self.decaying(np.full(going.size, 1 << bits, np.int64), bits)
            whole[going] -= 1
        return kept

    def laplace(self, bits: int, count: int) -> NDArray[np.int64]:
        """Discrete Laplace of scale t = 2^bits (their Alg. 2); those that it rejects are left out."""
        first = self.below(bits, count)
        first = first[self.decaying(first, bits)]
        times, going = np.zeros(first.size, np.int64), np.arange(first.size)
        one = np.full(first.size, 1 << bits, np.int64)
        while going.size:
            going = going[self.decaying(one[: going.size], bits)]
            times[going] += 1
        size, negative = first + (times << bits), self.one_of(2, first.size)
        kept = ~(negative & (size == 0))
        return np.asarray(np.where(negative, -size, size)[kept])


def discrete_gaussian(entropy: Callable[[int], bytes], count: int, bits: int = GRID_BITS) -> NDArray[np.int64]:
    """Whole numbers y with chances proportional to exp(-y^2 / (2 sigma^2)), sigma = 2^bits, `[count]` (their Alg. 3).

    Exact: Laplace of scale t = sigma, kept with chance exp(-(|y| - sigma)^2 / (2 sigma^2)).
    """
    words, found = RandomWords(entropy), np.zeros(0, np.int64)
    while (missing := count - found.size) > 0:
        drawn = words.laplace(bits, 3 * missing + 64)
        away = np.abs(drawn) - (1 << bits)
        found = np.concatenate([found, drawn[words.falling(away * away, 2 * bits + 1)]])
    return found[:count]
