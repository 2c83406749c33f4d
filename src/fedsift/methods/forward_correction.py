"""Forward loss correction (LC): Patrini et al., Making Deep Neural Networks Robust to Label Noise, CVPR 2017; federated
as FedDPCont section 9 says."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from fedsift.core.ranges import AtLeastOne, Range, Share
from fedsift.formulas import losses
from fedsift.methods._base import Averaging, ask_to_train, methods, plain_loss, train_round
from fedsift.protocol.federation import Federation
from fedsift.protocol.messages import Reply, Request, SiteFacts, Weights, disclosed
from fedsift.protocol.method import Stage, State
from fedsift.protocol.site import Site
from fedsift.training.job import TrainingResult
from fedsift.training.objective import Extra, PerSite, Term, View
from fedsift.training.predict import site_logits
from fedsift.training.requests import Train, Trained, count_refusal

# Forward correction and T-revision at a site: estimate the label noise as a matrix, train through it,
# revise it
# ------------------------------------------------------------------------------

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
class EstimatedTransition(Reply):
    """Confirms that a site has estimated its matrix, which stays there."""

    rows: int = disclosed("for how many classes the site could estimate how their labels are mistaken", "setting")

    def refusal(self, request: EstimateTransition, facts: SiteFacts) -> str | None:
        return count_refusal("rows", self.rows, request.classes, least=0)


@dataclass(frozen=True)
class EstimateTransition(Request[EstimatedTransition]):
    """Estimate T[i][j] = P(given j | true i) from the model's predictions on the site's samples, and keep it."""

    reply_type: ClassVar[type[Reply]] = EstimatedTransition

    weights: Weights
    classes: int
    estimator: Estimator = "confident"
    confidence: float = 0.95
    percentile: float = 97.0

    def answer(self, site: Site) -> EstimatedTransition:
        p = torch.softmax(site_logits(site, self.weights).double(), -1).numpy()
        if self.estimator == "confident":
            table, rows = confident_transition(p, site.labels.numpy(), self.confidence)
        else:
            table, rows = anchor_transition(p, self.percentile)
        site.notebook[TRANSITION] = torch.from_numpy(table).float()
        return EstimatedTransition(rows)


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

    def reply(self, site: Site, result: TrainingResult | None) -> Trained:
        if result is not None and CHANGE in result.learnt:
            site.notebook[CHANGE] = result.learnt[CHANGE]
        return super().reply(site, result)


@dataclass(frozen=True)
class ThroughMatrices(Averaging):
    """What forward correction and T-revision share: FedAvg, a matrix of label noise at each site, training through
    it."""

    fraction: Share = 0.1
    """Share of the sites that train in a round."""
    estimator: Estimator = "confident"
    """Row i of a site's T: given labels among samples surely called i ("confident", FedDPCont), or the prediction at
    the surest sample of i ("anchor", the original)."""
    confidence: Annotated[float, Range(0, 1, below=True)] = 0.95
    """A sample counts for "confident" above this probability."""
    percentile: Annotated[float, Range(0, 100, above=True)] = 97.0
    """For "anchor": larger probabilities than this percentile are set aside as outliers."""

    def warm(self, state: State, federation: Federation) -> State:
        """FedAvg on the given labels."""
        chosen = federation.choose(self.fraction)
        replies = train_round(federation, state.weights, self.recipe(plain_loss(federation)), chosen)
        return replace(state, weights=self.merged(replies, state.weights))

    def estimate(self, state: State, federation: Federation) -> State:
        """Every site makes its own T with the global model; nothing of it travels."""
        classes = len(federation.classes)
        request = EstimateTransition(state.weights, classes, self.estimator, self.confidence, self.percentile)
        replies = federation.ask(request)
        federation.record_sites("transition_rows", {site: reply.rows for site, reply in replies.items()})
        if all(reply.rows == 0 for reply in replies.values()):
            federation.warn(
                "no site is sure of any sample, every T is the identity: more warm-up rounds or a lower confidence"
            )
        return state

    def through(self, state: State, federation: Federation, loss: ThroughTransition, revision_lr: float = 0.0) -> State:
        """FedAvg whose sites train through their T."""
        visit = TrainCorrected(state.weights, self.recipe(loss), revision_lr=revision_lr)
        replies = ask_to_train(federation, visit, federation.choose(self.fraction))
        return replace(state, weights=self.merged(replies, state.weights))


@methods.register("lc")
@dataclass(frozen=True)
class ForwardCorrection(ThroughMatrices):
    """FedAvg first; then each site estimates how its labels are mistaken and trains on -log (T^T p)_y."""

    summary: ClassVar[str] = "Each site estimates how its labels are mistaken and corrects its loss for it"
    paper: ClassVar[str] = "Patrini et al. 2017; federated as in FedDPCont section 9"

    warmup: AtLeastOne = 150
    """Rounds of plain FedAvg before matrices are estimated."""
    rounds: AtLeastOne = 150
    """Rounds of training through them."""

    def stages(self) -> list[Stage]:
        return [
            Stage("warm-up", self.warmup, self.warm, asks=(Train,)),
            Stage("estimate", 1, self.estimate, asks=(EstimateTransition,), trains=False),
            Stage("correct", self.rounds, self.correct, asks=(TrainCorrected,)),
        ]

    def correct(self, state: State, federation: Federation) -> State:
        """FedDPCont eq. 1."""
        return self.through(state, federation, ThroughTransition())

    def tiny(self) -> ForwardCorrection:
        return replace(self, warmup=2, rounds=2, fraction=0.6, confidence=0.3)
