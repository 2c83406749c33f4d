"""Tests whether there is a group of noisy sites: one group against two, at a stated false-alarm rate; and finds
federations without a clean reference.

The papers' two-component mixtures find two groups in any federation, a clean one too. Here a table of
indicators (one row a site) becomes one score a site, without filling in classes that a site lacks; the best
split of the scores in two is compared with the best split that a single group of that size gives by chance;
only if that is rare are the sites of the upper group called noisy.

Losses by class separate a site with wrong labels from one with difficult samples: difficulty multiplies every
class's loss, a wrong label adds about the same to each, so it shows most where the model knows a class best.
Where all classes are known alike that says nothing, so losses are also scored as any other table.

A verdict must not hang on the last bits of an indicator: the test is repeated on tables whose entries are shaken by a
little, and where the verdict does not stay the same, or p is close to the threshold, it is called borderline.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedsift.core.errors import ConfigError, DataError

# One group of scores against two: the best split, how rare it is in a single group, and who is in
# which
# ------------------------------------------------------------------------------

Array = NDArray[np.float64]

_POWERS = (0.5, 0.75, 1.0, 1.25, 1.5)
"""Exponents of the Yeo-Johnson transformation that may straighten a skewed group."""
_PRIOR = 2.0
"""Sites' worth of pooled variance that each group's own is shrunk by: two sites alone have no variance."""


def two_groups(p_value: float) -> float:
    """Largest probability of the alternative that a p-value supports at even prior odds: 1 / (1 - e p log p).

    The bound of Sellke, Bayarri and Berger (2001); 1/2 from p = 1/e on.
    """
    if p_value >= 1 / math.e:
        return 0.5
    return 1.0 / (1.0 - math.e * p_value * math.log(p_value))


def unskew(values: Array) -> Array:
    """Standardise `[..., S]` and undo a moderate skew by the likeliest Yeo-Johnson power; the order is
    kept."""
    z = values - values.mean(axis=-1, keepdims=True)
    spread = z.std(axis=-1, keepdims=True)
    z = z / np.where(spread > 0, spread, 1.0)
    jacobian = (np.sign(z) * np.log1p(np.abs(z))).sum(axis=-1)
    best = np.full(values.shape[:-1], -np.inf)
    straight = z
    for power in _POWERS:
        up = np.expm1(power * np.log1p(np.maximum(z, 0.0))) / power
        down = np.expm1((2 - power) * np.log1p(np.maximum(-z, 0.0))) / (2 - power)
        moved = up - down
        likelihood = -z.shape[-1] / 2 * np.log(np.maximum(moved.var(axis=-1), 1e-300)) + (power - 1) * jacobian
        better = likelihood > best
        straight = np.where(better[..., None], moved, straight)
        best = np.maximum(best, likelihood)
    return np.asarray(straight)


def best_split(values: Array) -> tuple[Array, NDArray[np.int64]]:
    """Log likelihood ratio of the best split of `[..., S]` in a lower and an upper group against one group,
    and the size of the lower group.

    Both are normal with one variance; a split of n values in n_1 + n_2 has n/2 log(SS / SS_within) +
    n_1 log(n_1/n) + n_2 log(n_2/n).
    """
    ordered = np.sort(values, axis=-1)
    n = ordered.shape[-1]
    lower = np.arange(1, n)
    below = np.cumsum(ordered, axis=-1)[..., :-1]
    total = ordered.sum(axis=-1, keepdims=True)
    squares = (ordered**2).sum(axis=-1, keepdims=True)
    around = squares - total**2 / n
    within = squares - below**2 / lower - (total - below) ** 2 / (n - lower)
    # two tight groups can be parted perfectly; a floor keeps the ratio finite
    ratio = around / np.maximum(within, 1e-9 * around + 1e-300)
    gain = n / 2 * np.log(ratio) + lower * np.log(lower / n) + (n - lower) * np.log(1 - lower / n)
    return gain.max(axis=-1), gain.argmax(axis=-1) + 1


def null_gains(n: int, rng: np.random.Generator, draws: int, skew: float) -> list[Array]:
    """Gains of the best split of `draws` single groups of n values, for each of three shapes: normal, with long tails,
    and skewed as a gamma distribution of shape `skew`."""
    shapes = (
        rng.standard_normal((draws, n)),
        rng.standard_t(5, size=(draws, n)),
        rng.gamma(skew, size=(draws, n)),
    )
    return [best_split(unskew(shape))[0] for shape in shapes]


def chance_of_split(gain: float, null: list[Array]) -> float:
    """Share of single groups with a split as good, for the shape that gives the most (at least 1/draws)."""
    larger = [int((gains >= gain).sum()) for gains in null]
    return (1 + max(larger)) / (1 + len(null[0]))


def upper_posterior(score: Array) -> Array:
    """Probability of the upper of two normal groups with variances of their own, from the best split: `[S]`.

    Expectation-maximisation with each variance shrunk to the pooled one. Scores beyond the groups' means
    count as the means, so that a wide group never claims the far side of the other.
    """
    _, size = best_split(unskew(score))
    member = np.zeros(len(score))
    member[np.argsort(score, kind="stable")[int(size) :]] = 1.0
    mean, share = _moments(score, member)
    pooled = float(((score - np.where(member > 0, mean[1], mean[0])) ** 2).mean())
    pooled = max(pooled, 1e-6 * float(score.var()))
    for _ in range(200):
        mean, share = _moments(score, member)
        weight = np.stack([1 - member, member])
        variance = ((weight * (score - mean[:, None]) ** 2).sum(1) + _PRIOR * pooled) / (weight.sum(1) + _PRIOR)
        between = np.clip(score, min(mean), max(mean))
        odds = (
            np.log(share[1] / share[0])
            + 0.5 * np.log(variance[0] / variance[1])
            + (between - mean[0]) ** 2 / (2 * variance[0])
            - (between - mean[1]) ** 2 / (2 * variance[1])
        )
        updated = 1 / (1 + np.exp(-np.clip(odds, -500, 500)))
        if np.abs(updated - member).max() < 1e-9:
            break
        member = updated
    return np.asarray(updated)


def _moments(score: Array, member: Array) -> tuple[Array, Array]:
    weight = np.stack([1 - member, member])
    total = np.maximum(weight.sum(1), 1e-12)
    return (weight * score).sum(1) / total, total / len(score)


# Any table of indicators to one score a site, without filling in classes that a site lacks
# ------------------------------------------------------------------------------

FEWEST = 4
"""Sites below which no split can be significant."""
_TO_SIGMA = 0.8862
"""Mean difference of two values to standard deviation, for a normal sample: sqrt(pi) / 2."""
_WIDEST = 3.0
"""A single class counts with at most so many deviations: a class of two samples must not decide."""


def site_scores(table: Array) -> Array:
    """A site's effect in the table, over the classes that it holds, in units of what one group would show: `[S]`.

    Each class is scaled over the sites that hold it, then fitted as class + site: a site's effect is the weighted
    mean of what its classes show beyond their own level. A class counts by how well it agrees with a site's other
    classes. An effect measured on fewer classes varies more, so it is divided by sqrt(between + within / classes):
    a site that holds one class does not stand out for that alone. NaN for a site that holds no usable class.
    """
    z = np.column_stack([_scaled(column) for column in table.T]) if table.shape[1] else table
    held = ~np.isnan(z)
    if table.shape[1] > 1:
        z = np.clip(z, -_WIDEST, _WIDEST)
    z = np.where(held, z, 0.0)
    weight = held.astype(np.float64)
    residual, effect = _fit_two_way(z, held, weight)
    for _ in range(2 if table.shape[1] > 1 else 0):
        weight = held * _agreement(residual + effect[:, None], held, weight)
        residual, effect = _fit_two_way(z, held, weight)
    return _in_units_of_one_group(residual, effect, weight)


def _scaled(column: Array) -> Array:
    """One class centred and scaled by the mean difference of two sites, which a minority far off moves little.

    All NaN where it separates no sites or fewer than three hold it.
    """
    held = ~np.isnan(column)
    n = int(held.sum())
    if n < 3:
        return np.full(len(column), np.nan)
    ordered = np.sort(column[held])
    difference = float((2 * np.arange(1, n + 1) - n - 1) @ ordered) * 2 / (n * (n - 1))
    if difference <= 1e-12:
        return np.full(len(column), np.nan)
    return (column - np.median(ordered)) / (difference * _TO_SIGMA)


def _fit_two_way(z: Array, held: NDArray[np.bool_], weight: Array) -> tuple[Array, Array]:
    """z = class + site + residual by weighted least squares in turns: residuals `[S, K]` and site effects `[S]`."""
    effect = np.zeros(len(z))
    residual = z
    for _ in range(50):
        level = np.where(held, z - effect[:, None], 0.0).sum(0) / np.maximum(held.sum(0), 1)
        beyond = np.where(held, z - level, 0.0)
        updated = (weight * beyond).sum(1) / np.maximum(weight.sum(1), 1e-12)
        residual = np.where(held, beyond - updated[:, None], 0.0)
        moved = float(np.abs(updated - effect).max(initial=0.0))
        effect = updated
        if moved < 1e-9:
            break
    return residual, effect


def _agreement(beyond: Array, held: NDArray[np.bool_], weight: Array) -> Array:
    """Weight of each class `[K]`: by its correlation r with the same sites' other classes, (0.05 + r^2)/(1.1 - r^2).

    A class that shows the site's effect clearly counts up to ten times more than one that shows none of it.
    """
    total, mass = (weight * beyond).sum(1), weight.sum(1)
    result = np.full(held.shape[1], 0.05 / 1.1)
    for k in range(held.shape[1]):
        others = mass - weight[:, k]
        both = held[:, k] & (others > 1e-12)
        if both.sum() < FEWEST:
            continue
        rest = (total - weight[:, k] * beyond[:, k])[both] / others[both]
        own = beyond[both, k]
        if np.ptp(rest) > 1e-12 and np.ptp(own) > 1e-12:
            r = max(0.0, float(np.corrcoef(own, rest)[0, 1]))
            result[k] = (0.05 + r * r) / (1.1 - r * r)
    return result


def _in_units_of_one_group(residual: Array, effect: Array, weight: Array) -> Array:
    """Effects over sqrt(between + within / classes), the variances by moments; NaN where nothing is held."""
    mass = weight.sum(1)
    known = mass > 0
    classes = np.divide(mass**2, (weight**2).sum(1), out=np.ones(len(mass)), where=known)
    spare = float((classes[known] - 1).sum())
    shares = np.divide(weight, mass[:, None], out=np.zeros_like(weight), where=known[:, None])
    within = float((shares * residual**2 * classes[:, None]).sum() / spare) if spare > 1e-9 else 0.0
    between = 0.0
    if known.sum() > 1:
        between = max(0.0, float(effect[known].var(ddof=1)) - within * float((1 / classes[known]).mean()))
    variance = between + within / classes
    scaled: Array = effect / np.sqrt(np.where(variance > 0, variance, 1.0))
    return np.where(known, scaled, np.nan)


# Losses by class to one score a site: what wrong labels add, apart from what difficult samples
# multiply
# ------------------------------------------------------------------------------

_DIFFICULTY = 0.1
"""Least variance of the share by which clean sites' losses are thought to differ: a third up or down."""
_CAUTION = 3.0
"""Times the variance seen, where that is more: a difficulty taken for too small would pass for wrong labels."""
_COARSENESS = 0.5
"""Losses below this part of a typical class's are not distinguished any further: one easy class must not decide."""
_TAIL = 4.0
"""Degrees of freedom of a single entry's error: a class of two samples at a site strays far."""
_CLEAN_QUANTILE = 0.4
"""A class's level without wrong labels: most sites are thought clean, so it lies below the median."""


