"""FedLSR: Jiang et al., Towards Federated Learning against Noisy Labels via Local Self-Regularization, CIKM 2022; and
its form for several yes/no labels a sample, as FedMLP's comparison (Sun et al. 2024) adapted it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from fedsift.core.errors import ConfigError
from fedsift.core.ranges import AtLeastZero, Positive, Range, Share
from fedsift.formulas import losses
from fedsift.methods._base import OneStage, methods, train_round
from fedsift.methods._partial_annotation import published_recipe
from fedsift.protocol.federation import Federation
from fedsift.training.objective import Objective, Term, View, as_objective
from fedsift.training.recipe import Augment, Recipe

# FedLSR's loss on two augmented looks at the same samples: logits of each are `[..., B, K]`, results
# `[..., B]`
# ------------------------------------------------------------------------------


def log_sharpened_mixture(first: Tensor, second: Tensor, share: Tensor, temperature: float = 0.5) -> Tensor:
    """log p_s with p_s = p^(1/T) / sum_j p_j^(1/T) of p = lambda softmax(z1) + (1 - lambda) softmax(z2).

    share: lambda, `[...]`, one for each batch. In log space, so that a tiny probability keeps its gradient:
    `[..., B, K] -> [..., B, K]`.
    """
    weight = share.to(first.dtype)[..., None, None].clamp(1e-7, 1 - 1e-7)
    mixed = torch.logaddexp(
        F.log_softmax(first, dim=-1) + weight.log(), F.log_softmax(second, dim=-1) + (1 - weight).log()
    )
    return F.log_softmax(mixed / temperature, dim=-1)


def jensen_shannon(first: Tensor, second: Tensor, sharpness: float = 3.0, least: float = 1e-6) -> Tensor:
    """(KL(a || m) + KL(b || m)) / 2 with a = softmax(s z1), b = softmax(s z2), m = (a + b) / 2.

    least: probabilities count as at least this, as released. `[..., B, K] -> [..., B]`.
    """
    a = F.softmax(sharpness * first, dim=-1).clamp(min=least)
    b = F.softmax(sharpness * second, dim=-1).clamp(min=least)
    log_m = ((a + b) / 2).log()
    return ((a * (a.log() - log_m)).sum(-1) + (b * (b.log() - log_m)).sum(-1)) / 2


# FedLSR: Jiang et al., Towards Federated Learning against Noisy Labels via Local Self-Regularization,
# CIKM 2022
# ------------------------------------------------------------------------------

VIEWS = 2


@dataclass(frozen=True)
class SelfRegularised(Term):
    """CE(p_s, y) + gamma JS(z1, z2) [+ lambda_e H(p_s)]: rows of the batch are two views of the same samples.

    p_s is the sharpened mixture of both looks' predictions; its share lambda ~ Beta(1, 1) is drawn once a batch. With
    several yes/no labels a sample each class has a distribution of its own, (sigmoid(z), 1 - sigmoid(z)).
    """

    needs: ClassVar[frozenset[str]] = frozenset({"chance"})

    gamma: float
    sharpen: float = 0.5
    distil: float = 3.0
    twice: bool = False
    mean_over: Literal["samples", "entries"] = "samples"
    lambda_e: float = 0.0
    yes_no: bool = False
    """Several yes/no labels a sample."""
    partial: bool = False
    """Fit labels of annotated classes alone."""

    def value(self, view: View) -> Tensor:
        assert view.chance is not None
        first, second = view.logits.chunk(VIEWS, dim=-2)
        target = view.target.chunk(VIEWS, dim=-2)[0]
        # Beta(1, 1) is the uniform distribution; a batch's first row is never padding
        share = view.chance[..., 0]
        classes = first.shape[-1]
        if self.yes_no:
            first, second = (torch.stack([z, torch.zeros_like(z)], -1) for z in (first, second))
            target, share = torch.stack([target, 1 - target], -1), share.unsqueeze(-1)
        log_s = log_sharpened_mixture(first, second, share, self.sharpen)
        fit = self.fit(log_s, target)
        unsure = -(log_s.exp() * log_s).sum(-1)
        apart = jensen_shannon(first, second, self.distil)
        if self.yes_no:
            known = view.known.chunk(VIEWS, dim=-2)[0] if self.partial and view.known is not None else None
            fit = fit.mean(-1) if known is None else (fit * known).sum(-1) / known.sum(-1).clamp(min=1)
            unsure, apart = unsure.mean(-1), apart.sum(-1)
        if self.mean_over == "entries":
            apart = apart / classes
        per_sample = fit + self.gamma * apart + self.lambda_e * unsure
        real = view.present.chunk(VIEWS, dim=-1)[0]
        return (per_sample * real).sum(-1) / real.sum(-1).clamp(min=1)

    def fit(self, log_s: Tensor, target: Tensor) -> Tensor:
        """-log p_s of the label, or the loss that takes p_s for logits."""
        if not self.twice:
            return -losses.expected_value(target, log_s)
        if self.yes_no:
            return losses.binary_cross_entropy(log_s[..., 0].exp(), target[..., 0])
        return losses.cross_entropy(log_s.exp(), target)


@methods.register("fedlsr")
@dataclass(frozen=True)
class FedLSR(OneStage):
    """FedAvg whose sites agree with themselves: two views of each sample must give one, sharp prediction.

    The defaults are the loss as printed; `form = "released"` is the released one, which learns slowly.
    """

    summary: ClassVar[str] = "FedAvg on sharpened, mixed predictions of two looks that must agree"
    paper: ClassVar[str] = "Jiang et al. 2022 (CIKM)"
    instead: ClassVar[Mapping[str, str]] = {"multilabel": "fedlsr-ml"}
    forms: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "released": {"twice": True, "mean_over": "entries"},
        "plus": {"lambda_e": 0.6},
    }

    gamma: AtLeastZero = 0.4
    """gamma: final weight of the agreement of both looks; 0 leaves it out."""
    warm_up: Share = 0.2
    """t_w / T: share of the rounds over which gamma grows from 0, linearly."""
    sharpen: Positive = 0.5
    """T: temperature of the sharpening, below 1 is sharper."""
    distil: Positive = 3.0
    """The agreement is between softmax(3 z1) and softmax(3 z2)."""
    twice: bool = False
    """Feed the probabilities p_s to a cross-entropy that takes logits (released code): a loss between
    log(e + K - 1) - 1 and log(e + K - 1), which wrong labels cannot pull far, and right ones neither. False is
    -log p_s, as printed."""
    mean_over: Literal["samples", "entries"] = "samples"
    """The agreement's mean: over samples, or over samples and classes (released code, K times smaller)."""
    lambda_e: AtLeastZero = 0.0
    """lambda_e: weight of the entropy of p_s, "FedLSR+"; on in the released notebook, off in the paper's method."""
    degrees: Annotated[float, Range(0, 180)] = 30.0
    """Rotation of a look where train.augment changes nothing: two equal looks have nothing to agree on."""
    plain_first: bool = True
    """The first look is the sample as it is, as published; off augments both, each by itself."""

    local: Recipe = field(
        default_factory=lambda: Recipe(epochs=5, batch_size=60, lr=0.15, momentum=0.9, weight_decay=1e-4),
        kw_only=True,
    )

    def __post_init__(self) -> None:
        if self.local.mixup > 0:
            raise ConfigError(
                f"train.mixup = {self.local.mixup}: fedlsr mixes the predictions of two looks at one sample, so "
                "samples cannot be mixed besides; set train.mixup = 0"
            )

    def gamma_at(self, t: int) -> float:
        """gamma min(1, t / t_w) in round t, from 0."""
        return self.gamma * min(1.0, t / max(self.warm_up * self.rounds, 1.0))

    def term(self, gamma: float) -> SelfRegularised:
        return SelfRegularised(gamma, self.sharpen, self.distil, self.twice, self.mean_over, self.lambda_e)

    def objective(self, federation: Federation) -> Objective:
        return as_objective(self.term(self.gamma_at(federation.round.index)))

    def looks(self, federation: Federation) -> Recipe:
        """Two copies of every sample in a step: as it is, and augmented."""
        augment = self.local.augment if self.local.augment.active else Augment(degrees=self.degrees)
        plain = 1 if self.plain_first else 0
        return self.recipe(self.objective(federation), views=VIEWS, plain_views=plain, augment=augment)

    def train(self, state: Any, federation: Federation) -> Any:
        chosen = self.choose(state, federation)
        replies = train_round(federation, state.weights, self.looks(federation), chosen)
        federation.record(gamma=self.gamma_at(federation.round.index))
        return replace(state, weights=self.merged(replies, state.weights))


