"""Power-of-choice: Cho et al., Client Selection in Federated Learning: Convergence Analysis and
Power-of-Choice Selection Strategies, 2020."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from fedsift.aggregate import shares_of
from fedsift.contract import ConfigError, Federation, Stage, State, Weights
from fedsift.contract.ranges import AtLeastOne, Share
from fedsift.local.requests import Indicate
from fedsift.methods.base import TrainingMethod, methods, plain_loss, size_weighted, train_round
from fedsift.signals.choice import power_of_choice
from fedsift.signals.counting import floor_count


def choose_by_loss(federation: Federation, weights: Weights, fraction: float, pool: int) -> list[str]:
    """The sites of a round: draw d candidates by size, ask for their loss under the global model, keep m.

    Candidates that do not answer are passed over. A site gives away one number, its mean loss.
    """
    sites = federation.sites
    m = max(1, floor_count(fraction * len(sites)))
    d = min(len(sites), max(m, pool))
    shares = shares_of([float(federation.facts[site].samples) for site in sites]).numpy()
    drawn = federation.random("candidates").choice(len(sites), size=d, replace=False, p=shares)
    request = Indicate(weights, len(federation.classes), "loss", per_class=False)
    replies = federation.ask(request, [sites[i] for i in sorted(drawn)])
    losses = [float(reply.values[0]) for reply in replies.values()]
    chosen = power_of_choice(range(len(losses)), losses, m)
    return [replies.sites[i] for i in sorted(chosen)]


@methods.register("poc")
@dataclass(frozen=True)
class PowerOfChoice(TrainingMethod):
    """FedAvg that trains where the global model is worst: the m of d candidates with the largest loss.

    Beware noisy labels: a site with wrong labels has a large loss and is chosen for it.
    """

    summary: ClassVar[str] = "FedAvg on the sites where the global model's loss is largest"
    paper: ClassVar[str] = "Cho et al. 2020"

    rounds: AtLeastOne = 100
    """T: communication rounds."""
    fraction: Share = 0.1
    """m / N: share of the sites that train in a round."""
    pool: AtLeastOne = 30
    """d: candidates that are asked for their loss; at least m, at most all sites."""

    def __post_init__(self) -> None:
        if self.pool < 1:
            raise ConfigError(f"method.pool = {self.pool}: at least one candidate is needed")

    def stages(self) -> list[Stage]:
        return [Stage("train", self.rounds, self.train)]

    def train(self, state: State, federation: Federation) -> State:
        chosen = choose_by_loss(federation, state.weights, self.fraction, self.pool)
        replies = train_round(federation, state.weights, self.recipe(plain_loss(federation)), chosen)
        federation.record(chosen_sites=chosen)
        return replace(state, weights=size_weighted(replies))

    def tiny(self) -> PowerOfChoice:
        return replace(self, rounds=3, fraction=0.4, pool=3)
