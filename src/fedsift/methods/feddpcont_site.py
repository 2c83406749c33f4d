"""What a site does for FedDPCont: one private release of its labels, and the contrastive loss."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fedsift.contract.codec import digest_of
from fedsift.contract.errors import DataError
from fedsift.contract.messages import Reply, Request, SiteFacts, Weights, disclosed
from fedsift.local import losses
from fedsift.local.objective import Term, View
from fedsift.local.predict import site_logits
from fedsift.local.site import Site
from fedsift.signals.privacy import randomised_response

RELEASE = "label release"
"""The notebook's page: what was released, at which epsilon, and a digest of the labels it was made from."""


def loss_of(epsilon: float | None) -> float:
    """The privacy loss as a number: none at all protects nothing."""
    return math.inf if epsilon is None else epsilon


# Label communication, section 4.2 ----------------------------------------------------------------------


@dataclass(frozen=True)
class Released(Reply):
    """Counts of a site's randomised labels; the single labels stay where they are."""

    counts: Tensor = disclosed(
        "how many of its randomised labels fall in each class, [K]", least=0, counts=False
    )
    epsilon: float | None = disclosed(
        "privacy loss of this release for each label; none: true counts", least=0.0, label_loss=True
    )
    releases: int = disclosed(
        "how often its labels were ever released, this time included", least=1, counts=False
    )
    private: bool = disclosed("whether the draw used entropy that the site alone knows")

    def refusal(self, request: ReleaseLabels, facts: SiteFacts) -> str | None:
        if self.counts.shape != (request.classes,) or self.counts.dtype != torch.int64:
            return f"the counts have shape {tuple(self.counts.shape)}, asked were {request.classes} integers"
        if bool((self.counts < 0).any()) or int(self.counts.sum()) != facts.samples:
            return f"the counts add up to {int(self.counts.sum())}, the site declared {facts.samples} samples"
        if self.epsilon is not None and not (isinstance(self.epsilon, float) and self.epsilon >= 0):
            return f"epsilon = {self.epsilon!r} is no privacy loss"
        if loss_of(self.epsilon) > loss_of(request.epsilon):
            return f"epsilon = {self.epsilon} is more than the {request.epsilon} that was asked"
        if not isinstance(self.releases, int) or isinstance(self.releases, bool) or self.releases < 1:
            return f"releases = {self.releases!r} is no number of releases"
        return None if isinstance(self.private, bool) else "whether the draw was private is not told"


@dataclass(frozen=True)
class ReleaseLabels(Request[Released]):
    """Randomise every label once, keep the result, and send its histogram (Alg. 1 lines 2-6).

    The histogram is all that lines 7-8 use, and it is post-processing of the labels that the paper sends: the
    same epsilon, less leaves. A site that has released before sends what it sent then, so asking again spends
    nothing, in another run neither; if it was less private than what is asked now, it declines. It declines a first
    release that its budget does not allow, and a deployed site adds up what all its releases spent.
    """

    reply_type: ClassVar[type[Reply]] = Released

    epsilon: float | None
    """Privacy loss for each label; None sends the true counts."""
    classes: int
    budget: float | None = None
    """The study's limit; the site's own holds besides."""

    def answer(self, site: Site) -> Released:
        labels = digest_of(site.given)
        if self.classes != site.n_classes:  # an answer that no other label could give would tell the label
            raise DataError(
                f"site '{site.name}' has {site.n_classes} classes: it draws from all of them, not from {self.classes}"
            )
        if RELEASE not in site.notebook:
            self.check_budget(site)
            drawn = randomised_response(
                site.given.numpy(),
                self.epsilon,
                self.classes,
                site.private_random("label release", self.epsilon, labels),
            )
            site.notebook[RELEASE] = {
                "counts": torch.from_numpy(np.bincount(drawn, minlength=self.classes).astype(np.int64)),
                "epsilon": None if self.epsilon is None else float(self.epsilon),
                "labels": labels,
                "private": bool(site.secret),
            }
        page = site.notebook[RELEASE]
        if page["labels"] != labels:
            raise DataError(
                f"site '{site.name}' released other labels before: a new release would spend epsilon again "
                f"on those that did not change. To accept that, remove the page '{RELEASE}' from its notebook"
            )
        if loss_of(page["epsilon"]) > loss_of(self.epsilon):
            raise DataError(
                f"site '{site.name}' released its labels at epsilon = {loss_of(page['epsilon']):g} before, "
                f"more than the {loss_of(self.epsilon):g} asked now: ask for as much, or leave the site out"
            )
        if page["epsilon"] is None and bool(((page["counts"] > 0) & (page["counts"] < site.smallest)).any()):
            raise DataError(
                f"site '{site.name}' tells no count below its floor {site.smallest}, and true counts were asked for: "
                "ask for randomised ones (epsilon)"
            )
        return Released(page["counts"], page["epsilon"], 1, page["private"])

    def check_budget(self, site: Site) -> None:
        limits = [limit for limit in (self.budget, site.privacy_budget) if limit is not None]
        if limits and loss_of(self.epsilon) > min(limits):
            raise DataError(
                f"site '{site.name}' would spend epsilon = {loss_of(self.epsilon):g} on each label, its "
                f"budget is {min(limits):g}: ask for a smaller epsilon"
            )


