"""FedELC: Jiang et al., Tackling Noisy Clients in Federated Learning with End-to-end Label Correction, CIKM 2024; with
the switches of its successor MaskedOptim (2025)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from fedsift.core.ranges import AtLeastOne, AtLeastZero, Count, Positive, Rate, Share
from fedsift.formulas import losses
from fedsift.formulas.losses import entropy, expected_value
from fedsift.methods._base import ask_to_train, methods
from fedsift.methods.fednoro import FedNoRoState, FindsNoisySites
from fedsift.protocol.federation import Federation
from fedsift.protocol.messages import Reply
from fedsift.protocol.method import Stage
from fedsift.protocol.site import Site
from fedsift.training.job import TrainingJob, TrainingResult
from fedsift.training.objective import Term, View
from fedsift.training.predict import site_logits
from fedsift.training.recipe import Recipe
from fedsift.training.requests import Train, Trained

# Labels that are learnt as distributions d = softmax(u) beside the network (FedELC): logits, u and
# targets are `[..., B, K]`
# ------------------------------------------------------------------------------


def label_distribution_loss(
    logits: Tensor, u: Tensor, target: Tensor, kept: Tensor, alpha: float, beta: float, scale: float
) -> Tensor:
    """scale KL(p || d) + alpha kept (-log d_y) + scale beta H(p), `[..., B]` (FedELC; scale = 1/K as released).

    kept: 1 where the given label still has a say, `[..., B]`; all are in FedELC, MaskedOptim leaves some out.
    """
    log_p, log_d = F.log_softmax(logits, dim=-1), F.log_softmax(u, dim=-1)
    divergence = (log_p.exp() * (log_p - log_d)).sum(-1)
    faithful = -expected_value(target, log_d) * kept
    return scale * divergence + alpha * faithful + scale * beta * entropy(logits)


def stepped_labels(
    u: Tensor, logits: Tensor, target: Tensor, kept: Tensor, alpha: float, scale: float, rate: Tensor | float
) -> Tensor:
    """u - rate [scale (d - p) + alpha kept (d - e_y)]: one step of plain descent on the loss above, `[..., B, K]`.

    Its fixed point is d = (scale p + alpha e_y) / (scale + alpha): the given label never loses its share.
    """
    p, d = F.softmax(logits.detach(), dim=-1), F.softmax(u, dim=-1)
    return u - rate * (scale * (d - p) + alpha * kept.unsqueeze(-1) * (d - target))


# FedELC at a site: a noisy one learns a distribution over the classes for each of its labels; a clean
# one trains as usual and scores its labels
# ------------------------------------------------------------------------------

NAME = "fedelc"
LABELS = "fedelc labels"
"""The notebook page of u, each sample's label before softmax, `[n, K]`; zeros where nothing is learnt yet."""


@dataclass(frozen=True)
class LearntLabels(Term):
    """s KL(p || d) + alpha (-log d_y) + s beta H(p) with d = softmax(u); after each look at a sample its u makes a step
    of its own. A sample is looked at once an epoch, so this is the release's step at the end of each epoch."""

    needs: ClassVar[frozenset[str]] = frozenset({LABELS})

    alpha: float = 0.5
    beta: float = 0.2
    class_scale: Literal["1/C", "1"] = "1/C"
    """s"""
    rate: float = 1000.0
    """lambda"""
    batch: int = 64
    """The step is lambda / batch; 0: by the batch's own size."""
    start: float = 10.0
    """K_u: u begins with this on the given class and 0 elsewhere."""
    mask_keep: float = 1.0
    """Share of a batch, by rising cross-entropy, whose given labels have a say."""

    def memory(self, classes: int) -> Mapping[str, tuple[int, ...]]:
        return {LABELS: (classes,)}

    def value(self, view: View) -> Tensor:
        target, present = view.target, view.present
        kept = present
        if self.mask_keep < 1:
            left_out = torch.tensor(1 - self.mask_keep, dtype=torch.float64)
            hard = losses.cross_entropy(view.logits.detach(), target)
            kept = losses.small_loss(hard, left_out, present)
        scale = 1 / target.shape[-1] if self.class_scale == "1/C" else 1.0
        u = begun(view.rows(LABELS), target, self.start)
        size = present.sum(-1)[..., None, None] if self.batch == 0 else float(self.batch)
        view.keep(
            LABELS,
            stepped_labels(u, view.logits, target, kept, self.alpha, scale, self.rate / size),
        )
        per_sample = label_distribution_loss(view.logits, u, target, kept, self.alpha, self.beta, scale)
        return view.mean(per_sample)


def begun(u: Tensor, target: Tensor, start: float) -> Tensor:
    """u `[..., K]`, with start e_y in the rows that nothing was learnt for yet."""
    return torch.where((u != 0).any(-1, keepdim=True), u, start * target)


@dataclass(frozen=True)
class TrainLearningLabels(Train):
    """Train on learnt labels at a noisy site, merge them with what the trained network says, and note the outcome."""

    reply_type: ClassVar[type[Reply]] = Trained

    merge_weight: float = 0.5
    """Share of the learnt label in the merged one; the rest is the trained network's prediction."""
    start: float = 10.0
    """K_u: the merged label times this is u of the next visit."""
    upload_mix: float = 1.0
    """Share of the trained model in what is sent; the rest is the received one."""

    def reply(self, site: Site, result: TrainingResult | None) -> Trained:
        assert result is not None
        given = F.one_hot(site.given, site.n_classes).to(torch.float32)
        learnt = F.softmax(begun(site.notebook[LABELS], given, self.start), dim=-1)
        predicted = F.softmax(site_logits(site, result.weights), dim=-1)
        merged = self.merge_weight * learnt + (1 - self.merge_weight) * predicted
        site.notebook[LABELS] = self.start * merged
        proposed = merged.argmax(-1)
        site.keep_evidence(
            NAME,
            proposed=proposed,
            flagged=proposed != site.given,
            suspicion=1 - losses.expected_value(given, merged),
        )
        return super().reply(site, replace(result, weights=self.sent(result)))

    def sent(self, result: TrainingResult) -> dict[str, Tensor]:
        """(1 - m) theta^t + m theta_k; whole numbers (batch norm's counters) are those of theta_k."""
        if self.upload_mix == 1:
            return dict(result.weights)
        return {
            name: torch.lerp(self.weights[name], own, self.upload_mix) if own.is_floating_point() else own
            for name, own in result.weights.items()
        }


