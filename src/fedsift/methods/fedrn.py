"""FedRN: Kim et al., FedRN: Exploiting k-Reliable Neighbors Towards Robust Federated Learning, CIKM 2022."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from fedsift.contract import (
    ConfigError,
    Federation,
    FederationFacts,
    Findings,
    Misfit,
    Replies,
    Stage,
    State,
    Weights,
)
from fedsift.contract.ranges import AtLeastOne, Count, Rate, Share
from fedsift.local.objective import CrossEntropy
from fedsift.local.recipe import Recipe
from fedsift.local.requests import Trained
from fedsift.methods.base import Averaging, ask_to_train, methods
from fedsift.methods.fedrn_site import DescribeModel, Profile, Shown, TrainAmongNeighbours, TrainShown
from fedsift.signals.neighbours import reliability, reliable


@dataclass(frozen=True)
class FedRNState(State):
    """The global model, and of each site that was visited its last model and what describes it."""

    models: dict[str, Weights] = field(default_factory=dict)
    expertise: dict[str, float] = field(default_factory=dict)
    outputs: dict[str, list[float]] = field(default_factory=dict)
    level: dict[str, float] = field(default_factory=dict)
    """Share of a site's labels that looked wrong at its last visit."""


@methods.register("fedrn")
@dataclass(frozen=True)
class FedRN(Averaging):
    """Each site asks the k most reliable others which of its labels are clean, and trains on those alone.

    The server SHOWS MODELS OF SITES TO OTHER SITES. What one can learn of a site's samples from its model, the
    neighbours can learn.
    """

    summary: ClassVar[str] = (
        "Sites train on labels that neighbours' models find clean; shows sites each other's models"
    )
    paper: ClassVar[str] = "Kim et al. 2022 (CIKM)"

    rounds: AtLeastOne = 100
    """T: communication rounds, warm-up included."""
    warm_up: Count | None = None
    """Rounds of FedAvg before neighbours are asked; by itself a fifth of all (100 of 500 in the paper), but
    no fewer than 10, or half: a model that knows nothing yet finds no clean label."""
    fraction: Share = 1.0
    """C: share of the sites that train in a round."""
    neighbours: Count = 2
    """k: other sites whose models vote; 0 leaves the vote to the received model."""
    alpha: Rate = 0.6
    """w_alpha: how much expertise counts beside similarity (0.5 by default in the code, 0.6 in its scripts)."""
    least: Rate = 0.5
    """A label whose mean vote is larger is clean."""

    guarded: bool = True
    """Never doubt a label that the voting model itself would give: the mixture finds two groups of losses in clean
    labels too. Off is as released."""
    balanced: bool = True
    """Judge a label beside its class's share of the site's labels: a mixture over plain losses takes all labels of a
    rare class for wrong. Off is as released."""

    local: Recipe = field(
        default_factory=lambda: Recipe(epochs=5, batch_size=50, lr=0.01, momentum=0.5), kw_only=True
    )

    def __post_init__(self) -> None:
        if self.t_w > self.rounds:
            raise ConfigError(
                f"method.warm_up = {self.t_w}: it must not exceed method.rounds = {self.rounds}"
            )

    @property
    def t_w(self) -> int:
        """Rounds of the warm-up."""
        return max(self.rounds // 5, min(10, self.rounds // 2)) if self.warm_up is None else self.warm_up

    def completed(self, facts: FederationFacts) -> FedRN:
        return replace(self, warm_up=self.t_w)

    def begin(self, federation: Federation, weights: Weights) -> FedRNState:
        return FedRNState(weights)

    def stages(self) -> list[Stage]:
        neighbours = (TrainAmongNeighbours, DescribeModel)
        return [
            Stage("warm up", self.t_w, self.train_plainly, asks=(TrainShown, DescribeModel)),
            Stage(
                "reliable neighbours", self.rounds - self.t_w, self.train_among_neighbours, asks=neighbours
            ),
        ]

    def train_plainly(self, state: FedRNState, federation: Federation) -> FedRNState:
        """FedAvg; each trained model is described in the same visit."""
        recipe, describe = self.recipe(CrossEntropy()), DescribeModel(None, len(federation.classes))
        request = TrainShown(state.weights, recipe, then=(describe,))
        chosen = federation.choose(self.fraction)
        return self.take_in(state, ask_to_train(federation, request, chosen))

    def train_among_neighbours(self, state: FedRNState, federation: Federation) -> FedRNState:
        """Every chosen site gets the global model and those of its k most reliable neighbours."""
        recipe, describe = self.recipe(CrossEntropy()), DescribeModel(None, len(federation.classes))
        requests, asked = {}, {}
        for site in federation.choose(self.fraction):
            names, scores = self.neighbours_of(site, state)
            asked[site] = names
            requests[site] = TrainAmongNeighbours(
                state.weights,
                recipe,
                then=(describe,),
                neighbours=tuple(state.models[name] for name in names),
                scores=scores,
                least=self.least,
                guarded=self.guarded,
                balanced=self.balanced,
            )
        replies = ask_to_train(federation, requests)
        federation.record(neighbours=asked)
        state = self.take_in(state, replies)
        level = {**state.level, **levels_of(replies)}
        federation.find(Findings(noisy=(), level=level))
        return replace(state, level=level)

    def neighbours_of(self, site: str, state: FedRNState) -> tuple[list[str], tuple[float, ...]]:
        """The k most reliable of the sites that have a model, and the scores: the site's own first.

        A site that was never visited has no description: the received model alone judges its labels.
        """
        known = list(state.models)
        if site not in known:
            return [], (1.0,)
        own = known.index(site)
        outputs = np.array([state.outputs[name] for name in known])
        scores = reliability([state.expertise[name] for name in known], outputs, own, self.alpha)
        chosen = reliable(scores, own, self.neighbours)
        return [known[j] for j in chosen], (float(scores[own]), *(float(scores[j]) for j in chosen))

    def take_in(self, state: FedRNState, replies: Replies[Trained]) -> FedRNState:
        """Average by size; keep every model with what describes it."""
        profiles = {site: reply.then[0] for site, reply in replies.items()}
        told = {site: profile for site, profile in profiles.items() if isinstance(profile, Profile)}
        return replace(
            state,
            weights=self.merged(replies, state.weights),
            models={**state.models, **{site: reply.weights for site, reply in replies.items()}},
            expertise={**state.expertise, **{site: own.expertise for site, own in told.items()}},
            outputs={**state.outputs, **{site: own.output.tolist() for site, own in told.items()}},
        )

    def misfits(self, facts: FederationFacts) -> Iterator[Misfit]:
        yield from super().misfits(facts)
        if facts.sites is not None and 1 < facts.sites <= self.neighbours:
            yield Misfit(
                f"{facts.sites} sites have fewer than method.neighbours = {self.neighbours} others each"
            )

    def tiny(self) -> FedRN:
        return replace(self, rounds=3, warm_up=1, fraction=0.6)


def levels_of(replies: Replies[Trained]) -> dict[str, float]:
    """Share of each site's labels that looked wrong."""
    return {
        site: 1 - reply.clean / reply.samples for site, reply in replies.items() if isinstance(reply, Shown)
    }
