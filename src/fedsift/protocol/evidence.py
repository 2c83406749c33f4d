"""What a method found out about single labels: it stays at their site, one typed page of the notebook."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fedsift.core.codec import WireFormat

EVIDENCE = "evidence"
"""The notebook's page."""


@dataclass(frozen=True)
class LabelEvidence(WireFormat):
    """One value a label, `[n]` (multi-label: `[n, K]`); None where nobody has said anything."""

    labels: Tensor | None = None
    """int64: what the site believes now, in place of the given labels."""
    known: Tensor | None = None
    """bool `[n, K]`: labels that are annotated or that a method supplied."""
    flagged: Tensor | None = None
    """bool: held suspect now, or changed."""
    suspicion: Tensor | None = None
    """float: high for a given label that is probably wrong; NaN where it was never looked at."""
    proposed: Tensor | None = None
    """int64: the label that the model would give."""
    method: str = ""
    """Who wrote last."""
    round: int = 0
    """In which round of the run, from 1."""

    @property
    def empty(self) -> bool:
        return all(v is None for v in (self.labels, self.flagged, self.suspicion, self.proposed, self.known))


def evidence_of(pages: Mapping[str, Any]) -> LabelEvidence:
    """The evidence in a notebook's pages; an empty one where no method wrote any."""
    kept = pages.get(EVIDENCE)
    return kept if isinstance(kept, LabelEvidence) else LabelEvidence()
