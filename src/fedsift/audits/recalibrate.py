"""Probabilities after people have looked: recalibrated by their verdicts, and nearly certain for what they settled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsift.audits.counts import agreement_of, entries_of
from fedsift.audits.findings import Finding, Rate, SiteAudit
from fedsift.audits.review import Plan, known_labels, outcomes, settle
from fedsift.audits.verdicts import Verdict
from fedsift.contract.errors import DataError
from fedsift.signals.label_findings import NEGLIGIBLE_FINDINGS
from fedsift.signals.label_rates import rate_of
from fedsift.signals.label_verdicts import Recalibration, reader_error_of, recalibrated, with_known

SETTLED = "settled by review"
LISTED = 0.5


@dataclass(frozen=True)
class Learnt:
    """What the verdicts taught."""

    curve: Recalibration
    reader_error: float
    """Share of verdicts that are mistaken: as it was given, or as the verdicts themselves suggest."""


def recalibrate(
    audit: SiteAudit, plan: Plan, verdicts: Sequence[Verdict], reader_error: float | None = None
) -> tuple[SiteAudit, Learnt]:
    """The audit with probabilities that fit the verdicts, and what they taught.

    It starts from what the models alone said, so that a verdict counts once however often it is recalibrated.
    The order of the samples that nobody looked at stays as it was. A settled sample is on the list exactly where people
    found its label wrong, with the label that they named; its probability also counts that readers are mistaken at
    times: once for a reader, twice for two who agree or an adjudication. Rate, finding and agreement follow from the
    new probabilities as the audit's own did from its.
    """
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
    found = any(wrong and doubt[k] > LISTED and not audit.is_test[k] for k, wrong in settled.items())
    rate, finding = _told(audit, probability, doubt, found)
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
    return after, Learnt(curve, error)


def _words(samples: int) -> str:
    return (
        f"recalibrated: probabilities, list and estimates follow from the audit and from what people said of "
        f"{samples} {'sample' if samples == 1 else 'samples'}"
    )


def _told(
    audit: SiteAudit, probability: NDArray[np.float64], doubt: NDArray[np.float64], found: bool
) -> tuple[Rate, Finding]:
    """The share of wrong labels and whether there is evidence of any, by the audit's own rules.

    found: whether people found a wrong label, which is evidence itself. Where neither they nor the audit did, none is
    told. An audit that claims no interval (ranks are no probabilities) gets none by a few verdicts either.
    """
    train = ~audit.is_test
    columns = [doubt[train]]
    if audit.multilabel:
        judged = [own[train] for own in probability.T if not np.isnan(own).all()]
        columns = [np.nan_to_num(own) for own in judged] or [np.zeros(0)]
    surely = float(found or audit.finding.wrong_labels)
    rates = [rate_of(own, surely=surely) for own in columns]
    labels = max(sum(own.samples for own in rates), 1)
    low, high = (min(sum(ends) / labels, 1.0) for ends in zip(*((own.low, own.high) for own in rates)))
    evidence = rates[0].evidence
    if audit.multilabel:
        evidence = rate_of(np.concatenate(columns), negligible=NEGLIGIBLE_FINDINGS, surely=surely).evidence
    share = min(sum(own.wrong for own in rates) / labels, 1.0)
    if not audit.finding.stated:
        told = audit.finding.wrong_labels or found
        return replace(audit.rate, estimate=share, low=0.0, high=1.0), replace(
            audit.finding, wrong_labels=told
        )
    rate = replace(audit.rate, estimate=share, low=low, high=high).as_told(evidence or found, labels)
    return rate, replace(audit.finding, wrong_labels=evidence or found)


def _agreement(audit: SiteAudit, probability: NDArray[np.float64]) -> NDArray[np.int64]:
    train = ~audit.is_test
    if audit.multilabel:
        return entries_of(audit.given[train], np.nan_to_num(probability[train]))
    return agreement_of(audit.given[train], probability[train], len(audit.classes))


def _readers(verdicts: Sequence[Verdict]) -> dict[str, int]:
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
