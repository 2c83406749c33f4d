"""A federation whose sites answer by a script, for tests of what a server makes of the answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fedsift.contract import QuorumError, Replies, Reply, Request, Round, SiteFacts, Weights, numpy_generator

from .by_hand import StubFederation


class Scripted(StubFederation):
    """Asks one request for all or one for each site; an ask without any answer breaks the quorum."""

    def __init__(
        self,
        sizes: Mapping[str, int],
        answer: Callable[[str, Request[Any]], Reply | None],
        weights: Weights,
        seed: int = 1,
    ) -> None:
        super().__init__([SiteFacts(name, n) for name, n in sizes.items()], 2, answer, weights)
        self.multilabel = False
        self.seed = seed
        self.log: list[tuple[int, str, Request[Any]]] = []
        """(round, site, request) of everything asked."""

    def at(self, index: int) -> Scripted:
        self.round = Round("stage", index, index)
        return self

    def ask(self, request: Any, sites: Sequence[str] | None = None) -> Replies[Any]:
        if not isinstance(request, Mapping):
            request = dict.fromkeys(self.sites if sites is None else sites, request)
        assert request, "an ask of no site at all"
        wanted = {name: request[name] for name in self.sites if name in request}
        self.log += [(self.round.index, name, own) for name, own in wanted.items()]
        answers = {name: self.answer(name, own) for name, own in wanted.items()}
        good = {name: reply for name, reply in answers.items() if reply is not None}
        if not good:
            raise QuorumError("nobody answered")
        return Replies(good, {name: "no reply" for name, reply in answers.items() if reply is None})

    def random(self, purpose: str) -> np.random.Generator:
        return numpy_generator(self.seed, self.round.index, purpose)

    def choose(
        self, fraction: float, *, among: Sequence[str] | None = None, purpose: str = "choose"
    ) -> list[str]:
        pool = self.sites if among is None else list(among)
        count = max(1, int(fraction * len(pool) + 1e-9))
        picked = self.random(purpose).choice(len(pool), size=count, replace=False)
        return [pool[i] for i in sorted(picked)]

    def model_buffers(self, model: str = "") -> list[str]:
        return []

    def asked_of(self, kind: type, index: int | None = None) -> list[str]:
        """Sites that were asked this kind of request, in all rounds or in one."""
        return [name for r, name, own in self.log if type(own) is kind and index in (None, r)]
