"""Co-teaching: Han et al., Robust Training of Deep Neural Networks with Extremely Noisy Labels, NeurIPS 2018; federated
as FedDPCont section 9 says: two global networks, averaged separately."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

from torch import Tensor

from fedsift.core.ranges import AtLeastOne, Count, Range, Share
from fedsift.formulas import losses
from fedsift.methods._base import methods, oracle_note
from fedsift.methods._forgetting import FORGOTTEN, MEMORY, NEEDS, forget_rate, forgetting, judge, note
from fedsift.methods._two_networks import PairState, TrainedPair, TrainPair, TwoNetworks
from fedsift.protocol.federation import Federation
from fedsift.protocol.messages import Reply, Weights
from fedsift.protocol.method import Stage
from fedsift.protocol.site import Site
from fedsift.training.job import TrainingResult
from fedsift.training.objective import Extra, Term, View

# Co-teaching at a site: each network learns from the samples that the other finds easy
# ------------------------------------------------------------------------------

NAME = "co-teaching"


@dataclass(frozen=True)
class PeersChoice(Term):
    """Mean cross-entropy over the floor((1 - R) B) samples on which the *other* network's loss is smallest (Alg. 1
    lines 5-8). A mean once: the release divides it by their number again."""

    needs: ClassVar[frozenset[str]] = NEEDS | {"twin"}

    def memory(self, classes: int) -> Mapping[str, tuple[int, ...]]:
        return MEMORY

    def value(self, view: View) -> Tensor:
        assert view.twin is not None
        own = losses.cross_entropy(view.logits, view.target)
        chosen = losses.small_loss(losses.cross_entropy(view.twin, view.target), view.site(FORGOTTEN), view.present)
        note(view, own)
        return (own * chosen).sum(-1) / chosen.sum(-1).clamp(min=1)


@dataclass(frozen=True)
class TrainCoTaught(TrainPair):
    """Train two networks that choose samples for each other; then judge anew how many labels are wrong."""

    reply_type: ClassVar[type[Reply]] = TrainedPair

    ramp: float = 1.0
    """R(t) / tau: how much of the noise rate is left out by now."""
    noise_rate: float | None = None
    """tau; None: what the site itself estimated at its last visit, nothing before the first."""

    def extras(self, site: Site) -> dict[str, Extra]:
        return forgetting(site, self.ramp, self.noise_rate)

    def reply(self, site: Site, result: TrainingResult | None) -> TrainedPair:
        assert result is not None and result.twin is not None
        judge(site, NAME, result, result.twin)
        return super().reply(site, result)


@methods.register("co-teaching")
@dataclass(frozen=True)
class CoTeaching(TwoNetworks):
    """Two networks a site. In every batch each names the samples of smallest loss, and the other learns from them."""

    summary: ClassVar[str] = "Two networks, each learning from the samples of small loss that the other names"
    paper: ClassVar[str] = "Han et al. 2018; federated as in FedDPCont section 9"

    rounds: AtLeastOne = 300
    """T: communication rounds."""
    fraction: Share = 0.1
    """Share of the sites that train in a round."""
    noise_rate: Annotated[float, Range(0, 1, below=True)] | None = None
    """tau: share of wrong labels, at every site alike. None: each site estimates its own from its losses. A true one
    given here is an oracle, and the run says so."""
    warm: Count = 10
    """T_k: rounds over which the share that is left out grows from 0 to tau."""
    ramp: Literal["paper", "official"] = "paper"
    """tau min(t / T_k, 1) with t from 1, or the release's T_k values from 0 to tau."""

    @property
    def oracle(self) -> str | None:
        return oracle_note(None if self.noise_rate is None else f"noise rate {self.noise_rate:g} given", super().oracle)

    def stages(self) -> list[Stage]:
        return [Stage("train", self.rounds, self.train, asks=(TrainCoTaught,))]

    def train(self, state: PairState, federation: Federation) -> PairState:
        """One round of Alg. 1 at some sites, then both networks are averaged, each with its like."""
        index = federation.round.index
        federation.record(forget_ramp=self.left_out(index))
        visit = self.visit(state.weights, state.twin, index)
        return self.pair_round(federation, visit, federation.choose(self.fraction))

    def visit(self, weights: Weights, twin: Weights, index: int) -> TrainCoTaught:
        """What a site is asked in the round of this index, from 0."""
        recipe = self.recipe(PeersChoice())
        return TrainCoTaught(weights, recipe, twin=twin, ramp=self.left_out(index), noise_rate=self.noise_rate)

    def alone(self) -> tuple[TrainCoTaught, ...]:
        """The method at one site by itself: a visit for each round, to be given the models that the last one left."""
        return tuple(self.visit({}, {}, index) for index in range(self.rounds))

    def left_out(self, index: int) -> float:
        """R(t) / tau in the round of this index, from 0."""
        return forget_rate(index + 1 if self.ramp == "paper" else index, 1.0, self.warm, self.ramp)

    def tiny(self) -> CoTeaching:
        return replace(self, rounds=3, fraction=0.6, warm=2)
