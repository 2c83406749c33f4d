"""The label audit's three exchanges: what a site replies, and what the server makes of the replies.

1. `first_reply` -> `start_model`: counts of given labels.
2. `second_reply` -> `shared_model`: for every exponent of `GRID` two log-likelihoods in whole nats, with wrong labels
   and without any, and one table of expected counts, at the exponent that the site's own likelihoods choose. One table,
   not one for every exponent: tables of the same samples side by side would bracket the cells that one of them lumps.
3. `last_fit` at the site, then `third_reply`: the rate with its interval in whole labels, and the agreement matrix,
   for the consortium's page.

Everything is a whole number; nothing in 1 ... floor - 1 leaves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedsift.core.codec import WireFormat
from fedsift.detection.any_wrong_labels import any_wrong, faithful_likelihoods, fit_site, gain_of_wrong
from fedsift.detection.label_posterior import GRID, LabelModel, SiteFit, fit_with_wrong, likelihoods
from fedsift.detection.label_rates import (
    SiteRate,
    choose_tempering,
    fit_shared,
    most_likely_exponent,
    noisy_share,
    shares_of,
    site_rate,
)
from fedsift.formulas.small_counts import FLOOR, WITHHELD, CensoredTable, Counts, censored, whole_nats

Array = NDArray[np.float64]

SITES_WEIGHT = 1500.0
"""Samples' worth by which a site's exponent is drawn to the federation's."""


@dataclass(frozen=True)
class SecondReply:
    """A site's second reply."""

    nats: Counts
    """`[A]`: log-likelihood of its given labels with pi_s and T_s fitted, for every exponent."""
    faithful: Counts
    """`[A]`: the same if every given label were right."""
    table: CensoredTable
    """`[K, K]`: expected counts, true by given, at the site's own exponent."""


@dataclass(frozen=True)
class ThirdReply:
    """A site's row on the consortium's page."""

    rate: SiteRate
    """Counts below the floor are told as -1 (fewer than the floor); the interval is widened to whole floors."""
    agreement: CensoredTable
    """`[K, K]`: samples by proposed and given class."""


def first_reply(given: ArrayLike, classes: int, floor: int = FLOOR) -> CensoredTable:
    """Counts of the given labels `[1, K]`."""
    return censored(np.bincount(np.asarray(given, np.int64), minlength=classes)[None], floor)


def start_model(replies: Sequence[CensoredTable]) -> LabelModel:
    """What the sites fit the second reply with."""
    return LabelModel.start(shares_of(replies))


def second_reply(probabilities: ArrayLike, given: ArrayLike, model: LabelModel, floor: int = FLOOR) -> SecondReply:
    """From out-of-fold probabilities `[n, K]` and given labels `[n]`."""
    samples = len(np.asarray(given))
    nats = whole_nats(likelihoods(probabilities, given, model, GRID), samples, floor)
    faithful = whole_nats(faithful_likelihoods(probabilities, given, model, GRID), samples, floor)
    own = fit_with_wrong(probabilities, given, model.with_tempering(choose_tempering([nats], [faithful])))
    return SecondReply(nats, faithful, censored(own.counts, floor))


@dataclass(frozen=True)
class SharedModel(WireFormat):
    """What the server sends back to every site after the second exchange."""

    model: LabelModel
    """pi, B, kappa, the Beta, and the exponent that all sites together choose."""
    nats: Array
    """`[A]`: all sites' log-likelihood a sample, for every exponent."""
    faithful: Array
    """`[A]`: the same if every given label were right."""


def shared_model(replies: Sequence[SecondReply], start: LabelModel) -> SharedModel:
    """The federation's exponent and likelihoods, how many sites have wrong labels, pi, B, kappa and the Beta."""
    nats = np.sum([reply.nats for reply in replies], axis=0)
    faithful = np.sum([reply.faithful for reply in replies], axis=0)
    samples = max(sum(reply.table.total for reply in replies), 1)
    start = replace(start, calibrated=most_likely_exponent([faithful]))
    gains = np.array([gain_of_wrong(reply.nats, reply.faithful, start) for reply in replies])
    counted = np.array([reply.table.total for reply in replies])
    start = replace(start, noisy_sites=noisy_share(gains, counted, start))
    model = fit_shared([reply.table for reply in replies], start, any_wrong(gains, counted, start))
    model = model.with_tempering(choose_tempering([nats], [faithful]))
    return SharedModel(model, nats / samples, faithful / samples)


def site_tempering(shared: SharedModel, own: SecondReply) -> float:
    """The exponent that a site's own likelihoods choose together with `SITES_WEIGHT` samples' worth of all sites':
    pictures from another machine may need another exponent, and a small site cannot tell."""
    return choose_tempering([own.nats + SITES_WEIGHT * shared.nats], [own.faithful + SITES_WEIGHT * shared.faithful])


def last_fit(probabilities: ArrayLike, given: ArrayLike, shared: SharedModel, own: SecondReply) -> SiteFit:
    """The site's last fit, from which its files are written; `own` is the second reply that it sent."""
    return fit_site(probabilities, given, shared.model.with_tempering(site_tempering(shared, own)), own.nats)


def third_reply(fit: SiteFit, given: ArrayLike, floor: int = FLOOR, rate: SiteRate | None = None) -> ThirdReply:
    """From the site's last fit. rate: what the site itself is told, where that depends on other questions as well."""
    labels = np.asarray(given, np.int64)
    table = np.zeros(fit.counts.shape)
    np.add.at(table, (fit.proposed, labels), 1)
    return ThirdReply(released_rate(site_rate(fit, labels) if rate is None else rate, floor), censored(table, floor))


def released_rate(rate: SiteRate, floor: int = FLOOR) -> SiteRate:
    """The rate as it may leave: no number of wrong or of right labels in 1 ... floor - 1."""
    if rate.samples < floor:
        return SiteRate(WITHHELD, WITHHELD, 0, WITHHELD, False)
    few = 0 < rate.wrong < floor or 0 < rate.samples - rate.wrong < floor
    low = 0 if rate.low < floor else min(rate.low, rate.samples - floor)
    high = rate.samples if rate.samples - rate.high < floor else max(rate.high, min(floor, rate.samples))
    return replace(rate, wrong=WITHHELD if few else rate.wrong, low=low, high=high)
