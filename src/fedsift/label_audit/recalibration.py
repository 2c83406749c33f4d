"""Recalibrates an audit's probabilities by the readers' verdicts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit, logit

from fedsift.core.errors import DataError
from fedsift.detection.label_rates import rate_of
from fedsift.label_audit.multilabel import NEGLIGIBLE_FINDINGS
from fedsift.label_audit.results import agreement_of, entries_of
from fedsift.label_audit.review import ReviewPlan, decided, known_labels, outcomes, settle
from fedsift.label_audit.site_audit import CONVICTED, OPEN, AuditFinding, SiteAudit, WrongShare
from fedsift.label_audit.verdicts import ReviewVerdict

# What people's verdicts change: probabilities recalibrated as a monotone function of the score, known
# labels kept
# ------------------------------------------------------------------------------

Array = NDArray[np.float64]

PRIOR_WEIGHT = 20.0
"""Verdicts' worth by which the curve is drawn to the probabilities as they were."""
STEEPEST, FLATTEST = 3.0, 0.2
"""The curve never turns round: a verdict changes how sure a score is, not the order of the list."""
READER_ERRORS = np.arange(0.01, 0.305, 0.02)
"""Shares of mistaken verdicts that are tried."""
READERS = (2.0, 18.0)
"""The Beta distribution of readers' shares of mistaken verdicts before any is known: a tenth, give or take 7 points."""
_EDGE = 1e-6
_IDENTITY, _STIFFNESS = np.array([0.0, 1.0]), np.array([0.1, 0.4])
"""Offset and slope that the curve is drawn to, and how strongly for each verdict's worth."""


@dataclass(frozen=True)
class Recalibration:
    """P(wrong) -> sigmoid(offset + slope logit P(wrong)), slope > 0."""

    offset: float = 0.0
    slope: float = 1.0

    def __call__(self, probability_wrong: ArrayLike) -> Array:
        odds = logit(np.clip(np.asarray(probability_wrong, np.float64), _EDGE, 1 - _EDGE))
        result: Array = expit(self.offset + self.slope * odds)
        return result


def recalibrated(
    probability_wrong: ArrayLike,
    found_wrong: ArrayLike,
    weights: ArrayLike | None = None,
    prior_weight: float = PRIOR_WEIGHT,
    reader_error: float = 0.0,
) -> Recalibration:
    """The curve from verdicts: probabilities `[m]` as they were, verdicts `[m]` (1 wrong, 0 right), weights `[m]`.

    reader_error: share of verdicts that are mistaken either way; P(verdict wrong) = r + (1 - 2 r) P(wrong). Weights are
    scaled to their effective number, (sum w)^2 / sum w^2. Newton's method on the penalised log-likelihood, the penalty
    that of normal priors on offset (0, 1) and slope (1, 0.5) with the given verdicts' worth.
    """
    p, y = np.asarray(probability_wrong, np.float64).ravel(), np.asarray(found_wrong, np.float64).ravel()
    w = np.ones(len(p)) if weights is None else np.asarray(weights, np.float64).ravel()
    if not len(p) == len(y) == len(w) or (w < 0).any():
        raise DataError(f"{len(p)} probabilities, {len(y)} verdicts and {len(w)} weights; none may be negative")
    if not 0 <= reader_error < 0.5:
        raise DataError(f"reader_error = {reader_error}: it must be 0 or more and below 0.5")
    if not len(p) or not w.any():
        return Recalibration()
    w = _effective(w)
    odds = logit(np.clip(p, _EDGE, 1 - _EDGE))
    design = np.stack([np.ones_like(odds), odds], axis=1)
    target, precision = _IDENTITY, prior_weight * _STIFFNESS
    curve = target.copy()
    for _ in range(50):
        right = expit(design @ curve)
        seen = np.clip(reader_error + (1 - 2 * reader_error) * right, _EDGE, 1 - _EDGE)
        slope = (1 - 2 * reader_error) * right * (1 - right)
        pull = w * (y - seen) * slope / (seen * (1 - seen))
        bend = w * slope**2 / (seen * (1 - seen))
        gradient = design.T @ pull - precision * (curve - target)
        hessian = (design * bend[:, None]).T @ design + np.diag(precision + _EDGE)
        step = np.linalg.solve(hessian, gradient)
        curve = curve + np.clip(step, -1.0, 1.0)
        if np.abs(step).max() < 1e-8:
            break
    return Recalibration(float(curve[0]), float(np.clip(curve[1], FLATTEST, STEEPEST)))


