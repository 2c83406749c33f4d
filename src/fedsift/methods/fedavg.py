"""FedAvg: McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, 2017."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedsift.methods._base import AnyLoss, methods


@methods.register("fedavg")
@dataclass(frozen=True)
class FedAvg(AnyLoss):
    """Every round, some sites train from the global model and their models are averaged by size."""

    summary: ClassVar[str] = "Average of the sites' models by size; the reference for everything else"
    paper: ClassVar[str] = "McMahan et al. 2017"
    tasks: ClassVar[tuple[str, ...]] = ("multiclass", "multilabel")