# Contrastive gradient updates, section 4.3 -------------------------------------------------------------


@dataclass(frozen=True)
class Contrastive(Term):
    """CE(z, y) - beta h(y') with h(c) = -log(p_c + eps) and y' from q, eq. 2.

    With beta = 1 and eps = 0 it is z_y' - z_y: linear in the logits, unbounded below.
    """

    q: tuple[float, ...] = ()
    """Label shares of the whole federation, `[K]`; empty: the site's own."""
    beta: float = 1.0
    eps: float = 1e-8
    peers: Literal["sample", "expectation"] = "sample"
    """Draw y' for every sample and epoch, or take the mean over y'."""

    @property
    def needs(self) -> frozenset[str]:  # type: ignore[override]
        chance = {"chance"} if self.peers == "sample" else set()
        return frozenset(chance if self.q else chance | {"prior"})

    def value(self, view: View) -> Tensor:
        contrast = shares = self.shares(view)
        if self.peers == "sample":
            assert view.chance is not None
            contrast = draw_peers(shares, view.chance).to(view.logits.dtype)
        per_sample = losses.contrastive_cross_entropy(view.logits, view.target, contrast, self.beta, self.eps)
        return view.mean(per_sample)

    def shares(self, view: View) -> Tensor:
        """q, broadcasting against the logits: `[K]` or `[..., 1, K]`."""
        if self.q:
            return torch.tensor(self.q, dtype=view.logits.dtype, device=view.logits.device)
        assert view.log_prior is not None
        return view.log_prior.exp()


def draw_peers(shares: Tensor, chance: Tensor) -> Tensor:
    """One-hot labels drawn from the shares by inverting their running sum: `[K], [..., B] -> [..., B, K]`.

    A class of share 0 is never drawn.
    """
    running = shares.double().cumsum(-1)
    running = running / running[..., -1:]
    return F.one_hot((chance.unsqueeze(-1) >= running).sum(-1), shares.shape[-1])


# Watching an unbounded loss ----------------------------------------------------------------------------


@dataclass(frozen=True)
class LargestLogit(Reply):
    """How far the logits have grown."""

    value: float = disclosed(
        "largest absolute logit of its model on its own samples; with a floor, the mean over so many",
        least=0.0,
    )

    def refusal(self, request: WatchLogits, facts: SiteFacts) -> str | None:
        fits = isinstance(self.value, float) and self.value >= 0
        return None if fits else f"{self.value!r} is no size of a logit"


@dataclass(frozen=True)
class WatchLogits(Request[LargestLogit]):
    """The largest absolute logit on the site's own samples."""

    reply_type: ClassVar[type[Reply]] = LargestLogit

    weights: Weights | None = None

    def answer(self, site: Site) -> LargestLogit:
        largest = site_logits(site, site.weights_for(self.weights)).abs().amax(-1)
        return LargestLogit(float(largest.topk(max(1, site.smallest)).values.mean()))