def excess_losses(table: Array) -> Array:
    """What a site's losses have beyond their classes' levels and its own difficulty, over its uncertainty: `[S]`.

    Fitted is loss = level_k (1 + difficulty_s + error) + excess_s, for losses `[S, K]` of no negative value. Over the
    level, an excess has slope 1 / level_k and a difficulty is a constant, which is how they are distinguished; the
    difficulty is random, its variance taken large, so that a site of one class has a score too, an uncertain one.
    Errors have long tails (t with 4 degrees of freedom). Scores are in units of sqrt(between + uncertainty^2), NaN for
    a site that holds no usable class: one that three sites hold and most of them at a loss.
    """
    level, held = _levels(table)
    known: NDArray[np.bool_] = np.asarray(held.any(1))
    if not known.any():
        return np.full(len(table), np.nan)
    loss = np.where(held, table, 0.0)
    unit = float(np.median(level[held.any(0)]))
    lowest = level / 4
    trust, variance = held.astype(np.float64), 0.05
    spare = max(float(held.sum() - 2 * known.sum() - held.any(0).sum()), held.sum() / 4)
    excess, precision, variety = np.zeros(len(table)), np.zeros(len(table)), _DIFFICULTY
    for _ in range(6):
        slope = unit / level
        coarse = 1 + (_COARSENESS * slope) ** 2
        ratio = np.where(held, loss / level - 1, 0.0)
        weight = trust / (variance * coarse)
        excess, precision = _slopes(ratio, slope, weight, variety)
        excess -= np.quantile(excess[known], _CLEAN_QUANTILE)
        rest = np.where(held, ratio - excess[:, None] * slope, 0.0)
        mass, total = weight.sum(1), (weight * rest).sum(1)
        difficulty = variety * total / (1 + variety * mass)
        variety = max(_DIFFICULTY, _CAUTION * _spread(total[known] / mass[known]) ** 2)
        error = np.where(held, rest - difficulty[:, None], 0.0) / np.sqrt(coarse)
        trust = held * (_TAIL + 1) / (_TAIL + error**2 / variance)
        variance = max(float((trust * error**2).sum()) / spare, 1e-5)
        without = (loss - unit * excess[:, None]) / np.maximum(1 + difficulty, 0.2)[:, None]
        for k in np.flatnonzero(held.any(0)):
            level[k] = max(float(np.median(without[held[:, k], k])), lowest[k])
    return _over_uncertainty(excess, precision, known)


