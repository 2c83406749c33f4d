"""Coordinate-wise median: Yin et al., Byzantine-Robust Distributed Learning, ICML 2018."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from fedsift.methods._base import AnyLoss, methods


@methods.register("fedmedian")
@dataclass(frozen=True)
class FedMedian(AnyLoss):
    """FedAvg whose mean is a median: a minority of sites, however far off, cannot carry the model away."""

    summary: ClassVar[str] = "Coordinate-wise median of the sites' models instead of their mean"
    paper: ClassVar[str] = "Yin et al. 2018"
    tasks: ClassVar[tuple[str, ...]] = ("multiclass", "multilabel")

    aggregate: str = field(default="median", kw_only=True)
    """The median of every coordinate over the sites' models; their sizes play no role."""
