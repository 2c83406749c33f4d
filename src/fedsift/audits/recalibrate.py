"""Probabilities after people have looked: recalibrated by their verdicts, and certain where they settled a label."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fedsift.audits.findings import SiteAudit
from fedsift.audits.review import Plan, known_labels, outcomes
from fedsift.audits.verdicts import Verdict
from fedsift.contract.errors import DataError
from fedsift.signals.label_verdicts import Recalibration, recalibrated

SETTLED = "settled by review"
LISTED = 0.5


def recalibrate(
    audit: SiteAudit, plan: Plan, verdicts: Sequence[Verdict], reader_error: float = 0.0
) -> tuple[SiteAudit, Recalibration]:
    """The audit with probabilities that fit the verdicts, and the curve that they gave.

    The order of the samples that nobody looked at stays as it was; a settled sample is certain, and leaves the list
    where its given label was found right.
    """
    rows, wrong, weights = outcomes(audit, plan, verdicts)
    if not len(rows):
        raise DataError(
            f"site '{audit.site}': no settled verdict of the plan's samples yet; import some first"
        )
    curve = recalibrated(audit.probability_wrong[rows], wrong, weights, reader_error=reader_error)
    doubt = curve(audit.probability_wrong)
    probability = _moved(audit, curve, doubt)
    proposed, flagged = audit.proposed.copy(), audit.flagged & (doubt > LISTED)
    reason = list(audit.reason)
    number = {name: k for k, name in enumerate(audit.classes)}
    for sample, names in known_labels(audit, verdicts).items():
        k = audit.row_of.get(sample)
        if k is None:
            continue
        label = _label(audit, [number[name] for name in names])
        changed = not np.array_equal(label, audit.given[k])
        proposed[k], doubt[k], flagged[k] = label, float(changed), changed
        probability[k] = (label != audit.given[k]) if audit.multilabel else np.eye(len(audit.classes))[label]
        reason[k] = SETTLED
    return (
        replace(
            audit,
            probability=probability,
            probability_wrong=doubt,
            proposed=np.where(flagged[:, None] if audit.multilabel else flagged, proposed, audit.given),
            flagged=flagged,
            reason=tuple(reason),
        ),
        curve,
    )


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