def _levels(table: Array) -> tuple[Array, NDArray[np.bool_]]:
    """A first level for each class `[K]`, 1 for one that says nothing, and the entries of the others `[S, K]`."""
    held = ~np.isnan(table)
    level = np.ones(table.shape[1])
    for k in range(table.shape[1]):
        column = table[held[:, k], k]
        found = float(np.quantile(column, _CLEAN_QUANTILE)) if len(column) >= 3 else 0.0
        if found > 1e-12:
            level[k] = found
        else:
            held[:, k] = False
    return level, held


def _spread(values: Array) -> float:
    """Standard deviation of a normal sample by the median deviation from the median."""
    return 1.4826 * float(np.median(np.abs(values - np.median(values))))


def _slopes(ratio: Array, slope: Array, weight: Array, variety: float) -> tuple[Array, Array]:
    """Generalised least squares of each row on `slope` with a random intercept of variance `variety`: `[S]`, and
    its precision `[S]`."""
    mass, first, second = weight.sum(1), (weight * slope).sum(1), (weight * slope**2).sum(1)
    shrink = variety / (1 + variety * mass)
    precision = second - shrink * first**2
    top = (weight * slope * ratio).sum(1) - shrink * first * (weight * ratio).sum(1)
    return top / np.maximum(precision, 1e-12), precision