def _effective(weights: Array) -> Array:
    """Weights `[m]` scaled to their effective number, (sum w)^2 / sum w^2."""
    result: Array = weights * (weights.sum() / (weights**2).sum())
    return result


def reader_error_of(probability_wrong: ArrayLike, found_wrong: ArrayLike, weights: ArrayLike | None = None) -> float:
    """The mean share of mistaken verdicts, given them, over all shares and (by Laplace) all curves, drawn to a tenth.

    Verdicts against a score near 0 or 1 are the sign of it. Summed over a grid, with the prior `READERS`. The mean, not
    the likeliest share: a few hundred verdicts hardly determine it, the likeliest one lies below most that are likely,
    and a reader who is trusted too much costs more than one who is trusted too little.
    """
    p, y = np.asarray(probability_wrong, np.float64).ravel(), np.asarray(found_wrong, np.float64).ravel()
    w = np.ones(len(p)) if weights is None else np.asarray(weights, np.float64).ravel()
    w = _effective(w) if w.any() else w
    design = np.stack([np.ones(len(p)), logit(np.clip(p, _EDGE, 1 - _EDGE))], axis=1)
    scores = []
    for rate in READER_ERRORS:
        curve = recalibrated(p, y, weights, reader_error=float(rate))
        bent = np.array([curve.offset, curve.slope]) - _IDENTITY
        right = curve(p)
        seen = np.clip(rate + (1 - 2 * rate) * right, _EDGE, 1 - _EDGE)
        known = w * ((1 - 2 * rate) * right * (1 - right)) ** 2 / (seen * (1 - seen))
        stiffness = (design * known[:, None]).T @ design + np.diag(PRIOR_WEIGHT * _STIFFNESS)
        fit = float((w * (y * np.log(seen) + (1 - y) * np.log(1 - seen))).sum())
        fit -= 0.5 * PRIOR_WEIGHT * float((_STIFFNESS * bent**2).sum())
        fit -= 0.5 * float(np.linalg.slogdet(stiffness)[1])
        scores.append(fit + (READERS[0] - 1) * np.log(rate) + (READERS[1] - 1) * np.log(1 - rate))
    likely = np.exp(np.array(scores) - max(scores))
    return float((likely * READER_ERRORS).sum() / likely.sum())


def after_verdict(posterior: ArrayLike, said: ArrayLike, readers: ArrayLike, reader_error: float) -> Array:
    """P(true) `[m, K]` after k readers `[m]` said class `said` `[m]`.

    Times (1 - r)^k for that class and (r / (K - 1))^k for the others.
    """
    result, label = np.array(posterior, np.float64), np.asarray(said, np.int64)
    ratio = (1 - reader_error) * max(result.shape[1] - 1, 1) / max(reader_error, _EDGE)
    result = np.maximum(result, _EDGE**2)
    result[np.arange(len(label)), label] *= ratio ** np.asarray(readers, np.float64)
    after: Array = result / result.sum(1, keepdims=True)
    return after


def with_known(
    posterior: ArrayLike, known: ArrayLike, readers: ArrayLike = 1, reader_error: float | None = None
) -> Array:
    """The posterior `[n, K]` where people settled on labels (`known` `[n]`, -1: unknown).

    readers: how many stand behind each, one number or `[n]`. reader_error: how often one is mistaken; None makes the
    rows certain.
    """
    result = np.array(posterior, np.float64)
    labels = np.asarray(known, np.int64)
    if labels.shape != result.shape[:1] or (labels >= result.shape[1]).any():
        raise DataError(f"known labels {labels.shape} do not fit a posterior {result.shape}")
    rows = np.flatnonzero(labels >= 0)
    if reader_error is None:
        result[rows] = np.eye(result.shape[1])[labels[rows]]
    else:
        each = np.broadcast_to(np.asarray(readers, np.float64), labels.shape)
        result[rows] = after_verdict(result[rows], labels[rows], each[rows], reader_error)
    return result


