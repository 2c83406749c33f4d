"""FedAvg-PL: FedAvg with a partial loss, the reference of Sun et al., FedMLP, MICCAI 2024, section 3.2."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from fedsift.methods._base import OneStage, for_missing_classes, methods
from fedsift.protocol.federation import Federation, FederationFacts, Incompatibility
from fedsift.training.objective import PositiveWeighted


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

    def incompatibilities(self, facts: FederationFacts) -> Iterator[Incompatibility]:
        yield from super().incompatibilities(facts)
        yield from for_missing_classes(facts)