def _over_uncertainty(effect: Array, precision: Array, known: NDArray[np.bool_]) -> Array:
    """Effects over sqrt(between + 1 / precision); the variance between sites by DerSimonian and Laird's moments."""
    weight = precision[known]
    mean = float((weight * effect[known]).sum() / weight.sum())
    beyond = float((weight * (effect[known] - mean) ** 2).sum()) - (len(weight) - 1)
    scale = float(weight.sum() - (weight**2).sum() / weight.sum())
    between = max(0.0, beyond / scale) if scale > 1e-12 else 0.0
    score = np.full(len(effect), np.nan)
    score[known] = (effect[known] - mean) / np.sqrt(between + 1 / weight)
    return score


_SKEW_OF_VALUES, _SKEW_OF_LOSSES = 3.0, 5.0
"""Shape of the most skewed single group allowed for, a gamma distribution: values as they come may be more skewed
than what is left of losses without the sites' difficulty."""
_SHARE_OF_EXCESS = 2 / 3
"""Of the false alarms allowed, what the excess of losses may use up; the rest is for the sites' effects."""
SHAKES = 20
"""Shaken tables."""
SHAKEN_BY = 0.03
"""Standard deviation of the factor on every entry, as a share. Other arithmetic moves indicators by about 1e-7 after a
few rounds (benchmarks/verdicts) and by ever more the longer and the more chaotically a network trains."""
STEADY = 0.9
"""Least share of shaken tables with the same verdict, for it not to be borderline."""
NEAR = 2.0
"""A p-value within this factor of the threshold is borderline however steady it is."""