@dataclass(frozen=True)
class TrainScoring(Train):
    """Train as usual at a site called clean; the received model scores its labels, none is held suspect."""

    reply_type: ClassVar[type[Reply]] = Trained

    def job(self, site: Site) -> TrainingJob:
        p = F.softmax(site_logits(site, self.weights).double(), dim=-1)
        given = F.one_hot(site.given, site.n_classes).double()
        site.keep_evidence(
            NAME,
            proposed=p.argmax(-1),
            flagged=torch.zeros(len(given), dtype=torch.bool),
            suspicion=1 - losses.expected_value(given, p),
        )
        return super().job(site)


@methods.register("fedelc")
@dataclass(frozen=True)
class FedELC(FindsNoisySites):
    """Find the noisy sites as FedNoRo does; there, learn a distribution over the classes for every label.

    The defaults are the released code's where that is safe. `form = "masked-optim"` is MaskedOptim.
    """

    summary: ClassVar[str] = "Finds noisy sites by per-class losses; learns their labels beside the network"
    paper: ClassVar[str] = "Jiang et al. 2024 (CIKM)"
    forms: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "released": {"statistics_on": "train", "label_batch": 0},
        "cifar-100": {"label_rate": 5000.0},
        "masked-optim": {
            "warm_up": 30,
            "beta": 0.1,
            "mask_keep": 0.8,
            "upload_mix": 0.8,
            "distance_aware": False,
            "aggregate": "geometric-median",
        },
    }
    usual_warm_up: ClassVar[int] = 20

    rounds: AtLeastOne = 120
    """T: rounds in all, warm-up included."""
    warm_up: Count | None = None
    """T_w: rounds before the noisy sites are sought; by itself 20, or half of all."""
    fraction: Share = 0.1
    """Share of the sites that train in a round; detection asks all of them."""

    alpha: AtLeastZero = 0.5
    """alpha: how much a learnt label holds on to the given one."""
    beta: AtLeastZero = 0.2
    """beta: weight of the entropy of the predictions."""
    class_scale: Literal["1/C", "1"] = "1/C"
    """Factor of the network's two terms: one over the number of classes (released code), or 1, with which the network
    learns as fast as at clean sites and labels move further."""
    label_rate: Positive = 1000.0
    """lambda: step of the learnt labels."""
    label_batch: Count = 64
    """A label's step is lambda divided by this, whatever the batch; 0: by the batch's own size (released code)."""
    label_scale: Positive = 10.0
    """K_u: a label as it starts, and a merged one, is softmax of so many times itself."""
    merge_weight: Rate = 0.5
    """Share of the learnt label when it is merged with the trained network's prediction."""

    mask_keep: Share = 1.0
    """Share of a batch, by rising cross-entropy, whose given labels have a say (MaskedOptim: 0.8)."""
    upload_mix: Share = 1.0
    """Share of the trained model in what a noisy site sends, the rest is the received one (MaskedOptim: 0.8)."""

    local: Recipe = field(
        default_factory=lambda: Recipe(epochs=5, batch_size=64, lr=0.01, momentum=0.9, weight_decay=5e-4),
        kw_only=True,
    )

    def stages(self) -> list[Stage]:
        robust = (TrainLearningLabels, TrainScoring)
        return [
            Stage("warm up", self.t_1, self.train_alike, asks=(Train,)),
            Stage("find noisy sites", 1, self.find_noisy_sites, asks=self.sought, trains=False),
            Stage("label correction", self.rounds - self.t_1, self.correct_labels, asks=robust),
        ]

    def participants(self, federation: Federation) -> list[str]:
        return federation.choose(self.fraction)

    def correct_labels(self, state: FedNoRoState, federation: Federation) -> FedNoRoState:
        """Labels are learnt at noisy sites, clean ones train as before; then FedNoRo's aggregation."""
        requests = {
            site: self.at_noisy_site(state) if site in state.noisy else self.at_clean_site(state)
            for site in self.participants(federation)
        }
        replies = ask_to_train(federation, requests)
        return replace(state, weights=self.weigh(state, replies, federation))

    def at_clean_site(self, state: FedNoRoState) -> Train:
        """Cross-entropy on z + log pi_k, as in the warm-up."""
        return TrainScoring(state.weights, self.recipe(self.adjusted()))

    def at_noisy_site(self, state: FedNoRoState) -> Train:
        """KL(p || d) / C + alpha (-log d_y) + beta H(p) / C, without logit adjustment; u follows its own gradient."""
        loss = LearntLabels(
            self.alpha,
            self.beta,
            self.class_scale,
            self.label_rate,
            self.label_batch,
            self.label_scale,
            self.mask_keep,
        )
        return TrainLearningLabels(
            state.weights,
            self.recipe(loss),
            merge_weight=self.merge_weight,
            start=self.label_scale,
            upload_mix=self.upload_mix,
        )

    def tiny(self) -> FedELC:
        return replace(self, rounds=3, warm_up=1, fraction=1.0)
