"""FedLSR (Jiang et al., CIKM 2022) for several yes/no labels a sample, as FedMLP's comparison (Sun et al. 2024) adapted
it: the label that a site does not annotate is a wrong "absent", noise like any other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

from fedsift.contract.ranges import Share
from fedsift.local.recipe import Recipe
from fedsift.methods.base import methods
from fedsift.methods.fedlsr import FedLSR, SelfRegularised
from fedsift.methods.partly_annotated import published_recipe


@methods.register("fedlsr-ml")
@dataclass(frozen=True)
class FedLSRMultiLabel(FedLSR):
    """FedLSR with a yes/no distribution for each class; the zeros of missing classes are taken at face value.

    `form = "released"` feeds probabilities to a loss that takes logits, which cannot fit.
    """

    summary: ClassVar[str] = (
        "FedLSR for several yes/no labels: two looks must give one, sharp answer for each class"
    )
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