SETTLED = "settled by review"
LISTED = 0.5


@dataclass(frozen=True)
class ReviewLessons:
    """Results of a recalibration by verdicts."""

    curve: Recalibration
    reader_error: float
    """Share of verdicts that are mistaken: as it was given, or as the verdicts themselves suggest."""


def recalibrate(
    audit: SiteAudit, plan: ReviewPlan, verdicts: Sequence[ReviewVerdict], reader_error: float | None = None
) -> tuple[SiteAudit, ReviewLessons]:
    """The audit with probabilities that fit the verdicts, and what they taught.

    It starts from what the models alone said, so that a verdict counts once however often it is recalibrated.
    The order of the samples that nobody looked at stays as it was. A settled sample is on the list exactly where people
    found its label wrong, with the label that they named; its probability also counts that readers are mistaken at
    times: once for a reader, twice for two who agree or an adjudication. Rate, finding and agreement follow from the
    new probabilities as the audit's own did from its; whether there are wrong labels is what the review decided
    (`review.decided`), and the audit's own answer while that is open.
    """
    answer = decided(audit, plan, verdicts).answer
    audit = audit.as_made
    rows, wrong, weights = outcomes(audit, plan, verdicts)
    if not len(rows) and not known_labels(audit, verdicts):
        raise DataError(f"site '{audit.site}': no settled verdict yet; import some first")
    seen = audit.probability_wrong[rows]
    error = reader_error_of(seen, wrong, weights) if reader_error is None else reader_error
    curve = recalibrated(seen, wrong, weights, reader_error=error)
    doubt = curve(audit.probability_wrong)
    probability = _moved(audit, curve, doubt)
    proposed, reason = audit.proposed.copy(), list(audit.reason)
    settled: dict[int, bool] = {}
    number = {name: k for k, name in enumerate(audit.classes)}
    readers = _readers(verdicts)
    for sample, names in known_labels(audit, verdicts).items():
        k = audit.row_of.get(sample)
        if k is None:
            continue
        label = _label(audit, [number[name] for name in names])
        settled[k] = not np.array_equal(label, audit.given[k])
        probability[k], doubt[k] = _settled(audit, k, probability[k], label, readers[sample], error)
        proposed[k], reason[k] = label, SETTLED
    own = audit.finding if answer == OPEN else audit.finding.settled(answer)
    rate, finding = _recalibrated_finding(audit, probability, doubt, own)
    flagged = audit.flagged & (doubt > LISTED) & finding.wrong_labels
    flagged[list(settled)] = list(settled.values())
    after = replace(
        audit,
        probability=probability,
        probability_wrong=doubt,
        proposed=np.where(flagged[:, None] if audit.multilabel else flagged, proposed, audit.given),
        flagged=flagged,
        reason=tuple(reason),
        rate=rate,
        finding=finding,
        agreement=_agreement(audit, probability),
        notes=(*audit.notes, _words(len(settle(verdicts).final))),
        before=audit,
    )
    return after, ReviewLessons(curve, error)


def _words(samples: int) -> str:
    return (
        f"recalibrated: probabilities, list and estimates follow from the audit and from what people said of "
        f"{samples} {'sample' if samples == 1 else 'samples'}"
    )


