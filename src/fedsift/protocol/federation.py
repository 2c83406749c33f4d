"""The server's view of the sites: their names, declared facts, and `ask`."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from fedsift.core.randomness import numpy_generator
from fedsift.protocol.findings import Findings
from fedsift.protocol.messages import Reply, Request, SiteFacts, Weights

R = TypeVar("R", bound=Reply)


@dataclass(frozen=True)
class Round:
    """Where a step stands: `index` within its stage, `number` within the run, both from 0 for computing.

    What people read counts from 1: `count`.
    """

    stage: str
    index: int
    number: int

    @property
    def count(self) -> int:
        """The round's number for people, from 1."""
        return self.number + 1


class RandomDraws(ABC):
    """The server's draws, the same in every kind of federation: by the run's seed, the round and a purpose."""

    seed: int
    round: Round

    @property
    @abstractmethod
    def sites(self) -> list[str]:
        """All sites by name, in the federation's order."""

    @abstractmethod
    def sizes(self) -> Mapping[str, int]:
        """Declared training samples of each site, as far as they may count."""

    def random(self, purpose: str) -> np.random.Generator:
        """The server's generator for this round and purpose."""
        return numpy_generator(self.seed, "server", self.round.stage, self.round.number, purpose)

    def choose(self, fraction: float, *, among: Sequence[str] | None = None, purpose: str = "choose") -> list[str]:
        """max(1, floor(fraction * n)) sites without replacement, in the federation's order."""
        pool = self.sites if among is None else among
        count = min(len(pool), max(1, math.floor(fraction * len(pool) + 1e-9)))
        if count == len(pool):
            return list(pool)
        return [pool[i] for i in sorted(self.random(purpose).choice(len(pool), size=count, replace=False))]


class Replies(Mapping[str, R], Generic[R]):
    """Accepted replies by site, always in the federation's own order, so that sums do not depend on arrival."""

    def __init__(self, replies: Mapping[str, R], refused: Mapping[str, str]) -> None:
        self._replies = dict(replies)
        self.refused = dict(refused)
        """Sites whose reply was set aside or never came, with the reason."""

    def __getitem__(self, site: str) -> R:
        return self._replies[site]

    def __iter__(self) -> Iterator[str]:
        return iter(self._replies)

    def __len__(self) -> int:
        return len(self._replies)

    @property
    def sites(self) -> list[str]:
        return list(self._replies)


class Federation(Protocol):
    """The sites as the server sees them. A method is written against this and nothing else."""

    facts: Mapping[str, SiteFacts]
    """Declared facts by site name, in a fixed order."""
    classes: tuple[str, ...]
    """The federation's class names; label k means classes[k]."""
    multilabel: bool
    round: Round

    @property
    def sites(self) -> list[str]: ...

    def sizes(self) -> Mapping[str, int]:
        """Declared training samples of each site, as far as they may count: what sites are weighed by (`facts` hold
        what was declared)."""
        ...

    def ask(self, request: Request[R] | Mapping[str, Request[R]], sites: Sequence[str] | None = None) -> Replies[R]:
        """Ask sites (all by default) and return what passed the gate; one request for all, or one for each site."""
        ...

    def initial_weights(self, model: str = "", draw: int = 0) -> Weights:
        """Fresh weights of a registered model (the study's own by default), the same for the same seed and draw."""
        ...

    def model_buffers(self, model: str = "") -> list[str]:
        """Names in that model's weights that are running statistics, not trained parameters."""
        ...

    def random(self, purpose: str) -> np.random.Generator:
        """The server's generator for this round and purpose."""
        ...

    def choose(self, fraction: float, *, among: Sequence[str] | None = None, purpose: str = "choose") -> list[str]:
        """max(1, floor(fraction * n)) sites without replacement, in the federation's order."""
        ...

    def record(self, **values: Any) -> None:
        """Keep plain values with this round's line (rounds.jsonl)."""
        ...

    def record_sites(self, name: str, values: Mapping[str, Any]) -> None:
        """Keep one value a site under `name`, the latest wins (sites.csv and the report)."""
        ...

    def find(self, findings: Findings) -> None:
        """Say which sites look noisy; the latest findings stand (the round's line, sites.csv, every report)."""
        ...

    def warn(self, text: str) -> None:
        """Say something that a person should know; kept with the run."""
        ...


# Facts
# ------------------------------------------------------------------------------


@dataclass(frozen=True)
class FederationFacts:
    """Facts that a study or the doctor knows; None where a fact is not known (yet)."""

    sites: int | None = None
    samples: tuple[int, ...] = ()
    """Training samples of each site, where they are known."""
    classes: int | None = None
    multilabel: bool | None = None
    own_labels: bool = False
    """The labels are the user's: no noise model corrupted them, so they may be clean or not."""
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
