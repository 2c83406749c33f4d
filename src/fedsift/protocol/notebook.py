"""A site's notebook: what it keeps for itself between requests, restarts and rounds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fedsift.core.codec import WireFormat


class Notebook(MutableMapping[str, Any]):
    """Named pages (tensors and plain values) that never leave the site.

    A request works on a copy; only when it has been answered does the copy become the notebook. Values are replaced,
    never changed in place: an older copy must stay what it was.
    """

    def __init__(self, pages: dict[str, Any] | None = None) -> None:
        self._pages: dict[str, Any] = dict(pages or {})
        self.written = False
        """Whether anything was written since this copy was opened."""

    def __getitem__(self, page: str) -> Any:
        return self._pages[page]

    def __setitem__(self, page: str, value: Any) -> None:
        self._pages[page] = value
        self.written = True

    def __delitem__(self, page: str) -> None:
        del self._pages[page]
        self.written = True

    def __iter__(self) -> Iterator[str]:
        return iter(self._pages)

    def __len__(self) -> int:
        return len(self._pages)

    def pages(self) -> dict[str, Any]:
        return dict(self._pages)


# What a method found out about single labels
# -------------------------------------------


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