@methods.register("fedlsr-ml")
@dataclass(frozen=True)
class FedLSRMultiLabel(FedLSR):
    """FedLSR with a yes/no distribution for each class; the zeros of missing classes are taken at face value.

    `form = "released"` feeds probabilities to a loss that takes logits, which cannot fit.
    """

    summary: ClassVar[str] = "FedLSR for several yes/no labels: two looks must give one, sharp answer for each class"
    paper: ClassVar[str] = "Jiang et al. 2022 (CIKM); multi-label as in FedMLP's comparison"
    tasks: ClassVar[tuple[str, ...]] = ("multilabel",)
    instead: ClassVar[Mapping[str, str]] = {"multiclass": "fedlsr"}
    forms: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "released": {"twice": True},
        "plus": {"lambda_e": 0.6},
    }

    warm_up: Share = 0.08
    """t_w / T: share of the rounds over which gamma grows from 0; 40 of the published 500."""
    mean_over: Literal["samples", "entries"] = "entries"
    """The agreement of a sample: its sum over classes, or their mean, as the fit is one."""
    partial: bool = False
    """Fit the labels of annotated classes alone, and let all classes agree; off as published."""

    local: Recipe = field(default_factory=published_recipe, kw_only=True)

    def term(self, gamma: float) -> SelfRegularised:
        return replace(super().term(gamma), yes_no=True, partial=self.partial)
