"""Power-of-choice: Cho et al., Client Selection in Federated Learning: Convergence Analysis and
Power-of-Choice Selection Strategies, 2020."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from fedsift.core.errors import ConfigError
from fedsift.core.numbers import floor_count
from fedsift.core.ranges import AtLeastOne, Share
from fedsift.formulas.aggregation import shares_of
from fedsift.methods._base import AnyLoss, methods
from fedsift.protocol.federation import Federation
from fedsift.protocol.method import Asks
from fedsift.training.requests import Indicate, Train


def power_of_choice(candidates: Sequence[int], losses: ArrayLike, m: int) -> list[int]:
    """The m candidates with the largest loss, largest first; `losses` is indexed by site number.

    Draw the candidates without replacement in proportion to the sites' sizes.
    """
    values = np.asarray(losses, dtype=np.float64)
    pool = np.sort(np.asarray(candidates, dtype=np.int64))
    return [int(site) for site in pool[np.argsort(-values[pool], kind="stable")][:m]]


@methods.register("poc")
@dataclass(frozen=True)
class PowerOfChoice(AnyLoss):
    """FedAvg that trains where the global model is worst: the m of d candidates with the largest loss.

    Beware noisy labels: a site with wrong labels has a large loss and is chosen for it.
    """

    summary: ClassVar[str] = "FedAvg on the sites where the global model's loss is largest"
    paper: ClassVar[str] = "Cho et al. 2020"

    fraction: Share = 0.1
    """m / N: share of the sites that train in a round."""
    pool: AtLeastOne = 30
    """d: candidates that are asked for their loss; at least m, at most all sites."""

    def __post_init__(self) -> None:
        if self.pool < 1:
            raise ConfigError(f"method.pool = {self.pool}: at least one candidate is needed")

    @property
    def asks(self) -> Asks:
        return (Indicate, Train)

    def choose(self, state: Any, federation: Federation) -> list[str]:
        """The sites of a round: draw d candidates by size, ask for their loss under the global model, keep m.

        Candidates that do not answer are passed over. A site gives away one number, its mean loss.
        """
        sites = federation.sites
        m = max(1, floor_count(self.fraction * len(sites)))
        d = min(len(sites), max(m, self.pool))
        shares = shares_of([float(size) for size in federation.sizes().values()]).numpy()
        drawn = federation.random("candidates").choice(len(sites), size=d, replace=False, p=shares)
        request = Indicate(state.weights, len(federation.classes), "loss", per_class=False)
        replies = federation.ask(request, [sites[i] for i in sorted(drawn)])
        losses = [float(reply.values[0]) for reply in replies.values()]
        chosen = [replies.sites[i] for i in sorted(power_of_choice(range(len(losses)), losses, m))]
        federation.record(chosen_sites=chosen)
        return chosen

    def tiny(self) -> PowerOfChoice:
        return replace(self, rounds=3, fraction=0.4, pool=3)
