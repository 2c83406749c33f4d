"""FedFixMatch: FixMatch (Sohn et al. 2020) in local training, for sites that annotate some classes only, as FedMLP's
comparison (Sun et al. 2024) adapted it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from fedsift.core.ranges import AtLeastZero, Range
from fedsift.methods._base import methods
from fedsift.methods._partial_annotation import PartlyAnnotated
from fedsift.protocol.federation import Federation
from fedsift.training.objective import Objective, PositiveWeighted, SureOfFirstView, Term
from fedsift.training.recipe import Recipe


@methods.register("fedfixmatch")
@dataclass(frozen=True)
class FedFixMatch(PartlyAnnotated):
    """FedAvg on annotated classes; what one view of a picture says surely of the others, another view must say too."""

    summary: ClassVar[str] = "What one view surely says of missing classes is the label of another view"
    paper: ClassVar[str] = "Sohn et al. 2020; multi-label as in FedMLP's comparison"
    compares_views: ClassVar[bool] = True
    forms: ClassVar[Mapping[str, Mapping[str, Any]]] = {"original": {"threshold": 0.95}}

    threshold: Annotated[float, Range(0.5, 1, below=True)] = 0.8
    """tau: sure is above this probability, or below 1 less it."""
    weight: AtLeastZero = 1.0
    """lambda_u: weight of the pseudo-labelled part."""
    counts: Literal["sample", "entry"] = "sample"
    """A sample counts only if all its missing classes are sure (released), or every sure entry counts."""
    pos_weight: bool = True
    """Weigh the positives of class c by N_k / n_c. Without it a rare finding is never above 1/2, so that every sure
    label says "absent"."""

    def recipe(self, objective: Term | Objective, **changes: Any) -> Recipe:
        """Two views of every sample: the first makes labels, the second learns from them."""
        return super().recipe(objective, **{"views": 2, **changes})

    def objective(self, federation: Federation) -> Objective:
        labels = PositiveWeighted(weigh=self.pos_weight)
        return labels + self.weight * SureOfFirstView(self.threshold, self.counts)
