"""Is there a noisy group at all? One group tested against two, at a stated rate of false alarms.

The papers' two-component mixtures find two groups in any federation, a clean one too. Here a table of
indicators (one row a site) becomes one score a site, without filling in classes that a site lacks; the best
split of the scores in two is compared with the best split that a single group of that size gives by chance;
only if that is rare are the sites of the upper group called noisy.

Losses by class tell a site with wrong labels from one with difficult samples: difficulty multiplies every
class's loss, a wrong label adds about the same to each, so it shows most where the model knows a class best.
Where all classes are known alike that says nothing, so losses are also scored as any other table.

A verdict must not hang on the last bits of an indicator: the test is repeated on tables whose entries are shaken by a
little, and where the verdict does not stay the same, or p is close to the threshold, it is called borderline.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedsift.contract.errors import ConfigError, DataError
from fedsift.signals.excess import excess_losses
from fedsift.signals.site_scores import FEWEST, site_scores
from fedsift.signals.two_groups import (
    best_split,
    chance_of_split,
    null_gains,
    straighten,
    two_groups,
    upper_posterior,
)

Array = NDArray[np.float64]

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
class Tested:
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
) -> Tested:
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
    test = _Test(rng, draws, losses=values.shape[1] > 1 and not bool((values < 0).any()))
    best = test(values)
    p_value = min(1.0, best.corrected)
    noisy = best.noisy(false_alarm)
    shaken = (values * np.exp(SHAKEN_BY * rng.standard_normal(values.shape)) for _ in range(shakes))
    same = [np.array_equal(test(table).noisy(false_alarm), noisy) for table in shaken]
    probability = best.posterior * two_groups(p_value)
    return Tested(noisy, p_value, probability, best.score, false_alarm, float(np.mean(same)) if same else 1.0)


@dataclass(frozen=True)
class _Look:
    """One score's answer."""

    score: Array
    posterior: Array
    """Of the upper group; 0 where nothing can be parted, NaN without a value."""
    corrected: float
    """The p-value over this score's share of the false alarms, after Bonferroni; may exceed 1."""

    def noisy(self, false_alarm: float) -> NDArray[np.int64]:
        found = self.posterior >= 0.5 if self.corrected <= false_alarm else np.zeros(len(self.score), bool)
        return np.flatnonzero(found).astype(np.int64)


class _Test:
    """The test of tables of one kind; what single groups give by chance is drawn once for all of them."""

    def __init__(self, rng: np.random.Generator, draws: int, losses: bool) -> None:
        self._rng, self._draws, self._losses = rng, draws, losses
        self._gains: dict[tuple[int, float], list[Array]] = {}

    def __call__(self, table: Array) -> _Look:
        """The look at the table that shows two groups most clearly."""
        if not self._losses:
            return self._look(site_scores(table), _SKEW_OF_VALUES, 1.0)
        looks = [
            self._look(excess_losses(table), _SKEW_OF_LOSSES, _SHARE_OF_EXCESS),
            self._look(site_scores(table), _SKEW_OF_VALUES, 1 - _SHARE_OF_EXCESS),
        ]
        return min(looks, key=lambda look: look.corrected)

    def _look(self, score: Array, skew: float, share: float) -> _Look:
        measured = np.flatnonzero(~np.isnan(score))
        posterior = np.full(len(score), np.nan)
        own = score[measured]
        if len(own) < FEWEST or np.ptp(own) <= 1e-9 * max(1.0, float(np.abs(own).max())):
            posterior[measured] = 0.0
            return _Look(score, posterior, 1.0 / share)
        key = (len(own), skew)
        if key not in self._gains:
            self._gains[key] = null_gains(len(own), self._rng, self._draws, skew)
        gain, _ = best_split(straighten(own))
        posterior[measured] = upper_posterior(own)
        return _Look(score, posterior, chance_of_split(float(gain), self._gains[key]) / share)
