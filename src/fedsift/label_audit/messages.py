"""What leaves a site in a label audit: tables of whole numbers with no cell below the site's minimum count, and models;
and how the server uses them.

An audit asks one or more *questions* of a sample: for one class a sample a single question with K answers, for several
labels a question with the answers no and yes for each class. Q: questions, C: answers, A: exponents that are tried.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

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
from fedsift.formulas.small_counts import MIN_COUNT, WITHHELD, CensoredTable, Counts, censored, whole_nats
from fedsift.protocol.messages import Reply, SiteFacts, Weights, disclosed
from fedsift.training.requests import count_refusal


def stacked_tables(tables: Sequence[CensoredTable]) -> dict[str, Tensor]:
    """Censored tables of one shape as three tensors of a reply: cells `[T, R, C]`, remainders `[T, R]`, rest `[T]`."""
    return {
        "cells": torch.stack([torch.from_numpy(table.cells) for table in tables]),
        "remainders": torch.stack([torch.from_numpy(table.remainders) for table in tables]),
        "rest": torch.tensor([table.rest for table in tables], dtype=torch.int64),
    }


def tables_of(cells: Tensor, remainders: Tensor, rest: Tensor) -> list[CensoredTable]:
    """The reverse."""
    return [CensoredTable(own.numpy(), left.numpy(), int(lump)) for own, left, lump in zip(cells, remainders, rest)]


def _table_refusal(reply: Any, shape: tuple[int, ...], most: int) -> str | None:
    """Why these are no tables of that many samples: types, shapes, signs, sums."""
    cells_of_one = shape[1] * shape[2]
    parts = {"cells": shape, "remainders": shape[:-1], "rest": shape[:1]}
    for name, wanted in parts.items():
        value: Tensor = getattr(reply, name)
        if value.dtype != torch.int64 or tuple(value.shape) != wanted:
            return f"{name} has shape {tuple(value.shape)} and type {value.dtype}, asked were {wanted} whole numbers"
        if value.numel() and not -1 <= int(value.min()) <= int(value.max()) <= most:
            return f"{name} lies outside -1 to {most}, which the site declared"
    rounded = cells_of_one // 2  # expected counts are rounded cell by cell
    for table in tables_of(reply.cells, reply.remainders, reply.rest):
        if table.total > most + rounded:
            return f"a table counts {table.total} samples, the site declared {most}"
    return None


@dataclass(frozen=True)
class LabelsCounted(Reply):
    """The first exchange: how often each label was given."""

    cells: Tensor = disclosed(
        "given labels by class, [Q, 1, C]; a count below the site's minimum count is lumped", "count"
    )
    remainders: Tensor = disclosed("what was lumped, [Q, 1]", "count")
    rest: Tensor = disclosed("what was lumped of whole rows, [Q]", "count")
    samples: int = disclosed("how many samples there are", "count")

    def refusal(self, request: Any, facts: SiteFacts) -> str | None:
        questions, answers = request.questions
        wrong = _table_refusal(self, (questions, 1, answers), facts.samples)
        return wrong or count_refusal("samples", self.samples, facts.samples)


@dataclass(frozen=True)
class FoldsFitted(Reply):
    """Linear models, each trained without one fold of the site's samples."""

    models: Tensor = disclosed(
        "the site's linear models, each trained without one fold, [F + 1, k, K]", "model", update=""
    )
    likelihoods: Tensor | None = disclosed(
        "of each model the log-likelihood of the labels that it left out, in whole numbers and each label 10 at most, "
        "[k]; none where a fold has fewer than the site's minimum count",
        "likelihood",
        most=0.0,
        spare=True,
    )
    samples: int = disclosed("how many samples there are", "count")

    def refusal(self, request: Any, facts: SiteFacts) -> str | None:
        if self.models.shape != request.models.shape or self.models.dtype != torch.float32:
            return f"the models have shape {tuple(self.models.shape)}, sent were {tuple(request.models.shape)}"
        if self.likelihoods is not None and tuple(self.likelihoods.shape) != (request.models.shape[1],):
            return f"{tuple(self.likelihoods.shape)} likelihoods for {request.models.shape[1]} models"
        return count_refusal("samples", self.samples, facts.samples)

    def moves(self, request: Any) -> tuple[tuple[Weights, Weights], ...]:
        return tuple(
            ({"linear": own}, {"linear": sent}) for own, sent in zip(self.models.unbind(1), request.models.unbind(1))
        )


@dataclass(frozen=True)
class GridJudged(Reply):
    """The second exchange: how well each exponent explains the given labels, and who is mistaken for whom."""

    nats: Tensor = disclosed(
        "log-likelihood of the given labels by exponent, whole numbers, [Q, A]", "likelihood", most=0
    )
    faithful: Tensor = disclosed("the same if every label were right, [Q, A]", "likelihood", most=0)
    cells: Tensor = disclosed(
        "expected labels by probable and given class, [Q, C, C], lumped below the minimum count", "count"
    )
    remainders: Tensor = disclosed("what was lumped in each row, [Q, C]", "count")
    rest: Tensor = disclosed("what was lumped of whole rows, [Q]", "count")

    def refusal(self, request: Any, facts: SiteFacts) -> str | None:
        questions, answers = request.questions
        for name in ("nats", "faithful"):
            value: Tensor = getattr(self, name)
            if value.dtype != torch.int64 or tuple(value.shape) != (questions, len(GRID)):
                return f"{name} has shape {tuple(value.shape)}, asked were {(questions, len(GRID))}"
        return _table_refusal(self, (questions, answers, answers), facts.samples)


