"""Several yes/no labels a picture: the audit's model for each finding, with one 2 x 2 T for all of a site's findings.

A finding that a site never annotates has no given label there: it is not judged, only predicted, from the shared model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedsift.core.errors import DataError
from fedsift.detection.any_wrong_labels import fit_site
from fedsift.detection.label_posterior import (
    ITERATIONS,
    TOLERANCE,
    LabelModel,
    SiteFit,
    as_if_equally_hard,
    responsibilities,
    tempered_evidence,
)
from fedsift.detection.label_rates import SiteRate, rate_of, site_rate

Array = NDArray[np.float64]
Labels = NDArray[np.int64]
Flags = NDArray[np.bool_]


ANNOTATOR_WEIGHT = np.array([200.0, 50.0])
"""Answers' worth, of those without and with the finding, by which a site's annotator is drawn to the federation's."""
NEGLIGIBLE_FINDINGS = 0.015
"""A site has evidence of wrong findings where the interval of their share, over all findings, lies above this: findings
are rare, and a third of them missed is a small share of all answers."""


def two_columns(probabilities: ArrayLike) -> Array:
    """P(finding) `[n]` as the columns no, yes `[n, 2]` that `fit_site` takes."""
    p = np.clip(np.asarray(probabilities, np.float64), 0.0, 1.0)
    return np.stack([1 - p, p], axis=-1)


def fit_questions(
    probabilities: ArrayLike,
    answers: ArrayLike,
    annotated: ArrayLike,
    models: Sequence[LabelModel],
    nats: ArrayLike | None = None,
) -> list[SiteFit | None]:
    """Every question's fit from out-of-fold probabilities `[n, Q, A]`, given answers `[n, Q]` and `annotated` `[Q]`.

    None where the site does not annotate. One question is the label of a picture; several are yes/no findings, which
    one annotator of the site gave. nats: `fit_site`'s, of the only question.
    """
    p, given = np.asarray(probabilities, np.float64), np.asarray(answers, np.int64)
    known = np.flatnonzero(np.asarray(annotated, np.bool_)).tolist()
    if p.shape[:2] != given.shape or p.shape[1] != len(models) or len(np.asarray(annotated)) != len(models):
        raise DataError(
            f"probabilities {p.shape}, answers {given.shape}, {len(np.asarray(annotated))} annotated and "
            f"{len(models)} models differ"
        )
    fits: list[SiteFit | None] = [None] * len(models)
    if len(models) == 1:
        return [fit_site(p[:, 0], given[:, 0], models[0], nats) if known else None]
    found = fit_annotator([p[:, q] for q in known], given[:, known], [models[q] for q in known])
    for q, fit in zip(known, found, strict=True):
        fits[q] = fit
    return fits


def annotator_prior(models: Sequence[LabelModel]) -> Array:
    """T `[2, 2]` of an annotator like the federation's: the findings' mean rates of marking and of missing."""
    rates = [model.rate_prior[0] / sum(model.rate_prior) * model.relative_rates for model in models]
    marked, missed = np.clip(np.mean(rates, axis=0), 1e-4, 0.5)
    return np.array([[1 - marked, marked], [missed, 1 - missed]])


def fit_annotator(probabilities: Sequence[Array], given: Labels, models: Sequence[LabelModel]) -> list[SiteFit]:
    """EM for the site's one T and its share of every finding; probabilities: `[n, 2]` a finding, given: `[n, Q]`.

    A finding is rare, and at one site it has a few dozen positives: too few to distinguish marks and misses from hard
    pictures a finding at a time. A careless annotator is careless with all findings, and together they are evidence.
    """
    if not models:
        return []
    base = annotator_prior(models)
    evidence = [tempered_evidence(p, model) for p, model in zip(probabilities, models, strict=True)]
    shares = [model.shares for model in models]
    as_given = [np.eye(2)[given[:, q]] for q in range(len(models))]
    errors, before, n = base, -np.inf, len(given)
    for step in range(ITERATIONS + 1):
        made = [responsibilities(e, given[:, q], shares[q], errors) for q, e in enumerate(evidence)]
        counts = [posterior.T @ as_given[q] for q, (posterior, _, _) in enumerate(made)]
        now = sum(float(total.sum()) for _, total, _ in made)
        if step == ITERATIONS or abs(now - before) < TOLERANCE * max(n * len(models), 1):
            break
        before = now
        for q, (model, (posterior, _, _)) in enumerate(zip(models, made, strict=True)):
            kappa = model.concentration
            shares[q] = (posterior.sum(0) + kappa * model.shares) / (n + kappa)
        even = [as_if_equally_hard(counts[q], one, factor) for q, (one, _, factor) in enumerate(made)]
        errors = np.sum(even, axis=0) + ANNOTATOR_WEIGHT[:, None] * base
        errors /= errors.sum(1, keepdims=True)
    return [
        SiteFit(
            posterior,
            counts[q],
            shares[q],
            errors,
            float(1 - np.trace(counts[q]) / max(n, 1)),
            float(total.sum()),
            swapped=False,
        )
        for q, (posterior, total, _) in enumerate(made)
    ]


def site_rates(fits: Sequence[SiteFit | None], answers: ArrayLike) -> list[SiteRate | None]:
    """Every question's rate; whether there is evidence of wrong labels is asked once, of all findings together.

    Otherwise a site with eight findings would have eight chances of a false alarm. Where there is evidence, every
    finding's interval is its own (a single one may begin at 0); where there is none, all begin at 0.
    """
    given = np.asarray(answers, np.int64)
    rates = [None if fit is None else site_rate(fit, given[:, q]) for q, fit in enumerate(fits)]
    if len(fits) == 1:
        return rates
    doubts = [fit.doubt(given[:, q]) for q, fit in enumerate(fits) if fit is not None]
    evidence = bool(doubts) and rate_of(np.concatenate(doubts), negligible=NEGLIGIBLE_FINDINGS).evidence
    return [
        None if rate is None else replace(rate, low=rate.low if evidence else 0, evidence=evidence) for rate in rates
    ]


def never_annotated(given: ArrayLike, expected: ArrayLike, threshold: float = 0.01) -> Flags:
    """Findings `[K]` that a site seems not to annotate: not one positive among n, where it would have some.

    given: `[n, K]`; expected: the federation's share of positives `[K]`. P(no positive) = (1 - share)^n < threshold.
    """
    labels, share = np.asarray(given), np.clip(np.asarray(expected, np.float64), 0.0, 1 - 1e-12)
    none = (labels > 0).sum(0) == 0
    return np.asarray(none & (len(labels) * np.log1p(-share) < np.log(threshold)))
