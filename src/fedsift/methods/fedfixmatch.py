"""FedFixMatch: FixMatch (Sohn et al. 2020) in local training, for sites that annotate some classes only, as FedMLP's
comparison (Sun et al. 2024) adapted it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor

from fedsift.contract import Federation, FederationFacts, Misfit
from fedsift.contract.ranges import AtLeastZero, Range
from fedsift.local import losses
from fedsift.local.objective import Objective, Term, View
from fedsift.local.recipe import Recipe
from fedsift.methods.base import OneStage, for_missing_classes, methods
from fedsift.methods.fedmlp_site import PartialClass, known_entries


@dataclass(frozen=True)
class FixMatch(Term):
    """Binary cross-entropy of the second view on missing classes, with labels that the first view is sure of."""

    threshold: float = 0.8
    counts: Literal["sample", "entry"] = "sample"

    def value(self, view: View) -> Tensor:
        weak, strong = view.logits.chunk(2, dim=-2)
        missing = known_entries(view).chunk(2, dim=-2)[0] == 0
        labels, sure = losses.confident_tags(torch.sigmoid(weak.detach()), self.threshold)
        if self.counts == "sample":
            sure = sure | ~missing
            sure = sure.all(-1, keepdim=True).expand_as(missing)
        present = view.present.chunk(2, dim=-1)[0]
        entries = losses.binary_cross_entropy(strong, labels) * (missing & sure)
        per_sample = entries.sum(-1) / missing.sum(-1).clamp(min=1)
        return (per_sample * present).sum(-1) / present.sum(-1).clamp(min=1)


@methods.register("fedfixmatch")
@dataclass(frozen=True)
class FedFixMatch(OneStage):
    """FedAvg on annotated classes; what one view of a picture says surely of the others, another view must say too."""

    summary: ClassVar[str] = "What one view surely says of missing classes is the label of another view"
    paper: ClassVar[str] = "Sohn et al. 2020; multi-label as in FedMLP's comparison"
    tasks: ClassVar[tuple[str, ...]] = ("multilabel",)

    threshold: Annotated[float, Range(0.5, 1, below=True)] = 0.8
    """tau: sure is above this probability, or below 1 less it."""
    weight: AtLeastZero = 1.0
    """lambda_u: weight of the pseudo-labelled part."""
    counts: Literal["sample", "entry"] = "sample"
    """A sample counts only if all its missing classes are sure (released), or every sure entry counts."""

    def recipe(self, objective: Term | Objective, **changes: Any) -> Recipe:
        """Two views of every sample: the first makes labels, the second learns from them."""
        return super().recipe(objective, **{"views": 2, "mixup": 0.0, **changes})

    def objective(self, federation: Federation) -> Objective:
        return PartialClass(adjust=0.0) + self.weight * FixMatch(self.threshold, self.counts)

    def misfits(self, facts: FederationFacts) -> Iterator[Misfit]:
        yield from super().misfits(facts)
        yield from for_missing_classes(facts)
