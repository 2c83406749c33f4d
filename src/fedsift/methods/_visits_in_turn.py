"""Visiting every site in turn, a few or one at a time, each starting from the model that the last ones left: FedCorr's
first stage, and the warm-up of methods that took it over."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from fedsift.core.errors import QuorumError
from fedsift.core.ranges import AtLeastOne, Share
from fedsift.methods._base import Averaging
from fedsift.protocol.federation import Federation, FederationFacts, Replies
from fedsift.protocol.method import State
from fedsift.training.requests import Train, Trained

LOST_VISITS = 3
"""So many visits in a row without any reply stop the run: not a site is away then, but the network."""


@dataclass(frozen=True)
class InTurnState(State):
    """The global model, and where the visits stand."""

    visits: tuple[tuple[str, ...], ...] = ()
    """Whom this iteration visits in which round."""
    lost: int = 0
    """Visits in a row that brought no reply."""


@dataclass(frozen=True)
class VisitsInTurn(Averaging):
    """A method whose first stage visits all sites, one after the other, several times."""

    iterations: AtLeastOne = 5
    """T_1: times that every site is visited in the first stage."""
    visit_fraction: Share | None = None
    """Share of the sites visited in one round of the first stage; by itself 1/N, as in the paper. 0.1 is FedCorr's
    Table 6, "w/o fraction scheduling"."""
    first_together: bool | None = None
    """In the very first visit let all the other sites train as well, so that the gate sees them beside each other
    before any of them makes the model alone: an update that is too long or goes backwards is found then, and later ones
    by comparison with it. Their models are used for nothing else. By itself: across real sites, not in simulations,
    whose sites are honest."""

    def completed(self, facts: FederationFacts) -> Self:
        if facts.sites is None or self.visit_fraction is not None:
            return self
        return replace(self, visit_fraction=1 / facts.sites)

    def deployed(self) -> Self:
        return self if self.first_together is not None else replace(self, first_together=True)

    @property
    def visits_each(self) -> int:
        """Rounds of one iteration: ceil(1 / fraction)."""
        return math.ceil(1 / self.visit_share - 1e-9)

    @property
    def visit_share(self) -> float:
        return 0.01 if self.visit_fraction is None else self.visit_fraction

    def deal(self, sites: Sequence[str], draw: np.random.Generator) -> tuple[tuple[str, ...], ...]:
        """S = Shuffle({1..N}) (FedCorr Alg. 1 line 3), dealt out to the iteration's visits."""
        order = [sites[i] for i in draw.permutation(len(sites))]
        return tuple(tuple(order[turn :: self.visits_each]) for turn in range(self.visits_each))

    def ask_in_turn(
        self, state: InTurnState, federation: Federation, requests: Mapping[str, Train]
    ) -> Replies[Trained] | None:
        """The replies of one visit; None where nobody could be reached: they miss this iteration, no more."""
        beside = self._beside(state, federation, requests)
        try:
            replies = federation.ask({**beside, **requests})
            visited = {site: reply for site, reply in replies.items() if site in requests}
            if not visited:
                raise QuorumError(f"only sites beside {', '.join(requests)} were accepted")
        except QuorumError as error:
            if state.lost + 1 >= LOST_VISITS:
                raise
            federation.warn(f"a visit brought no reply: {error}")
            return None
        return Replies(visited, replies.refused)

    def _beside(self, state: InTurnState, federation: Federation, requests: Mapping[str, Train]) -> dict[str, Train]:
        """What the iteration's other sites are asked in the very first visit."""
        if not self.first_together or federation.round.index > 0:
            return {}
        like = next(iter(requests.values()))
        others = {site for visit in state.visits for site in visit if site not in requests}
        return dict.fromkeys(sorted(others), Train(like.weights, like.recipe))
