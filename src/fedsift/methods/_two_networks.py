"""Two global networks, averaged separately: what methods with two networks a site share on the server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, TypeVar, cast

from fedsift.methods._base import Averaging, ask_to_train
from fedsift.protocol.federation import Federation, Replies
from fedsift.protocol.messages import Reply, SiteFacts, Weights, disclosed
from fedsift.protocol.method import State
from fedsift.protocol.site import Site
from fedsift.training.job import TrainingJob, TrainingResult
from fedsift.training.objective import Extra
from fedsift.training.requests import Train, Trained, weights_refusal

# Two networks at a site, trained in step on the same batches, each in sight of the other (Co-
# teaching, DivideMix)
# ------------------------------------------------------------------------------


@dataclass(frozen=True)
class TrainedPair(Trained):
    """Two models instead of one."""

    twin: Weights = disclosed(
        "the site's second model after local training", "model", update="twin", default_factory=dict
    )

    def refusal(self, request: TrainPair, facts: SiteFacts) -> str | None:  # type: ignore[override]
        return super().refusal(request, facts) or weights_refusal(self.twin, request.twin)

    def moves(self, request: TrainPair) -> tuple[tuple[Weights, Weights], ...]:  # type: ignore[override]
        return (*super().moves(request), (self.twin, request.twin))


@dataclass(frozen=True)
class TrainPair(Train):
    """Train two networks in step; a term that needs "twin" sees the other's logits."""

    reply_type: ClassVar[type[Reply]] = TrainedPair

    twin: Weights = field(default_factory=dict)
    """The second network."""

    def work(self, facts: SiteFacts) -> float:
        return super().work(facts) + self.recipe.work(facts)

    def job(self, site: Site) -> TrainingJob:
        first = super().job(site)
        return replace(first, twin=TrainingJob(site, self.twin, self.recipe, extras=self.second_network_extras(site)))

    def second_network_extras(self, site: Site) -> dict[str, Extra]:
        """What the terms of the second network need of this site; what the first one has unless it is said here."""
        return self.extras(site)

    def reply(self, site: Site, result: TrainingResult | None) -> TrainedPair:
        trained = super().reply(site, result)
        assert result is not None and result.twin is not None
        loss = (result.loss + result.twin.loss) / 2
        return TrainedPair(trained.weights, trained.samples, loss, trained.then, result.twin.weights)


@dataclass(frozen=True)
class PairState(State):
    """The first global network, which is evaluated and kept, and the second."""

    twin: Weights = field(default_factory=dict)


P = TypeVar("P", bound=TrainPair)


@dataclass(frozen=True)
class TwoNetworks(Averaging):
    """A method whose sites train two networks that start from different draws."""

    def begin(self, federation: Federation, weights: Weights) -> PairState:
        return PairState(weights, federation.initial_weights(draw=1))

    def pair_round(self, federation: Federation, visit: P, sites: Sequence[str]) -> PairState:
        """Ask sites to train both networks; each is averaged with its like."""
        replies = cast("Replies[TrainedPair]", ask_to_train(federation, visit, sites))
        sizes = [reply.samples for reply in replies.values()]
        return PairState(
            self.merge([reply.weights for reply in replies.values()], sizes, visit.weights),
            self.merge([reply.twin for reply in replies.values()], sizes, visit.twin),
        )
