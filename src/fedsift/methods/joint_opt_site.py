"""JointOpt at a site: each sample's label becomes the mean of what the network said of it in its last visits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from fedsift.contract.messages import Reply
from fedsift.local import losses
from fedsift.local.objective import Term, View
from fedsift.local.requests import Train, Trained
from fedsift.local.site import Site
from fedsift.local.trainer import Result

NAME = "joint-opt"
WINDOW = "joint-opt predictions"
"""The notebook page of each sample's last M predictions, oldest first, zeros where there is none yet: `[n, M, K]`."""

MOST_KEPT = 1000
"""Predictions of each sample that a message may ask a site to keep."""
Kind = Literal["soft", "hard"]


def mean_prediction(window: Tensor) -> Tensor:
    """Mean over those predictions of a window that exist, `[..., M, K] -> [..., K]`; zeros for an empty one.

    Every prediction sums to 1, so dividing by the total leaves no gap of an unfilled window in the label.
    """
    total = window.sum(-2)
    return total / total.sum(-1, keepdim=True).clamp(min=1e-12)


@dataclass(frozen=True)
class JointLabels(Term):
    """Cross-entropy with the label that the network's own earlier predictions make (eqs. 2, 8 and 9)."""

    needs: ClassVar[frozenset[str]] = frozenset({WINDOW})

    window: int = field(default=10, metadata={"least": 1, "most": MOST_KEPT})
    """M"""
    learnt: bool = True
    """Train on learnt labels, where a sample has any; False: on those at hand."""
    record: bool = True
    """Add this step's predictions to the window."""
    kind: Kind = "soft"

    def memory(self, classes: int) -> Mapping[str, tuple[int, ...]]:
        return {WINDOW: (self.window, classes)}

    def value(self, view: View) -> Tensor:
        window = view.rows(WINDOW)
        if self.record:
            now = F.softmax(view.logits.detach(), dim=-1).unsqueeze(-2)
            view.keep(WINDOW, torch.cat([window[..., 1:, :], now], dim=-2))
        return view.mean(losses.cross_entropy(view.logits, self.label(window, view.target)))

    def label(self, window: Tensor, target: Tensor) -> Tensor:
        """What a sample is trained on, `[..., B, K]`."""
        if not self.learnt:
            return target
        mean = mean_prediction(window)
        if self.kind == "hard":
            mean = F.one_hot(mean.argmax(-1), mean.shape[-1]).to(mean.dtype)
        return torch.where(window.sum((-2, -1)).unsqueeze(-1) > 0, mean, target)


@dataclass(frozen=True)
class TrainJointly(Train):
    """Train on learnt labels, then write down for the site which of its labels they contradict."""

    reply_type: ClassVar[type[Reply]] = Trained
    late: ClassVar[bool] = True
    """Where labels are what the network predicts already there is little to learn: a site that comes for the first
    time, with its given labels, moves thirty times as far as one that has learnt its own."""

    def reply(self, site: Site, result: Result | None) -> Trained:
        window: Tensor = site.notebook[WINDOW]
        label = mean_prediction(window)
        proposed = torch.where(window.sum((-2, -1)) > 0, label.argmax(-1), site.given)
        suspicion = 1 - label.gather(1, site.given.unsqueeze(1)).squeeze(1)
        site.keep_evidence(
            NAME, labels=proposed, proposed=proposed, flagged=proposed != site.given, suspicion=suspicion
        )
        return super().reply(site, result)
