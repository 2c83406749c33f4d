"""FedDPCont: Di et al., Federated Learning with Local Openset Noisy Labels, ECCV 2024."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from fedsift.core.codec import digest_of
from fedsift.core.errors import ConfigError, DataError
from fedsift.core.ranges import AtLeastOne, AtLeastZero, Count, Positive, Share
from fedsift.formulas import losses
from fedsift.formulas.aggregation import server_step
from fedsift.formulas.privacy import (
    posterior,
    project_on_simplex,
    randomised_response,
    response_noise,
    shrink_to_uniform,
)
from fedsift.methods._base import Averaging, ask_to_train, methods
from fedsift.protocol.federation import Federation, Replies
from fedsift.protocol.messages import Reply, Request, SiteFacts, Weights, disclosed
from fedsift.protocol.method import Stage, State
from fedsift.protocol.site import Site
from fedsift.training.objective import CrossEntropy, Objective, Term, View, as_objective
from fedsift.training.predict import site_logits
from fedsift.training.recipe import Recipe
from fedsift.training.requests import Train

# What a site does for FedDPCont: one private release of its labels, and the contrastive loss
# ------------------------------------------------------------------------------

RELEASE = "label release"
"""The notebook's page: what was released, at which epsilon, and a digest of the labels it was made from."""


def loss_of(epsilon: float | None) -> float:
    """The privacy loss as a number: none at all protects nothing."""
    return math.inf if epsilon is None else epsilon


# Label communication, section 4.2 ----------------------------------------------------------------------


@dataclass(frozen=True)
class ReleasedCounts(Reply):
    """Counts of a site's randomised labels; the single labels stay where they are."""

    counts: Tensor = disclosed("how many of its randomised labels fall in each class, [K]", "labels", least=0)
    epsilon: float | None = disclosed(
        "privacy loss of this release for each label; none: true counts", "setting", least=0.0, label_loss=True
    )
    releases: int = disclosed("how often its labels were ever released, this time included", "setting", least=1)
    private: bool = disclosed("whether the draw used entropy that the site alone knows", "setting")

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
        return None if isinstance(self.private, bool) else "it does not say whether the draw was private"


@dataclass(frozen=True)
class ReleaseLabels(Request[ReleasedCounts]):
    """Randomise every label once, keep the result, and send its histogram (Alg. 1 lines 2-6).

    The histogram is all that lines 7-8 use, and it is post-processing of the labels that the paper sends: the
    same epsilon, less leaves. A site that has released before sends what it sent then, so asking again spends
    nothing, in another run neither; if it was less private than what is asked now, it declines. It declines a first
    release that its budget does not allow, and a deployed site adds up what all its releases spent.
    """

    reply_type: ClassVar[type[Reply]] = ReleasedCounts

    epsilon: float | None
    """Privacy loss for each label; None sends the true counts."""
    classes: int
    budget: float | None = None
    """The study's limit; the site's own holds besides."""

    def answer(self, site: Site) -> ReleasedCounts:
        labels = digest_of(site.given)
        if self.classes != site.n_classes:  # an answer that no other label could give would disclose the label
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
        if page["epsilon"] is None and bool(((page["counts"] > 0) & (page["counts"] < site.min_count)).any()):
            raise DataError(
                f"site '{site.name}' reports no count below {site.min_count}, and true counts were asked for: "
                "ask for randomised ones (epsilon)"
            )
        return ReleasedCounts(page["counts"], page["epsilon"], 1, page["private"])

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
        "largest absolute logit of its model on its own samples; with a minimum count, the mean over so many",
        "score",
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
        return LargestLogit(float(largest.topk(max(1, site.min_count)).values.mean()))


Recovery = Literal["clip", "project", "shrink", "raw"]


@dataclass(frozen=True)
class FedDPContState(State):
    """The global model and the federation's label shares."""

    q: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    """P(Y~), `[K]`; empty before the release, and when sites contrast with their own labels."""


