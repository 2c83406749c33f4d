"""What is known of a federation before its first round: by this a method completes itself and says if it fits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fedsift.protocol.messages import SiteFacts


@dataclass(frozen=True)
class FederationFacts:
    """Facts that a study or the doctor knows; None where a fact is not known (yet)."""

    sites: int | None = None
    samples: tuple[int, ...] = ()
    """Training samples of each site, where they are known."""
    classes: int | None = None
    multilabel: bool | None = None
    own_labels: bool = False
    """The labels are as somebody brought them: nobody spoiled them on purpose, so they may be clean or not."""
    natural: bool = False
    """The sites are those of the data, not drawn by a partition."""
    annotates_all: bool | None = None
    """Whether every site annotates every class."""
    public: int | None = None
    """Public unlabelled samples at every site."""
    networks: tuple[str, ...] = ()
    """The different networks that sites train."""

    @classmethod
    def of(cls, sites: Iterable[SiteFacts], classes: Sequence[str], multilabel: bool) -> FederationFacts:
        """What sites declared on joining a deployed federation: their labels are their own, nobody drew them."""
        declared = list(sites)
        return cls(
            sites=len(declared),
            samples=tuple(site.samples for site in declared),
            classes=len(classes),
            multilabel=multilabel,
            own_labels=True,
            natural=True,
            annotates_all=all(site.annotated is None or len(site.annotated) == len(classes) for site in declared),
            public=min((site.public for site in declared), default=0) or None,
            networks=tuple(sorted({site.model for site in declared})),
        )

    @property
    def kind(self) -> str | None:
        """The kind of label, as methods name it."""
        if self.multilabel is None:
            return None
        return "multilabel" if self.multilabel else "multiclass"


@dataclass(frozen=True)
class Incompatibility:
    """Why a method does not fit a federation."""

    reason: str
    refuses: bool = False
    """True where a run would fail or could only mislead: it is refused. False: it runs, and says this."""