@dataclass(frozen=True)
class GroupTest:
    """What the test says of the sites."""

    noisy: NDArray[np.int64]
    """Sites of the upper group, ascending; empty when one group explains the scores."""
    p_value: float
    """Chance of a split at least as good if all sites were one group, corrected where two scores were tried;
    two groups are found at or below the stated false-alarm rate."""
    probability: Array
    """`[S]`: probability that a site is noisy, NaN for one without a value. Posterior of the upper group,
    times the largest probability of two groups that the p-value supports at even odds beforehand."""
    score: Array
    """`[S]`: the one-dimensional score that decided, high for suspects; NaN for a site without a value."""
    threshold: float = 0.05
    """What p was compared with: the stated false-alarm rate."""
    steadiness: float = 1.0
    """Share of slightly shaken tables with the same noisy sites."""

    @property
    def borderline(self) -> bool:
        """Whether rounding, or another seed, might well have turned the verdict."""
        near = self.threshold / NEAR <= self.p_value <= self.threshold * NEAR
        return near or self.steadiness < STEADY


def tested_split(
    table: ArrayLike,
    rng: np.random.Generator,
    false_alarm: float = 0.05,  # noqa: PT028  (no test of pytest's)
    *,
    draws: int = 999,  # noqa: PT028
    shakes: int = SHAKES,  # noqa: PT028
) -> GroupTest:
    """Part sites into clean and noisy by their indicators `[S, K]`, or find that there is nothing to part.

    table: high values for suspects (losses, LID); NaN where a site does not hold a class. K = 1 is one
    value a site. Several columns without a negative value are read as losses and scored in two ways
    (`excess_losses`, `site_scores`), which share the false alarms; others as they come (`site_scores`).
    false_alarm: largest accepted chance of naming any site in a federation of one group.
    draws: simulated federations for each null shape. shakes: shaken tables that say how steady the verdict is.
    """
    values = np.asarray(table, dtype=np.float64)
    if values.ndim != 2:
        raise DataError(f"a table of sites by classes is needed, got an array of shape {values.shape}")
    if np.isinf(values).any():
        raise DataError("a site's indicator is infinite: its network has diverged, lower the learning rate")
    if not 0 < false_alarm < 1:
        raise ConfigError(f"false_alarm = {false_alarm}: it must be between 0 and 1")
    test = _GroupTest(rng, draws, losses=values.shape[1] > 1 and not bool((values < 0).any()))
    best = test(values)
    p_value = min(1.0, best.corrected)
    noisy = best.noisy(false_alarm)
    shaken = (values * np.exp(SHAKEN_BY * rng.standard_normal(values.shape)) for _ in range(shakes))
    same = [np.array_equal(test(table).noisy(false_alarm), noisy) for table in shaken]
    probability = best.posterior * two_groups(p_value)
    return GroupTest(noisy, p_value, probability, best.score, false_alarm, float(np.mean(same)) if same else 1.0)


@dataclass(frozen=True)
class _ScoreAnswer:
    """One score's answer."""

    score: Array
    posterior: Array
    """Of the upper group; 0 where nothing can be parted, NaN without a value."""
    corrected: float
    """The p-value over this score's share of the false alarms, after Bonferroni; may exceed 1."""

    def noisy(self, false_alarm: float) -> NDArray[np.int64]:
        found = self.posterior >= 0.5 if self.corrected <= false_alarm else np.zeros(len(self.score), bool)
        return np.flatnonzero(found).astype(np.int64)


