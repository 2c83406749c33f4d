"""Loss terms that bear wrong labels better than cross-entropy; any method of one repeated round can train on them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from fedsift.formulas import losses
from fedsift.training.objective import Term, View

LOG0 = math.log(1e-4)
"""-9.21, what RHFL's release takes for log 0."""
PREDICTIONS = "running predictions"
"""The notebook page of ELR's t: what the network has said of each sample so far, `[n, K]`."""


@dataclass(frozen=True)
class SymmetricCrossEntropy(Term):
    """alpha CE + beta RCE (Wang et al. 2019; RHFL eq. 5-7)."""

    alpha: float = 0.1
    beta: float = 1.0
    log0: float = LOG0

    def value(self, view: View) -> Tensor:
        return view.mean(losses.symmetric_cross_entropy(view.logits, view.target, self.alpha, self.beta, self.log0))


@dataclass(frozen=True)
class GeneralisedCrossEntropy(Term):
    """(1 - p_y^q) / q (Zhang and Sabuncu 2018): between cross-entropy (q -> 0) and mean absolute error (q = 1)."""

    q: float = 0.7

    def value(self, view: View) -> Tensor:
        return view.mean(losses.generalised_cross_entropy(view.logits, view.target, self.q))


@dataclass(frozen=True)
class EarlyLearning(Term):
    """CE + lambda log(1 - <p, t>) with t <- beta t + (1 - beta) p, renewed at every visit of a sample (ELR, Liu et al.
    2020): what a network learns early, mostly from right labels, holds it back from memorising the others.

    t stays in the site's notebook from visit to visit. Before a sample's first visit t = 0; it is renewed first, as
    released, so the first step already sees (1 - beta) p.
    """

    needs: ClassVar[frozenset[str]] = frozenset({PREDICTIONS})

    beta: float = 0.7
    strength: float = 3.0
    """lambda"""

    def memory(self, classes: int) -> Mapping[str, tuple[int, ...]]:
        return {PREDICTIONS: (classes,)}

    def value(self, view: View) -> Tensor:
        memory = losses.running_prediction(view.rows(PREDICTIONS), view.logits, self.beta)
        view.keep(PREDICTIONS, memory)
        held = losses.early_learning(view.logits, memory)
        return view.mean(losses.cross_entropy(view.logits, view.target) + self.strength * held)


@dataclass(frozen=True)
class ClassBalance(Term):
    """KL(pi || mean prediction of the batch) (JointOpt eq. 5, DivideMix eq. 10): without it a network that makes its
    own labels ends with one answer for all samples."""

    prior: Literal["uniform", "given"] = "uniform"
    """pi: all classes alike, as published, or the frequencies of the site's working labels."""

    @property
    def needs(self) -> frozenset[str]:  # type: ignore[override]
        return frozenset({"prior"}) if self.prior == "given" else frozenset()

    def value(self, view: View) -> Tensor:
        pi = None
        if self.prior == "given":
            assert view.log_prior is not None
            pi = view.log_prior.exp().squeeze(-2).expand(*view.logits.shape[:-2], -1)
        return losses.prior_divergence(view.logits, view.present, pi)


@dataclass(frozen=True)
class Entropy(Term):
    """Mean entropy of the predictions; with a negative weight it keeps a network from being too sure."""

    def value(self, view: View) -> Tensor:
        return view.mean(losses.entropy(view.logits))
