"""Forward correction and T-revision at a site: estimate the label noise as a matrix, train through it, revise it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from fedsift.contract.messages import Reply, Request, SiteFacts, Weights, disclosed
from fedsift.local import losses
from fedsift.local.extras import Extra, PerSite
from fedsift.local.objective import Term, View
from fedsift.local.predict import site_logits
from fedsift.local.requests import Train, Trained, count_refusal
from fedsift.local.site import Site
from fedsift.local.trainer import Result

TRANSITION = "transition"
"""The notebook page of the site's T, `[K, K]`; it never leaves the site."""
CHANGE = "transition change"
"""The notebook page of T-revision's dT, `[K, K]`; it never leaves the site."""

Estimator = Literal["confident", "anchor"]
Correction = Literal["forward", "reweight"]


def confident_transition(
    probabilities: ArrayLike, labels: ArrayLike, confidence: float
) -> tuple[NDArray[np.float64], int]:
    """T[i][j] = share of given label j among the samples that the model calls i with more than this confidence
    (FedDPCont section 9), `[n, K], [n] -> [K, K]`, and the number of rows with any such sample.

    A class without one keeps its row of the identity: no evidence of noise.
    """
    p, given = np.asarray(probabilities, dtype=np.float64), np.asarray(labels, dtype=np.int64)
    classes = p.shape[1]
    sure = p.max(axis=1) > confidence
    counts = np.zeros((classes, classes))
    np.add.at(counts, (p[sure].argmax(axis=1), given[sure]), 1.0)
    return _rows_or_identity(counts)


def anchor_transition(probabilities: ArrayLike, percentile: float) -> tuple[NDArray[np.float64], int]:
    """Row i is the prediction p(x) at the anchor of class i, the sample of largest p_i once the values above this
    percentile are set aside (T-revision; Patrini et al. 2017), `[n, K] -> [K, K]`, and the number of rows found.

    A class that the model calls no sample keeps its row of the identity: the best of such samples is no anchor.
    """
    p = np.asarray(probabilities, dtype=np.float64)
    rows = np.zeros((p.shape[1], p.shape[1]))
    for i in np.unique(p.argmax(axis=1)) if len(p) else ():
        below = p[:, i] < np.percentile(p[:, i], percentile, method="higher")
        among = np.flatnonzero(below) if below.any() else np.arange(len(p))
        rows[i] = p[among[p[among, i].argmax()]]
    return _rows_or_identity(rows)


def _rows_or_identity(rows: NDArray[np.float64]) -> tuple[NDArray[np.float64], int]:
    total = rows.sum(axis=1, keepdims=True)
    found = total[:, 0] > 0
    table = np.where(total > 0, rows / np.where(total > 0, total, 1.0), np.eye(len(rows)))
    return table, int(found.sum())


@dataclass(frozen=True)
class Estimated(Reply):
    """That a site has a matrix now; the matrix stays there."""

    rows: int = disclosed(
        "for how many classes the site could estimate how their labels are mistaken", counts=False
    )

    def refusal(self, request: EstimateTransition, facts: SiteFacts) -> str | None:
        return count_refusal("rows", self.rows, request.classes, least=0)


@dataclass(frozen=True)
class EstimateTransition(Request[Estimated]):
    """Estimate T[i][j] = P(given j | true i) from the model's predictions on the site's samples, and keep it."""

    reply_type: ClassVar[type[Reply]] = Estimated

    weights: Weights
    classes: int
    estimator: Estimator = "confident"
    confidence: float = 0.95
    percentile: float = 97.0

    def answer(self, site: Site) -> Estimated:
        p = torch.softmax(site_logits(site, self.weights).double(), -1).numpy()
        if self.estimator == "confident":
            table, rows = confident_transition(p, site.labels.numpy(), self.confidence)
        else:
            table, rows = anchor_transition(p, self.percentile)
        site.notebook[TRANSITION] = torch.from_numpy(table).float()
        return Estimated(rows)


@dataclass(frozen=True)
class ThroughTransition(Term):
    """A loss that knows how labels are mistaken: -log (T^T p)_y ("forward") or p_y / (T^T p)_y CE ("reweight")."""

    correction: Correction = "forward"
    revise: bool = False
    """Use T + dT, negative entries cut and rows rescaled."""

    @property
    def needs(self) -> frozenset[str]:  # type: ignore[override]
        return frozenset({TRANSITION, CHANGE}) if self.revise else frozenset({TRANSITION})

    def value(self, view: View) -> Tensor:
        transition = view.site(TRANSITION)
        if self.revise:
            transition = losses.revised_transition(transition, view.site(CHANGE))
        loss = losses.forward_correction if self.correction == "forward" else losses.reweighted_cross_entropy
        return view.mean(loss(view.logits, view.target, transition))


@dataclass(frozen=True)
class TrainCorrected(Train):
    """Train through the site's T; with a step for dT, learn that too and keep it."""

    reply_type: ClassVar[type[Reply]] = Trained

    revision_lr: float = 0.0
    """Step of dT; 0: T as it was estimated."""

    def extras(self, site: Site) -> dict[str, Extra]:
        identity = torch.eye(site.n_classes)  # a site that was away when matrices were made corrects nothing
        extras: dict[str, Extra] = {TRANSITION: PerSite(site.notebook.get(TRANSITION, identity))}
        if self.revision_lr > 0:
            extras[CHANGE] = PerSite(site.notebook.get(CHANGE, torch.zeros_like(identity)), self.revision_lr)
        return extras

    def reply(self, site: Site, result: Result | None) -> Trained:
        if result is not None and CHANGE in result.learnt:
            site.notebook[CHANGE] = result.learnt[CHANGE]
        return super().reply(site, result)