class _GroupTest:
    """The test of tables of one kind; what single groups give by chance is drawn once for all of them."""

    def __init__(self, rng: np.random.Generator, draws: int, losses: bool) -> None:
        self._rng, self._draws, self._losses = rng, draws, losses
        self._gains: dict[tuple[int, float], list[Array]] = {}

    def __call__(self, table: Array) -> _ScoreAnswer:
        """The look at the table that shows two groups most clearly."""
        if not self._losses:
            return self._look(site_scores(table), _SKEW_OF_VALUES, 1.0)
        looks = [
            self._look(excess_losses(table), _SKEW_OF_LOSSES, _SHARE_OF_EXCESS),
            self._look(site_scores(table), _SKEW_OF_VALUES, 1 - _SHARE_OF_EXCESS),
        ]
        return min(looks, key=lambda look: look.corrected)

    def _look(self, score: Array, skew: float, share: float) -> _ScoreAnswer:
        measured = np.flatnonzero(~np.isnan(score))
        posterior = np.full(len(score), np.nan)
        own = score[measured]
        if len(own) < FEWEST or np.ptp(own) <= 1e-9 * max(1.0, float(np.abs(own).max())):
            posterior[measured] = 0.0
            return _ScoreAnswer(score, posterior, 1.0 / share)
        key = (len(own), skew)
        if key not in self._gains:
            self._gains[key] = null_gains(len(own), self._rng, self._draws, skew)
        gain, _ = best_split(unskew(own))
        posterior[measured] = upper_posterior(own)
        return _ScoreAnswer(score, posterior, chance_of_split(float(gain), self._gains[key]) / share)


# Is any site clean enough to compare with?
# ------------------------------------------------------------------------------


FEWEST_CLASSES = 3
"""Of two classes the wrong one is always in the lower half: hard samples would pass for blind labels."""
SURE = 0.25
"""Share of a site's samples that are looked at: those on which the network is surest."""
FEWEST_SITES = 40
"""And at least so many of them: fewer give too coarse a share."""
MANY = 0.2
"""A site with more blind labels than this is no reference."""
UNKNOWING = 0.85
"""Where even the best sites have more than this, it is the network that knows nothing."""
BEST = 0.1
"""Share of the sites that are taken for the best ones, two at least: one site alone may be so by chance."""


def looked_at(samples: int) -> int:
    """How many of a site's samples are looked at."""
    return min(samples, max(FEWEST_SITES, math.ceil(SURE * samples)))


def blind_share(probabilities: ArrayLike, labels: ArrayLike) -> float:
    """Estimated share of labels that were drawn without a look, `[n, K], [n] -> 0..1`; NaN below three classes.

    A class that ties with others counts as the highest of them.
    """
    p, given = np.asarray(probabilities, dtype=np.float64), np.asarray(labels, dtype=np.int64)
    if not len(p):
        return math.nan
    own = p[np.arange(len(p)), given]
    return blind_share_of_ranks(p.max(axis=1), (p > own[:, None]).sum(axis=1), int(p.shape[1]))


def blind_share_of_ranks(confidence: ArrayLike, rank: ArrayLike, classes: int) -> float:
    """Twice (K / floor(K/2)) the share of given labels in the lower half of the classes, among the samples with the
    largest probability of any class, `[n], [n] -> 0..1`; NaN below three classes.

    confidence: that probability; rank: how many classes are likelier than the given one.
    """
    sure, place = np.asarray(confidence, dtype=np.float64), np.asarray(rank)
    if classes < FEWEST_CLASSES or not len(sure):
        return math.nan
    surest = np.argsort(-sure, kind="stable")[: looked_at(len(sure))]
    lower = classes // 2
    return min(1.0, float((place[surest] >= classes - lower).mean()) * classes / lower)


def best_share(shares: Sequence[float]) -> float:
    """Mean blind share of the best tenth of the sites, two at least; NaN where there is none."""
    known = sorted(share for share in shares if not math.isnan(share))
    return float(np.mean(known[: max(2, math.ceil(BEST * len(known)))])) if known else math.nan


def no_clean_reference(shares: Sequence[float]) -> bool:
    """Whether even the best sites have many blind labels, by a network that knows something."""
    return MANY < best_share(shares) <= UNKNOWING


def knows_something(share: float, samples: int, classes: int) -> bool:
    """Whether so many samples' labels look blind to a model less often than all would to one that knows nothing: by
    more than three standard deviations of a binomial count."""
    lower = classes // 2
    q = lower / classes
    return (1 - share) * q > 3 * math.sqrt(q * (1 - q) / looked_at(samples))
