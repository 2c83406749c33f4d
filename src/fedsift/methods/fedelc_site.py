"""FedELC at a site: a noisy one learns a distribution over the classes for each of its labels; a clean one trains as
usual and scores its labels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from fedsift.contract.messages import Reply
from fedsift.local import losses
from fedsift.local.objective import Term, View
from fedsift.local.predict import site_logits
from fedsift.local.requests import Train, Trained
from fedsift.local.site import Site
from fedsift.local.trainer import Job, Result

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
            losses.stepped_labels(u, view.logits, target, kept, self.alpha, scale, self.rate / size),
        )
        per_sample = losses.label_distribution_loss(
            view.logits, u, target, kept, self.alpha, self.beta, scale
        )
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

    def reply(self, site: Site, result: Result | None) -> Trained:
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

    def sent(self, result: Result) -> dict[str, Tensor]:
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

    def job(self, site: Site) -> Job:
        p = F.softmax(site_logits(site, self.weights).double(), dim=-1)
        given = F.one_hot(site.given, site.n_classes).double()
        site.keep_evidence(
            NAME,
            proposed=p.argmax(-1),
            flagged=torch.zeros(len(given), dtype=torch.bool),
            suspicion=1 - losses.expected_value(given, p),
        )
        return super().job(site)