def _recalibrated_finding(
    audit: SiteAudit, probability: NDArray[np.float64], doubt: NDArray[np.float64], own: AuditFinding
) -> tuple[WrongShare, AuditFinding]:
    """The share of wrong labels and whether there is evidence of any, by the audit's own rules.

    own: the audit's finding, as people settled it where they did: that stays. An open one keeps its evidence only if
    the new probabilities have it, too, and gets none by them. An audit that claims no interval (ranks are no
    probabilities) gets none by a few verdicts either.
    """
    train = ~audit.is_test
    columns = [doubt[train]]
    if audit.multilabel:
        judged = [own[train] for own in probability.T if not np.isnan(own).all()]
        columns = [np.nan_to_num(own) for own in judged] or [np.zeros(0)]
    surely = float(own.wrong_labels)
    rates = [rate_of(own, surely=surely) for own in columns]
    labels = max(sum(own.samples for own in rates), 1)
    low, high = (min(sum(ends) / labels, 1.0) for ends in zip(*((own.low, own.high) for own in rates)))
    evidence = rates[0].evidence
    if audit.multilabel:
        evidence = rate_of(np.concatenate(columns), negligible=NEGLIGIBLE_FINDINGS, surely=surely).evidence
    share = min(sum(own.wrong for own in rates) / labels, 1.0)
    if not own.stated:
        return replace(audit.rate, estimate=share, low=0.0, high=1.0), own
    evidence = evidence or own.review == CONVICTED
    rate = replace(audit.rate, estimate=share, low=low, high=high).at_stated_rate(evidence, labels)
    return rate, replace(own, wrong_labels=evidence)


def _agreement(audit: SiteAudit, probability: NDArray[np.float64]) -> NDArray[np.int64]:
    train = ~audit.is_test
    if audit.multilabel:
        return entries_of(audit.given[train], np.nan_to_num(probability[train]))
    return agreement_of(audit.given[train], probability[train], len(audit.classes))


def _readers(verdicts: Sequence[ReviewVerdict]) -> dict[str, int]:
    """How many readers stand behind what is settled of each sample; an adjudication counts as two."""
    final = settle(verdicts).final
    said: dict[str, set[str]] = {}
    for one in verdicts:
        if not one.adjudicates:
            said.setdefault(one.id, set()).add(one.reader)
    return {name: 2 if one.adjudicates else len(said[name]) for name, one in final.items()}


def _settled(
    audit: SiteAudit, k: int, before: NDArray[np.float64], label: Any, readers: int, error: float
) -> tuple[NDArray[np.float64], float]:
    """Row k of `probability` and P(wrong) after the verdict `label`."""
    if not audit.multilabel:
        after = with_known(before[None], [int(label)], readers, error)[0]
        return after, float(1 - after[int(audit.given[k])])
    differs = (label != audit.given[k]).astype(np.int64)
    known = ~np.isnan(before)
    two = np.stack([1 - np.nan_to_num(before), np.nan_to_num(before)], axis=1)
    entries = with_known(two, differs, readers, error)[:, 1]
    return np.where(known, entries, np.nan), float(entries[known].max(initial=0.0))


def _moved(audit: SiteAudit, curve: Recalibration, doubt: NDArray[np.float64]) -> NDArray[np.float64]:
    """Entries by the curve; for one class a sample the given class keeps 1 - P(wrong), the others share P(wrong)."""
    if audit.multilabel:
        return np.where(np.isnan(audit.probability), np.nan, curve(np.nan_to_num(audit.probability)))
    rows = np.arange(len(audit))
    others = audit.probability.copy()
    others[rows, audit.given] = 0.0
    total = others.sum(1, keepdims=True)
    even = np.full_like(others, 1.0 / max(len(audit.classes) - 1, 1))
    even[rows, audit.given] = 0.0
    result = doubt[:, None] * np.where(total > 0, others / np.maximum(total, 1e-300), even)
    result[rows, audit.given] = 1 - doubt
    return np.asarray(result)


def _label(audit: SiteAudit, numbers: list[int]) -> NDArray[np.int64] | np.int64:
    """Class numbers as the audit holds labels: one number, or zeros and ones."""
    if not audit.multilabel:
        return np.int64(numbers[0])
    row = np.zeros(len(audit.classes), np.int64)
    row[numbers] = 1
    return row