@methods.register("feddpcont")
@dataclass(frozen=True)
class FedDPCont(Averaging):
    """Sites release their labels once under label differential privacy, then contrast with labels of all.

    A label drawn from the whole federation is probably wrong for a given image, so its loss is subtracted:
    sites that see a part of the classes only, under noise, do not overfit to them.
    """

    summary: ClassVar[str] = "Subtracts the loss of labels drawn from the federation's private label shares"
    paper: ClassVar[str] = "Di et al. 2024 (ECCV)"

    rounds: AtLeastOne = 300
    """R: communication rounds."""
    fraction: Share = 0.1
    """lambda: share of the sites that train in a round."""
    server_lr: Positive = 1.0
    """alpha_g: server step (Alg. 2 line 18, its sign and weights mended); 1 is FedAvg's average."""

    epsilon: float | None = 0.81
    """Privacy loss of the one release, for each label; inf (or None) sends true counts. 0.81 keeps a label of
    10 with probability 0.2; the paper has 3.21 for 100 classes, 1.17 for 14."""
    budget: float | None = None
    """Refuse to spend more than this on a label; a site's own limit holds besides."""
    recovery: Recovery = "clip"
    """What makes (T^T)^-1 p a distribution: cut negative shares and rescale, project it, draw it towards equal
    shares by as much as the privacy noise could have moved it, or nothing."""

    beta: AtLeastZero = 1.0
    """Weight of the contrastive term; 1 in eq. 2, 0 is FedAvg."""
    beta_warmup: Count = 0
    """Rounds over which beta grows from 0, linearly."""
    contrast_eps: Positive = 1e-8
    """Inside the contrastive term's log(p + eps), which bounds it; 0 is the paper's, unbounded below."""
    contrast: Literal["sample", "expectation"] = "sample"
    """Draw y' for every sample and epoch (the paper), or take the mean over y': no sampling noise."""
    scope: Literal["global", "local"] = "global"
    """Contrast with labels of the whole federation, or of the site alone: then nothing is released."""
    watch_logits: bool = False
    """Ask for the largest logit in every visit, at one forward pass a site."""

    local: Recipe = field(default_factory=lambda: Recipe(epochs=5, lr=0.01), kw_only=True)

    def __post_init__(self) -> None:
        if self.epsilon is None:
            object.__setattr__(self, "epsilon", math.inf)  # TOML has no null; both mean no privacy noise
        for name in ("epsilon", "beta", "beta_warmup", "contrast_eps", "budget"):
            value = getattr(self, name)
            if value is not None and not value >= 0:
                raise ConfigError(f"method.{name} = {value}: it must be 0 or more")
        if not self.server_lr > 0:
            raise ConfigError(f"method.server_lr = {self.server_lr}: it must be positive")
        if self.releases and self.budget is not None and self.private_epsilon > self.budget:
            raise ConfigError(f"method.epsilon = {self.epsilon} is more than method.budget = {self.budget}")

    @property
    def private_epsilon(self) -> float:
        assert self.epsilon is not None
        return self.epsilon

    @property
    def releases(self) -> bool:
        """Whether any label information is needed at all."""
        return self.scope == "global" and self.beta > 0

    def begin(self, federation: Federation, weights: Weights) -> FedDPContState:
        return FedDPContState(weights)

    def stages(self) -> list[Stage]:
        asks = (Train, WatchLogits) if self.watch_logits else (Train,)
        release = (
            [Stage("label release", 1, self.release_labels, (ReleaseLabels,), trains=False)] if self.releases else []
        )
        return [*release, Stage("train", self.rounds, self.train, asks)]

    # Label communication, Alg. 1 -----------------------------------------------------------------------

    def release_labels(self, state: FedDPContState, federation: Federation) -> FedDPContState:
        """Once, before the rounds (Alg. 2 lines 3-6): releasing in every round would spend R epsilon."""
        request = ReleaseLabels(_finite(self.private_epsilon), len(federation.classes), self.budget)
        replies = federation.ask(request)
        raw, q = label_shares(replies.values(), self.recovery)
        if self.contrast == "sample" and bool((q < 0).any()):
            raise ConfigError(
                f"the recovered label shares hold negative entries (least {q.min():.3g}), no label can be "
                'drawn from them: use method.recovery = "clip" or method.contrast = "expectation"'
            )
        self.record_privacy(replies, federation)
        federation.record(label_shares=q.tolist(), label_shares_shift=float(np.abs(q - raw).sum() / 2))
        return replace(state, q=q)

    def record_privacy(self, replies: Replies[ReleasedCounts], federation: Federation) -> None:
        """The ledger: what was spent on each label, by which mechanism, how often."""
        asked = _finite(self.private_epsilon)
        spent = {site: reply.epsilon for site, reply in replies.items()}
        at_site = all(reply.private for reply in replies.values())
        federation.record(
            privacy={
                "mechanism": "randomised response on each label, histogram sent",
                "epsilon_asked": asked,
                "epsilon_spent_per_label": _most(spent.values()),
                "releases_per_label": max(reply.releases for reply in replies.values()),
                "sites": len(replies),
                "entropy": "site" if at_site else "run seed (simulation)",
            }
        )
        shown = {site: "none" if epsilon is None else epsilon for site, epsilon in spent.items()}
        federation.record_sites("label_epsilon_spent", shown)
        federation.record_sites("label_releases", {site: reply.releases for site, reply in replies.items()})
        earlier = [site for site, epsilon in spent.items() if epsilon != asked]
        if earlier:
            federation.warn(
                f"{', '.join(earlier)} had released labels before, at another epsilon: that release was used "
                "and nothing more was spent"
            )
        if replies.refused:
            others = ", ".join(replies.refused)
            federation.warn(f"no label release from {others}: the label shares are those of the other sites")

    # Contrastive training, Alg. 2 ----------------------------------------------------------------------

    def train(self, state: FedDPContState, federation: Federation) -> FedDPContState:
        """FedAvg whose sites minimise eq. 2."""
        beta = self.beta_at(federation.round.index)
        visit = Train(
            state.weights,
            self.recipe(self.loss(state, beta)),
            then=(WatchLogits(),) if self.watch_logits else (),
        )
        replies = ask_to_train(federation, visit, federation.choose(self.fraction))
        sizes = [reply.samples for reply in replies.values()]
        federation.record(beta=beta)
        logits = [part.value for r in replies.values() for part in r.then if isinstance(part, LargestLogit)]
        if logits:
            federation.record(largest_logit=max(logits))
        models = [reply.weights for reply in replies.values()]
        return replace(state, weights=server_step(state.weights, models, sizes, self.server_lr, self.merge))

    def beta_at(self, t: int) -> float:
        return self.beta * min(1.0, t / self.beta_warmup) if self.beta_warmup else self.beta

    def loss(self, state: FedDPContState, beta: float) -> Objective:
        """l(f(x), y~) - beta l(f(x), y'), eq. 2."""
        if beta == 0:
            return as_objective(CrossEntropy())
        q = tuple(state.q.tolist()) if self.scope == "global" else ()
        return as_objective(Contrastive(q, beta, self.contrast_eps, self.contrast))

    def tiny(self) -> FedDPCont:
        return replace(self, rounds=3, fraction=1.0)