@dataclass(frozen=True)
class LabelsJudged(Reply):
    """The third exchange: the site's line in the consortium's table."""

    wrong: Tensor = disclosed(
        "labels that are probably wrong and both ends of the interval, whole numbers, [Q, 3]; -1 if too few",
        "count",
        least=-1,
    )
    evidence: bool = disclosed("whether there is evidence of wrong labels at all", "flag")
    flagged: int = disclosed(
        "how many samples the site should look at, 0 if fewer than its minimum count", "count", least=0
    )
    cells: Tensor = disclosed("labels by given and probable class, [Q, C, C], lumped below the minimum count", "count")
    remainders: Tensor = disclosed("what was lumped in each row, [Q, C]", "count")
    rest: Tensor = disclosed("what was lumped of whole rows, [Q]", "count")

    def refusal(self, request: Any, facts: SiteFacts) -> str | None:
        questions, answers = len(request.shared), len(request.shared[0].model.shares)
        if self.wrong.dtype != torch.int64 or tuple(self.wrong.shape) != (questions, 3):
            return f"wrong has shape {tuple(self.wrong.shape)}, asked were {(questions, 3)}"
        if int(self.wrong.max()) > facts.samples or self.flagged > facts.samples:
            return f"more labels are wrong than the {facts.samples} that the site declared"
        return _table_refusal(self, (questions, answers, answers), facts.samples)


# What the server makes of the replies
# ------------------------------------


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
    """Counts below the minimum count are sent as -1 (fewer than the minimum count); the interval is widened to
    multiples of it."""
    agreement: CensoredTable
    """`[K, K]`: samples by proposed and given class."""


def first_reply(given: ArrayLike, classes: int, min_count: int = MIN_COUNT) -> CensoredTable:
    """Counts of the given labels `[1, K]`."""
    return censored(np.bincount(np.asarray(given, np.int64), minlength=classes)[None], min_count)


def start_model(replies: Sequence[CensoredTable]) -> LabelModel:
    """What the sites fit the second reply with."""
    return LabelModel.start(shares_of(replies))


def second_reply(
    probabilities: ArrayLike, given: ArrayLike, model: LabelModel, min_count: int = MIN_COUNT
) -> SecondReply:
    """From out-of-fold probabilities `[n, K]` and given labels `[n]`."""
    samples = len(np.asarray(given))
    nats = whole_nats(likelihoods(probabilities, given, model, GRID), samples, min_count)
    faithful = whole_nats(faithful_likelihoods(probabilities, given, model, GRID), samples, min_count)
    own = fit_with_wrong(probabilities, given, model.with_tempering(choose_tempering([nats], [faithful])))
    return SecondReply(nats, faithful, censored(own.counts, min_count))


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
    at_best = [most_likely_exponent([reply.faithful]) for reply in replies if np.any(reply.faithful)]
    start = replace(
        start,
        calibrated=most_likely_exponent([faithful]),
        calibrated_at_best=float(np.quantile(at_best, 0.75)) if at_best else 1.0,
    )
    gains = np.array([gain_of_wrong(reply.nats, reply.faithful, start) for reply in replies])
    counted = np.array([reply.table.total for reply in replies])
    start = replace(start, noisy_sites=noisy_share(gains, counted, start))
    model = fit_shared([reply.table for reply in replies], start, any_wrong(gains, counted, start))
    model = model.with_tempering(choose_tempering([nats], [faithful]))
    return SharedModel(model, nats / samples, faithful / samples)


def site_tempering(shared: SharedModel, own: SecondReply) -> float:
    """The exponent that a site's own likelihoods choose together with `SITES_WEIGHT` samples' worth of all sites':
    pictures from another machine may need another exponent, and a small site cannot estimate it."""
    return choose_tempering([own.nats + SITES_WEIGHT * shared.nats], [own.faithful + SITES_WEIGHT * shared.faithful])


def last_fit(probabilities: ArrayLike, given: ArrayLike, shared: SharedModel, own: SecondReply) -> SiteFit:
    """The site's last fit, from which its files are written; `own` is the second reply that it sent."""
    return fit_site(probabilities, given, shared.model.with_tempering(site_tempering(shared, own)), own.nats)


def third_reply(fit: SiteFit, given: ArrayLike, min_count: int = MIN_COUNT, rate: SiteRate | None = None) -> ThirdReply:
    """From the site's last fit. rate: what the site itself gets, where that depends on other questions as well."""
    labels = np.asarray(given, np.int64)
    table = np.zeros(fit.counts.shape)
    np.add.at(table, (fit.proposed, labels), 1)
    return ThirdReply(
        released_rate(site_rate(fit, labels) if rate is None else rate, min_count), censored(table, min_count)
    )


def released_rate(rate: SiteRate, min_count: int = MIN_COUNT) -> SiteRate:
    """The rate as it may leave: no number of wrong or of right labels in 1 ... min_count - 1."""
    if rate.samples < min_count:
        return SiteRate(WITHHELD, WITHHELD, 0, WITHHELD, False)
    few = 0 < rate.wrong < min_count or 0 < rate.samples - rate.wrong < min_count
    low = 0 if rate.low < min_count else min(rate.low, rate.samples - min_count)
    high = rate.samples if rate.samples - rate.high < min_count else max(rate.high, min(min_count, rate.samples))
    return replace(rate, wrong=WITHHELD if few else rate.wrong, low=low, high=high)
