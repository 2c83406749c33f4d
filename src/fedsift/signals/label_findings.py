"""Several yes/no labels a picture: the audit's model for each finding on its own, with a 2 x 2 T.

A finding that a site never annotates has no given label there: it is not judged, only predicted, from the shared model.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedsift.contract.errors import DataError
from fedsift.signals.label_posterior import (
    LabelModel,
    SiteFit,
    fit_site,
    probability_wrong,
    tempered_evidence,
)

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class FindingsFit:
    """One site's findings `[n, K]`."""

    present: Array
    """P(the finding is there | x, given, s); from x and the federation's share where it is not annotated."""
    wrong: Array
    """P(the given label is wrong); NaN where the site does not annotate the finding."""
    fits: tuple[SiteFit | None, ...]
    """One a finding; None where it is not annotated."""


def two_columns(probabilities: ArrayLike) -> Array:
    """P(finding) `[n]` as the columns no, yes `[n, 2]` that `fit_site` takes."""
    p = np.clip(np.asarray(probabilities, np.float64), 0.0, 1.0)
    return np.stack([1 - p, p], axis=-1)


def fit_findings(
    probabilities: ArrayLike, given: ArrayLike, annotated: ArrayLike, models: list[LabelModel]
) -> FindingsFit:
    """Every finding's fit from out-of-fold P(finding) `[n, K]`, given zeros and ones `[n, K]` and `annotated` `[K]`."""
    p, labels = np.asarray(probabilities, np.float64), np.asarray(given, np.int64)
    known = np.asarray(annotated, np.bool_)
    if p.shape != labels.shape or p.shape[1] != len(models) or len(known) != len(models):
        raise DataError(
            f"probabilities {p.shape}, labels {labels.shape}, {len(known)} annotated and {len(models)} models differ"
        )
    present, wrong = np.empty(p.shape), np.full(p.shape, np.nan)
    fits: list[SiteFit | None] = []
    for k, model in enumerate(models):
        two = two_columns(p[:, k])
        if not known[k]:
            q = tempered_evidence(two, model) * model.shares
            present[:, k] = q[:, 1] / q.sum(1)
            fits.append(None)
            continue
        fit = fit_site(two, labels[:, k], model)
        present[:, k] = fit.posterior[:, 1]
        wrong[:, k] = probability_wrong(fit, labels[:, k])
        fits.append(fit)
    return FindingsFit(present, wrong, tuple(fits))


def never_annotated(given: ArrayLike, expected: ArrayLike, threshold: float = 0.01) -> Flags:
    """Findings `[K]` that a site seems not to annotate: not one positive among n, where it would have some.

    given: `[n, K]`; expected: the federation's share of positives `[K]`. P(no positive) = (1 - share)^n < threshold.
    """
    labels, share = np.asarray(given), np.clip(np.asarray(expected, np.float64), 0.0, 1 - 1e-12)
    none = (labels > 0).sum(0) == 0
    return np.asarray(none & (len(labels) * np.log1p(-share) < np.log(threshold)))