def label_shares(
    releases: Iterable[ReleasedCounts], recovery: Recovery
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(T^T)^-1 p (Alg. 1 lines 8-9) and the shares q made of it, `[K]` each.

    Counts are pooled by epsilon and weighed by their number. Epsilon 0 carries no information: all at 0 is uniform.
    Beside others, neither does a pool whose noise alone is more than any distribution differs from equal shares.
    """
    counts: dict[float | None, NDArray[np.float64]] = {}
    for reply in releases:
        own = reply.counts.double().numpy()
        counts[reply.epsilon] = counts[reply.epsilon] + own if reply.epsilon in counts else own
    noises = {epsilon: response_noise(epsilon, len(pool), float(pool.sum())) for epsilon, pool in counts.items()}
    most = max(min(noises.values()), 1 - 1 / len(next(iter(counts.values()))))
    heard = {epsilon: pool for epsilon, pool in counts.items() if noises[epsilon] <= most}
    found = [(float(pool.sum()), posterior(pool, epsilon).raw) for epsilon, pool in heard.items()]
    informative = [(size, raw) for size, raw in found if raw is not None]
    if not informative:
        classes = len(next(iter(counts.values())))
        uniform = np.full(classes, 1.0 / classes)
        return uniform, uniform
    total = sum(size for size, _ in informative)
    raw = np.sum([size * part for size, part in informative], axis=0) / total
    if recovery == "raw":
        return raw, raw
    if recovery == "project":
        return raw, project_on_simplex(raw)
    if recovery == "shrink":
        parts = [(float(pool.sum()), noises[epsilon]) for epsilon, pool in heard.items() if epsilon != 0]
        noise = sum((size / total) ** 2 * each for size, each in parts)
        return raw, shrink_to_uniform(raw, noise)
    positive = np.maximum(raw, 0.0)
    return raw, positive / positive.sum()


def _finite(epsilon: float) -> float | None:
    return None if math.isinf(epsilon) else epsilon


def _most(spent: Iterable[float | None]) -> float | None:
    """The largest privacy loss; None (no noise at all) is larger than any."""
    return _finite(max(loss_of(value) for value in spent))
