"""FedAvg-PL: FedAvg with a partial loss, the reference of Sun et al., FedMLP, MICCAI 2024, section 3.2."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedsift.contract import Federation, FederationFacts, Misfit
from fedsift.local import losses
from fedsift.local.objective import Term, View
from fedsift.methods.base import OneStage, for_missing_classes, methods


@dataclass(frozen=True)
class PositiveWeighted(Term):
    """Binary cross-entropy whose positives count 1 / pi_c times, pi_c the site's own share of positives.

    pi_c is kept within 1/(n+1) .. n/(n+1), so a class without positives weighs finitely (and nothing).
    """

    partial: bool = True
    """Only annotated classes count; False takes the zeros of the others at face value."""
    weigh: bool = False
    """Weigh positives at all."""

    @property
    def needs(self) -> frozenset[str]:  # type: ignore[override]
        return frozenset({"prior"}) if self.weigh else frozenset()

    def value(self, view: View) -> Tensor:
        entries = losses.binary_cross_entropy(view.logits, view.target)
        if self.weigh:
            assert view.log_prior is not None
            # the log-odds are the prior's logit, so n / n_c = 1 / sigmoid(log-odds)
            entries = entries * torch.where(view.target > 0.5, 1 / torch.sigmoid(view.log_prior), 1.0)
        if self.partial and view.known is not None:
            return view.mean((entries * view.known).sum(-1) / view.known.sum(-1).clamp(min=1))
        return view.mean(entries.mean(-1))


@methods.register("fedavg-pl")
@dataclass(frozen=True)
class FedAvgPL(OneStage):
    """FedAvg whose sites learn from the classes that they annotate and leave the others alone.

    `partial = false, pos_weight = true` is what FedMLP's released code runs under the name FedAvg.
    """

    summary: ClassVar[str] = "FedAvg with a loss over each site's annotated classes alone"
    paper: ClassVar[str] = "Sun et al. 2024 (FedMLP), section 3.2"
    tasks: ClassVar[tuple[str, ...]] = ("multilabel",)

    partial: bool = True
    """Leave classes out that a site does not annotate; False reads their zeros as "absent"."""
    pos_weight: bool = False
    """Weigh the positives of class c by N_k / n_c, as the released baselines do (from the given labels)."""

    def objective(self, federation: Federation) -> PositiveWeighted:
        return PositiveWeighted(partial=self.partial, weigh=self.pos_weight)

    def misfits(self, facts: FederationFacts) -> Iterator[Misfit]:
        yield from super().misfits(facts)
        yield from for_missing_classes(facts)
