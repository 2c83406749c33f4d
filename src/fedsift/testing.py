"""For whoever writes a method: a federation whose sites answer by a script, small enough to compute by hand.

    def answer(site, request):
        return Trained({"w": torch.ones(2)}, 10, 0.5) if isinstance(request, Train) else None

    federation = Scripted({"north": 10, "south": 30}, answer, weights={"w": torch.zeros(2)})
    state = method.train(method.start(federation), federation)
    assert federation.asked_of(Train) == ["north", "south"]
    assert federation.recorded["train_loss"] == 0.5

A site that answers None is set aside with "no reply", as one that is silent is. Nothing is gated or encoded: what a
method makes of the answers is all that is shown. `tests/contract` runs a registered method on real engines.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from fedsift.core.errors import ConfigError, QuorumError
from fedsift.protocol.federation import RandomDraws, Replies, Round
from fedsift.protocol.findings import Findings
from fedsift.protocol.messages import Reply, Request, SiteFacts, Weights

R = TypeVar("R", bound=Reply)
Script = Callable[[str, Request[Any]], Reply | None]
"""A site's name and what it is asked, to its reply; None for a site that does not answer."""


class Scripted(RandomDraws):
    """A `Federation` that hands every request to a function, and keeps what was asked, recorded and warned of."""

    def __init__(
        self,
        sites: Mapping[str, int] | Sequence[SiteFacts],
        answer: Script,
        weights: Weights | None = None,
        *,
        classes: int | Sequence[str] = 2,
        multilabel: bool = False,
        seed: int = 1,
        buffers: Sequence[str] = (),
    ) -> None:
        """`sites`: numbers of samples by name, or whole facts. `weights`: what `initial_weights` gives, and of these
        `buffers` are running statistics."""
        declared = [SiteFacts(*pair) for pair in sites.items()] if isinstance(sites, Mapping) else sites
        self.facts: Mapping[str, SiteFacts] = {facts.name: facts for facts in declared}
        self.classes = tuple(f"c{k}" for k in range(classes)) if isinstance(classes, int) else tuple(classes)
        self.multilabel = multilabel
        self.round = Round("stage", 0, 0)
        self.answer = answer
        self.weights = weights
        self.seed = seed
        self.buffers = list(buffers)
        self.asked: list[dict[str, Request[Any]]] = []
        """What each ask wanted of each site, in the order of asking."""
        self.requests: list[Request[Any] | Mapping[str, Request[Any]]] = []
        """Each ask as the method wrote it: one request for all, or one for each site."""
        self.log: list[tuple[int, str, Request[Any]]] = []
        """(index of the round in its stage, site, request) of everything asked."""
        self.recorded: dict[str, Any] = {}
        self.recorded_sites: dict[str, dict[str, Any]] = {}
        self.warnings: list[str] = []
        self.found = Findings(())
        """What the method found last."""

    def at(self, index: int, stage: str = "stage", number: int | None = None) -> Scripted:
        """The same federation at another round; `number` within the run is the index unless given."""
        self.round = Round(stage, index, index if number is None else number)
        return self

    @property
    def sites(self) -> list[str]:
        return list(self.facts)

    def ask(self, request: Request[R] | Mapping[str, Request[R]], sites: Sequence[str] | None = None) -> Replies[R]:
        """As an engine does: an ask of nobody is a mistake, and one that nobody answers breaks the quorum."""
        self.requests.append(request)
        if not isinstance(request, Mapping):
            request = dict.fromkeys(self.sites if sites is None else sites, request)
        if not request:
            raise ConfigError(f"stage '{self.round.stage}' asks no site at all")
        unknown = [site for site in request if site not in self.facts]
        if unknown:
            raise ConfigError(f"stage '{self.round.stage}' asks unknown site '{unknown[0]}'")
        wanted = {site: request[site] for site in self.sites if site in request}
        self.asked.append(dict(wanted))
        self.log += [(self.round.index, site, own) for site, own in wanted.items()]
        answers: dict[str, Any] = {site: self.answer(site, own) for site, own in wanted.items()}
        good = {site: reply for site, reply in answers.items() if reply is not None}
        if not good:
            raise QuorumError("nobody answered")
        return Replies(good, {site: "no reply" for site in answers if site not in good})

    def asked_of(self, kind: type, index: int | None = None) -> list[str]:
        """Sites that were asked this kind of request, in all rounds or in one."""
        return [site for at, site, own in self.log if type(own) is kind and index in (None, at)]

    def initial_weights(self, model: str = "", draw: int = 0) -> Weights:
        if self.weights is None:
            raise ConfigError("this scripted federation has no weights: give it some, e.g. weights={'w': ...}")
        return self.weights

    def model_buffers(self, model: str = "") -> list[str]:
        return list(self.buffers)

    def record(self, **values: Any) -> None:
        self.recorded.update(values)

    def record_sites(self, name: str, values: Mapping[str, Any]) -> None:
        self.recorded_sites.setdefault(name, {}).update(values)

    def find(self, findings: Findings) -> None:
        self.found = findings

    def warn(self, text: str) -> None:
        self.warnings.append(text)


__all__ = ["Script", "Scripted"]
