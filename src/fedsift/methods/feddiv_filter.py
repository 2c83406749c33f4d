"""FedDiv's filter at a site: two Gaussians over its samples' losses, and what they say of its labels."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from fedsift.contract.codec import Wire
from fedsift.contract.messages import Reply, Request, SiteFacts, Weights, disclosed
from fedsift.local.predict import site_logits
from fedsift.local.requests import count_refusal
from fedsift.local.site import Site
from fedsift.signals.debiased import debiased
from fedsift.signals.two_gaussians import TwoGaussians, clean_share, first_filter, scaled_to_one

NAME = "feddiv"
USUAL = "feddiv usual prediction"
"""The notebook page of p_hat, the running mean of the site's predictions, float64 `[K]`."""
WORDS = (
    "means, variances and shares of two Gaussians over its samples' losses, six numbers; "
    "the share of the larger mean is about its rate of wrong labels"
)


@dataclass(frozen=True)
class Rules(Wire):
    """How a site reads the filter; symbols as in the paper."""

    clean_from: float = 0.5
    """A label is clean from this posterior on."""
    noisy_above: float = 0.1
    """A site is noisy where a larger share of its labels is not clean."""
    zeta: float = 0.75
    xi: float = 0.5
    momentum: float = 0.2
    """m"""
    relabel: bool = True
    pcs: bool = True
    pcs_when: Literal["epoch", "visit"] = "epoch"
    pcs_after: int = 0
    phat_conf: float = 0.0
    phat_over: Literal["all", "held"] = "all"
    scale: Literal["raw", "site_minmax"] = "raw"
    guarded: bool = True


def filter_losses(site: Site, logits: Tensor, scale: str) -> NDArray[np.float64]:
    """Cross-entropy of the given labels, `[n]`: as it is, or scaled to 0..1 within the site."""
    found: NDArray[np.float64] = F.cross_entropy(logits.double(), site.given, reduction="none").numpy()
    return scaled_to_one(found) if scale == "site_minmax" else found


def consistent_labels(site: Site, logits: Tensor, rules: Rules) -> Tensor:
    """y° = argmax f(x) - xi log p_hat, int64 `[n]` (eq. 9)."""
    held = torch.bincount(site.given, minlength=site.n_classes) > 0 if rules.phat_over == "held" else None
    scores = debiased(logits.double().numpy(), usual_prediction(site), rules.xi, held)
    return torch.from_numpy(scores.argmax(axis=1))


def usual_prediction(site: Site) -> NDArray[np.float64]:
    """p_hat; all classes alike before the first visit."""
    kept: Tensor = site.notebook.get(USUAL, torch.full((site.n_classes,), 1 / site.n_classes).double())
    return kept.numpy()


@dataclass(frozen=True)
class Sifted:
    """A site's labels behind the filter."""

    clean: Tensor
    """bool `[n]`: c_i >= clean_from."""
    sure: Tensor
    """bool `[n]`: max p >= zeta."""
    said: Tensor
    """int64 `[n]`: y_hat, the received model's label."""

    @property
    def noise(self) -> float:
        """delta_hat: share of the labels that are not clean."""
        return 1 - float(self.clean.double().mean())


def sift(site: Site, logits: Tensor, mixture: Tensor, rules: Rules) -> Sifted:
    """Part the labels by the filter (eqs. 7-8), and keep as evidence what it says of each."""
    belief = clean_share(filter_losses(site, logits, rules.scale), TwoGaussians.of(mixture.numpy()))
    top = F.softmax(logits.double(), dim=-1).max(-1)
    if rules.guarded:
        belief = np.where((top.indices == site.given).numpy(), 1.0, belief)
    found = Sifted(torch.from_numpy(belief >= rules.clean_from), top.values >= rules.zeta, top.indices)
    clear = ~found.clean & found.sure & (found.said == consistent_labels(site, logits, rules))
    site.keep_evidence(
        NAME,
        suspicion=torch.from_numpy(1 - belief),
        flagged=~found.clean,
        # a suspect without a clear answer keeps its label as the proposal
        proposed=torch.where(clear, found.said, site.given),
    )
    return found


def filter_refusal(table: Tensor) -> str | None:
    if table.shape != (3, 2) or not table.is_floating_point():
        return f"the filter has shape {tuple(table.shape)}, two Gaussians are (3, 2) numbers"
    return (
        None if bool((table[1:] > 0).all()) else "the filter has a variance or a share that is not positive"
    )


@dataclass(frozen=True)
class Fitted(Reply):
    """A site's own filter."""

    filter: Tensor = disclosed(WORDS, least=0.0)
    samples: int = disclosed("how many samples it was fitted to")

    def refusal(self, request: FitFilter, facts: SiteFacts) -> str | None:
        return filter_refusal(self.filter) or count_refusal("samples", self.samples, facts.samples)


@dataclass(frozen=True)
class FitFilter(Request[Fitted]):
    """Fit two Gaussians to the site's losses under these weights, from nothing: W^0."""

    reply_type: ClassVar[type[Reply]] = Fitted

    weights: Weights
    scale: Literal["raw", "site_minmax"] = "raw"

    def answer(self, site: Site) -> Fitted:
        found = first_filter(filter_losses(site, site_logits(site, self.weights), self.scale))
        return Fitted(torch.from_numpy(found.table), len(site.samples))


@dataclass(frozen=True)
class Suspected(Reply):
    """How many labels the filter holds suspect; which, stays there."""

    suspects: int = disclosed("how many of its labels the final filter holds suspect")

    def refusal(self, request: SiftLabels, facts: SiteFacts) -> str | None:
        return count_refusal("suspects", self.suspects, facts.samples, least=0)


@dataclass(frozen=True)
class SiftLabels(Request[Suspected]):
    """Judge every label by the final model and filter: the site's list of suspects."""

    reply_type: ClassVar[type[Reply]] = Suspected

    weights: Weights
    filter: Tensor
    rules: Rules = field(default_factory=Rules)

    def answer(self, site: Site) -> Suspected:
        found = sift(site, site_logits(site, self.weights), self.filter, self.rules)
        return Suspected(int((~found.clean).sum()))
