"""`fedsift.audit_labels`: audit labels from any model's out-of-fold probabilities, without a federation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedsift.core.errors import DataError
from fedsift.detection.label_rates import FALSE_ALARM
from fedsift.label_audit.judge import Judgement, corrected, judge_labels
from fedsift.label_audit.messages import first_reply, second_reply, shared_model, site_tempering, start_model
from fedsift.label_audit.results import DISAGREES
from fedsift.label_audit.site_audit import AuditFinding, Issues, SampleEvidence, SiteAudit, WrongShare, issues


@dataclass(frozen=True)
class LabelsAudit:
    """What was found at each site."""

    sites: dict[str, SiteAudit]

    @property
    def issues(self) -> Issues:
        """The suspects of all sites, worst first."""
        found = [issue for own in self.sites.values() for issue in issues(own)]
        return Issues(sorted(found, key=lambda issue: -issue.probability_wrong))


def audit_labels(
    given: ArrayLike,
    probabilities: ArrayLike,
    *,
    site: ArrayLike | None = None,
    classes: Sequence[str] | None = None,
    ids: Sequence[str] | None = None,
) -> LabelsAudit:
    """Which of these labels are wrong, from probabilities of a model that did not see them (out of fold).

    given: class numbers `[n]`. probabilities: P(class | sample) `[n, K]` of any model that was trained on the given
    labels. site `[n]`: where each label was given; sites differ in class shares and error rates, and that is used.
    """
    labels, p = np.asarray(given), np.asarray(probabilities, np.float64)
    if labels.ndim != 1 or p.ndim != 2 or len(p) != len(labels):
        raise DataError(f"given labels {labels.shape} and probabilities {p.shape}: [n] and [n, K] are needed")
    if not np.issubdtype(labels.dtype, np.integer):
        raise DataError(f"given labels are {labels.dtype}: class numbers from 0 are needed")
    names = tuple(classes) if classes is not None else tuple(str(k) for k in range(p.shape[1]))
    if len(names) != p.shape[1]:
        raise DataError(f"{len(names)} classes are named, the probabilities have {p.shape[1]} columns")
    if not len(labels):
        raise DataError("there are no labels to audit: given and probabilities are empty")
    _check_values(labels, p)
    where = np.full(len(labels), "all") if site is None else np.asarray(site).astype(str)
    if len(where) != len(labels):
        raise DataError(f"{len(where)} sites for {len(labels)} labels")
    called = [str(k) for k in range(len(labels))] if ids is None else [str(name) for name in ids]
    if len(called) != len(labels):
        raise DataError(f"{len(called)} ids for {len(labels)} labels")
    parts = {name: np.flatnonzero(where == name) for name in dict.fromkeys(where.tolist())}
    # one person holds all of it: no table crosses a border, so nothing is withheld
    start = start_model([first_reply(labels[rows], len(names), min_count=0) for rows in parts.values()])
    seconds = {name: second_reply(p[rows], labels[rows], start, min_count=0) for name, rows in parts.items()}
    shared = shared_model(list(seconds.values()), start)
    found = {}
    for name, rows in parts.items():
        model = shared.model.with_tempering(site_tempering(shared, seconds[name]))
        judged = judge_labels(p[rows][:, None], labels[rows][:, None], [True], [model], seconds[name].nats)
        found[name] = _site_audit(name, rows, labels[rows], p[rows], judged, names, called)
    return LabelsAudit(found)


def _check_values(labels: NDArray[np.int64], p: NDArray[np.float64]) -> None:
    """The first sample whose label or probabilities cannot be, by its number."""
    for row in np.flatnonzero((labels < 0) | (labels >= p.shape[1]))[:1]:
        raise DataError(f"sample {row} has the label {labels[row]}: classes run from 0 to {p.shape[1] - 1}")
    for row in np.flatnonzero(~np.isfinite(p).all(1) | (p < 0).any(1))[:1]:
        raise DataError(f"sample {row} has a probability that is negative or not finite: {p[row].tolist()}")
    for row in np.flatnonzero(np.abs(p.sum(1) - 1) > 1e-3)[:1]:
        raise DataError(f"the probabilities of sample {row} add up to {p[row].sum():.4g}, not to 1")


def _site_audit(
    name: str,
    rows: NDArray[np.int64],
    labels: NDArray[np.int64],
    p: NDArray[np.float64],
    judged: Judgement,
    classes: tuple[str, ...],
    called: list[str],
) -> SiteAudit:
    rate, posterior = judged.rates[0], judged.posterior[:, 0]
    assert rate is not None
    wrong = np.clip(judged.wrong[:, 0], 0.0, 1.0)
    agreement = np.zeros((len(classes), len(classes)))
    np.add.at(agreement, labels, posterior)
    n = max(len(rows), 1)
    return SiteAudit(
        site=name,
        classes=classes,
        multilabel=False,
        ids=tuple(called[row] for row in rows),
        given=labels,
        probability=posterior,
        probability_wrong=wrong,
        predicted=p.argmax(1),
        proposed=corrected(labels, posterior.argmax(1), wrong),
        flagged=judged.flagged,
        rate=WrongShare(rate.share, rate.low / n, rate.high / n),
        finding=AuditFinding(rate.evidence, FALSE_ALARM),
        agreement=np.rint(agreement).astype(np.int64),
        evidence=SampleEvidence("given probabilities, site-aware posterior"),
        reason=tuple(DISAGREES if mark else "" for mark in judged.flagged),
    )
